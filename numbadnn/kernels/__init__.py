"""The project's own GPU kernels, written in Python for Numba CUDA.

``conv.py``, ``softmax.py`` and ``copy.py`` are host side: what is supported, which configuration, which arguments. The files
``_*_kernels.py`` and ``_softmax_*.py`` hold the device code. ``_cuda``, ``_access`` (memory), ``_ptx`` (instructions) and
``_warp`` are the language it is written in, ``_llvm`` what these are made of. ``_launch`` compiles, keeps and launches it,
``simulate`` runs it without a GPU.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from numbadnn.kernels._launch import Kernel

FAMILIES = (
    *(
        "conv",
        "copy",
        "corrmm",
        "depthwise",
        "depthwise_rows",
        "dropout",
        "first_layer",
        "gemm",
        "grouped_halves",
        "implicit_gemm",
        "implicit_tiles",
        "norm",
        "pool",
        "rnn",
    ),
    *("softmax", "spatial", "to_image", "to_image_halves", "upsample"),
)


def all_kernels() -> Iterator[Kernel]:
    """A representative set of every family's kernels: name, parameters, how to build the function, threads a block."""
    for family in FAMILIES:
        yield from importlib.import_module(f"numbadnn.kernels.{family}").kernels()
