"""Dropout and its gradient: ``dropout.py`` registers.

Where several take a problem, their estimates in microseconds (``rank``) decide:

    numba.dropout_flat     packed arrays
    numba.dropout_tiles    channels-last arrays, whose order in memory is not C order
    numba.dropout_strided  any strides

To add one: a module here (what it takes, its configuration, its launch), the device code under the same stem in ``device/``,
a line where the wing registers.
"""
