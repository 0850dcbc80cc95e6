"""causal_conv1d: ``line.py`` lists the kernels. The first that takes a problem is the fastest known for it:

    numba.line_octets    16-bit lines of a few channels, in vectors of eight, on tensor cores (``vectors.py``)
    numba.line_halves    16-bit lines of many channels, on tensor cores (``f16.py``)
    numba.line_toeplitz  16-bit lines of one channel a group, on tensor cores
    numba.line_channels  lines of one channel a group
    numba.line_boxes     float32 lines of many channels in TMA boxes, as two float16 (sm_90)
    numba.line_twofold   float32 lines of many channels, as two float16 (``f32x2.py``)
    numba.line_dense     lines in whole 16-byte chunks
    numba.line           all lines (``plain.py``)

To add one: a module here, its device code under the same stem in ``device/``, a row of ``MEMBERS`` in ``line.py``.
"""
