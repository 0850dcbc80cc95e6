"""Batch normalization and its gradients: ``norm.py`` registers.

Where several take a problem, their estimates in microseconds (``rank``) decide:

    numba.norm_planes   channels whose pixels lie together in memory (NCHW)
    numba.norm_columns  channels that lie together in memory (NHWC, per-activation)
    numba.norm_strided  any strides, dtypes and sizes

To add one: a module here (what it takes, its configuration, its launch), the device code under the same stem in ``device/``,
a line where the wing registers.
"""
