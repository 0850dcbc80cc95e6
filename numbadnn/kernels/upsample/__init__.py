"""Bilinear upsampling and its gradient: ``upsample.py`` registers.

Where several take a problem, their estimates in microseconds (``rank``) decide:

    numba.upsample_planes    NCHW images
    numba.upsample_channels  NHWC images
    numba.upsample_general   any strides and ratios

To add one: a module here (what it takes, its configuration, its launch), the device code under the same stem in ``device/``,
a line where the wing registers.
"""
