"""Convolutions with one channel a group: ``depthwise.py``, and ``rows.py`` for the filters' gradient in 16 bits."""
