"""softmax and its gradient: ``softmax.py`` registers.

Where several take a problem, their estimates in microseconds (``rank``) decide:

    numba.softmax_rows      rows along memory that fit registers
    numba.softmax_long      rows along memory that fit shared memory
    numba.softmax_channels  NCHW channels that fit registers
    numba.softmax_tiles     NCHW channels that fit shared memory
    numba.softmax_alike     inputs that lie otherwise than the result: copies, then one of the above
    numba.softmax_strided   any strides, rows of any length

To add one: a module here (what it takes, its configuration, its launch), the device code under the same stem in ``device/``,
a line where the wing registers.
"""
