"""Pooling and its gradient: ``pool.py`` registers.

Where several take a problem, their estimates in microseconds (``rank``) decide:

    numba.pool_tiles    packed images, tiles of outputs in registers; of maxima that overlap the gradient by two kernels
    numba.pool_argmax   gradients of maxima whose windows overlap in two axes (``walk.py``)
    numba.pool_strided  any strides and windows, sums of any length

To add one: a module here (what it takes, its configuration, its launch), the device code under the same stem in ``device/``,
a line where the wing registers.
"""
