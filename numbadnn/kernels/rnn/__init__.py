"""Recurrent networks, one implementation, ``numba.rnn``: ``rnn.py`` registers.

A product of each layer for all time steps, then the steps: all of them in one launch where they fit the GPU at once
(``persist.py``), else one launch a step (``steps.py``).
"""
