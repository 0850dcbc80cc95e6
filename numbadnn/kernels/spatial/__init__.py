"""The spatial transformer, grid, sampler and their gradients: ``spatial.py`` registers.

Where several take a problem, their estimates in microseconds (``rank``) decide:

    numba.spatial_planes    any strides and dtypes, grids too
    numba.spatial_channels  NHWC images
    numba.spatial_staged    NCHW images whose neighbouring points lie near each other

To add one: a module here (what it takes, its configuration, its launch), the device code under the same stem in ``device/``,
a line where the wing registers.
"""
