"""cuDNN's C calls for convolutions, and the names that Theano gave their algorithms.

A ``Call`` is one direction: its functions, how its operands are ordered, its algorithms by name, which of these take three
spatial axes and which give the same bits in every run.
Source: cudnn_cnn.h; the names: docs/explanation/semantics.md#algorithms-by-name.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from numbadnn.cudnn._enums import (
    DATA_TYPE,
    BwdDataAlgo,
    BwdFilterAlgo,
    ConvolutionMode,
    DataType,
    FwdAlgo,
    MathType,
    TensorFormat,
)
from numbadnn.cudnn._tensors import ints, made
from numbadnn.cudnn.lib import Library
from numbadnn.problem import Spec
from numbadnn.problems.conv import OPERATIONS


@dataclass(frozen=True, slots=True)
class Call:
    """``order``: the operation's inputs and output by name, as cuDNN takes them; ``algorithms``: name -> number."""

    function: str
    stem: str
    order: tuple[str, str, str]
    algorithms: dict[str, int]
    in_3d: tuple[str, ...]
    deterministic: frozenset[int]


FORWARD = Call(
    "cudnnConvolutionForward",
    "ConvolutionForward",
    ("x", "w", "y"),
    {
        "none": FwdAlgo.IMPLICIT_GEMM, "small": FwdAlgo.IMPLICIT_PRECOMP_GEMM, "large": FwdAlgo.GEMM, "fft": FwdAlgo.FFT,
        "fft_tiling": FwdAlgo.FFT_TILING, "winograd": FwdAlgo.WINOGRAD, "winograd_non_fused": FwdAlgo.WINOGRAD_NONFUSED,
    },
    ("none", "small", "fft_tiling"),
    frozenset(FwdAlgo),
)  # fmt: skip
BACKWARD_DATA = Call(
    "cudnnConvolutionBackwardData",
    "ConvolutionBackwardData",
    ("w", "y", "x"),
    {
        "none": BwdDataAlgo.ALGO_0, "deterministic": BwdDataAlgo.ALGO_1, "fft": BwdDataAlgo.ALGO_FFT,
        "fft_tiling": BwdDataAlgo.ALGO_FFT_TILING, "winograd": BwdDataAlgo.ALGO_WINOGRAD,
        "winograd_non_fused": BwdDataAlgo.ALGO_WINOGRAD_NONFUSED,
    },
    ("none", "deterministic", "fft_tiling"),
    frozenset(BwdDataAlgo) - {BwdDataAlgo.ALGO_0},
)  # fmt: skip
BACKWARD_FILTER = Call(
    "cudnnConvolutionBackwardFilter",
    "ConvolutionBackwardFilter",
    ("x", "y", "w"),
    {
        "none": BwdFilterAlgo.ALGO_0, "deterministic": BwdFilterAlgo.ALGO_1, "fft": BwdFilterAlgo.ALGO_FFT,
        "small": BwdFilterAlgo.ALGO_3, "fft_tiling": BwdFilterAlgo.ALGO_FFT_TILING,
        "winograd_non_fused": BwdFilterAlgo.ALGO_WINOGRAD_NONFUSED,
    },
    ("none", "small"),
    frozenset(BwdFilterAlgo) - {BwdFilterAlgo.ALGO_0, BwdFilterAlgo.ALGO_3},
)  # fmt: skip


CALLS = {"forward": FORWARD, "grad_inputs": BACKWARD_DATA, "grad_weights": BACKWARD_FILTER}


def call_of(op: str) -> Call:
    """The call of conv2d, conv3d or one of their gradients."""
    return CALLS[OPERATIONS[op].direction]


class Performance(ctypes.Structure):
    """cudnnConvolution*AlgoPerf_t, the same for each direction."""

    _fields_ = [
        ("algo", ctypes.c_int),
        ("status", ctypes.c_int),
        ("time", ctypes.c_float),
        ("memory", ctypes.c_size_t),
        ("determinism", ctypes.c_int),
        ("math_type", ctypes.c_int),
        ("reserved", ctypes.c_int * 3),
    ]


def filters(library: Library, spec: Spec) -> Any:
    """The descriptor of packed filters, in C order or channels last."""
    out = made(library, "Filter")
    form = TensorFormat.NCHW if spec.is_contiguous else TensorFormat.NHWC
    kind, n = int(DATA_TYPE[spec.dtype]), len(spec.shape)
    library.call("cudnnSetFilterNdDescriptor", out.value, kind, int(form), n, ints(spec.shape))
    return out


def convolution(library: Library, problem: Any, compute: DataType, math: MathType) -> Any:
    """The convolution descriptor: symmetric padding, as the forms make it."""
    out = made(library, "Convolution")
    mode = ConvolutionMode.CONVOLUTION if problem.flip else ConvolutionMode.CROSS_CORRELATION
    padding = [low for low, _ in problem.padding]
    shape = (ints(padding), ints(problem.stride), ints(problem.dilation))
    library.call("cudnnSetConvolutionNdDescriptor", out.value, len(padding), *shape, int(mode), int(compute))
    library.call("cudnnSetConvolutionGroupCount", out.value, problem.groups)
    library.call("cudnnSetConvolutionMathType", out.value, int(math))
    return out


def workspace_bytes(library: Library, handle: int, call: Call, descriptors: tuple[Any, ...], algorithm: int) -> int:
    """What the algorithm needs; CudnnError where this GPU, type or shape has not got it."""
    first, second, third, convolution = (d.value for d in descriptors)
    size = ctypes.c_size_t()
    arguments = (handle, first, second, convolution, third, int(algorithm), ctypes.byref(size))
    library.call(f"cudnnGet{call.stem}WorkspaceSize", *arguments)
    return size.value


def ranked(library: Library, handle: int, call: Call, descriptors: tuple[Any, ...], timed: bool) -> list[Performance]:
    """cuDNN's algorithms, fastest first: by its heuristics, or timed by it on memory of its own; only those that ran."""
    first, second, third, convolution = (d.value for d in descriptors)
    most = 16
    found, count = (Performance * most)(), ctypes.c_int()
    name = f"cudnnFind{call.stem}Algorithm" if timed else f"cudnnGet{call.stem}Algorithm_v7"
    arguments = (handle, first, second, convolution, third, most, ctypes.byref(count), ctypes.byref(found))
    library.call(name, *arguments)
    return [p for p in found[: count.value] if p.status == 0]
