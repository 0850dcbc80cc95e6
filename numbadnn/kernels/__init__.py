"""The project's own GPU kernels, written in Python for Numba CUDA.

``lang/`` is the language that device code is written in: memory access, instructions, warps, asynchronous copies, matrix
products. ``build/`` compiles, keeps, launches and simulates it. Every other folder is a wing, one a family of operations:
its modules are the host side (what is supported, which configuration, which arguments), ``device/`` in it holds the
device code under the same stem.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from numbadnn.kernels.build.launch import Kernel

#: the modules whose ``kernels()`` lists a representative set
HOSTS = (
    "conv.direct",
    "conv.unshared.unshared",
    "conv.line.line",
    "copies.copy",
    "conv.corrmm.corrmm",
    "conv.depthwise.depthwise",
    "conv.depthwise.rows",
    "dropout.dropout",
    "conv.image.first_layer",
    "gemm.gemm",
    "conv.grouped.grouped",
    "conv.implicit.gemm",
    "conv.tiles.tiles",
    "norm.norm",
    "pool.pool",
    "rnn.rnn",
    "softmax.softmax",
    "spatial.spatial",
    "conv.image.to_image",
    "conv.image.to_image_halves",
    "upsample.upsample",
)


def all_kernels() -> Iterator[Kernel]:
    """A representative set of every host's kernels: name, parameters, how to build the function, threads a block."""
    for host in HOSTS:
        yield from importlib.import_module(f"numbadnn.kernels.{host}").kernels()
