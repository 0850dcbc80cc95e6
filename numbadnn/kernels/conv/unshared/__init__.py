"""Convolutions with a filter for each position: ``unshared.py`` lists the kernels in the order in which they are tried.

``forward``, ``inputs`` and ``weights`` are the three directions, ``parts`` what they share, ``plain.py`` takes all shapes.
"""
