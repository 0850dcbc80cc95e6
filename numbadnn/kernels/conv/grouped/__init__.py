"""Convolutions of 16-bit types with few channels a group: ``grouped.py``, ``weights.py`` for the gradient of the filters."""
