"""Convolutions in three directions, causal ones and those with unshared filters: ``conv.py`` registers.

A wing for each way to compute one: ``tiles`` (matrix products that gather their operand, any type), ``implicit`` (Hopper's
tensor cores without a matrix), ``corrmm`` (im2col and a product), ``depthwise``, ``grouped`` (few channels a group),
``image`` (images of one to four channels), ``line`` (one axis), ``unshared`` (a filter for each position), ``patches.py``
(windows far apart), ``pointwise.py`` (one tap), and ``direct.py``, which takes everything. ``parts.py`` makes a kernel take a
layer in any batch. ``members.py`` registers several kernels of one kind in a fixed order, as ``line`` and ``unshared`` have.
"""
