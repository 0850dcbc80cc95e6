"""Convolutions in three directions, causal ones and those with unshared filters: ``conv.py`` registers.

Where several take a problem, their estimates in microseconds (``rank``) decide:

    numba.depthwise         ``depthwise/``: one channel a group
    numba.depthwise_rows    its gradient of the filters in 16 bits, channels last
    numba.first_layer       ``image/``: images of up to four channels, a stride of two, 16 bits
    numba.to_image          ``image/``: results of up to four channels; to_image_halves: in 16 bits
    numba.grouped_halves    ``grouped/``: 4 to 32 channels a group, 16 bits
    numba.implicit_gemm     ``implicit/``: Hopper's tensor cores without a matrix, 16 bits and TF32
    numba.implicit_tiles    ``tiles/``: matrix products that gather their operand, any type
    numba.pointwise         ``pointwise.py``: filters of one tap on NCHW images
    numba.patches           ``patches.py``: windows that do not overlap, far apart or of few channels
    numba.corrmm            ``corrmm/``: im2col and a matrix product
    numba.line, line_*      ``line/``: causal_conv1d, in a fixed order
    numba.unshared, _*      ``unshared/``: a filter for each position, in a fixed order
    numba.direct            ``direct.py``: everything, by the definition

``parts.py`` makes a kernel take a layer in any batch. ``members.py`` registers several kernels of one kind in a fixed order.
To add one: a module here or in a wing (what it takes, its configuration, its launch), the device code under the same stem in
``device/``, and an import and a place in ``conv.py``, or a row of ``MEMBERS`` in ``line.py`` or ``unshared.py``.
"""
