"""Unshared convolutions have a filter for each output position. ``unshared.py`` lists the kernels in the order of choice.

``forward``, ``inputs`` and ``weights`` are the three directions, ``parts`` what they share, ``plain.py`` takes all shapes.
"""
