"""The descriptors and the C calls of a recurrent network under one of cuDNN's algorithms.

``describe`` asks cuDNN what it needs for a problem and where it keeps what lies where in w; a refusal comes as CudnnError.
``Calls`` holds that with the pieces of a plan's workspace, and issues the calls. Source: cudnn_adv.h.
"""

from __future__ import annotations

import ctypes
import weakref
from dataclasses import dataclass
from typing import Any

from numbadnn.cudnn import lib
from numbadnn.cudnn._enums import (
    DATA_TYPE,
    DataType,
    DirectionMode,
    ForwardMode,
    MathType,
    RNNAlgo,
    RNNBiasMode,
    RNNDataLayout,
    RNNInputMode,
    RNNMode,
    WgradMode,
)
from numbadnn.kernels.copies.pack import padded
from numbadnn.problem import Policy
from numbadnn.problems.rnn import RnnProblem

PADDED_IO = 1
#: the lengths on the device: cuDNN 9 takes those of the descriptors and NULL here (tested with 9.19, different lengths)
LENGTHS = None


@dataclass(slots=True)
class Descriptors:
    """What the calls need of a problem, alive as long as this is; sizes in bytes."""

    rnn: int
    x: int
    y: int
    state: int
    weights: int
    workspace: int
    reserve: int
    #: (our first byte, cuDNN's, bytes) of every stretch of w, one where the layouts agree
    stretches: list[tuple[int, int, int]]
    keep: Any


def math_type(dtype: str, policy: Policy) -> MathType:
    """Tensor cores for float16, TF32 only where the option allows it."""
    if dtype == "float16":
        return MathType.TENSOR_OP
    return MathType.DEFAULT if policy.fp32_precision == "tf32" else MathType.FMA


def describe(
    library: lib.Library, handle: int, problem: RnnProblem, policy: Policy, training: bool, algorithm: RNNAlgo
) -> Descriptors:
    """Every descriptor of a problem, and what cuDNN says about sizes and the layout of w.

    CudnnError with a status of 2000 or 3000 where cuDNN has not this algorithm for it.
    """
    n, kind = problem.network, int(DATA_TYPE[problem.dtype])
    keep: list[Any] = []

    def create(what: str) -> int:
        out = ctypes.c_void_p()
        library.call(f"cudnnCreate{what}Descriptor", ctypes.byref(out))
        assert out.value is not None
        keep.append(out)
        weakref.finalize(out, getattr(library.functions, f"cudnnDestroy{what}Descriptor"), out.value).atexit = False
        return out.value

    dropout = create("Dropout")
    library.call("cudnnSetDropoutDescriptor", dropout, handle, 0.0, None, 0, 4242)
    rnn = create("RNN")
    library.call(
        "cudnnSetRNNDescriptor_v8", rnn, int(algorithm), int(RNNMode[n.rnn_mode.upper()]),
        int(RNNBiasMode.DOUBLE_BIAS), int(DirectionMode[n.direction_mode.upper()]),
        int(RNNInputMode[n.input_mode.upper()]), kind,
        int(DataType.DOUBLE if problem.dtype == "float64" else DataType.FLOAT), int(math_type(problem.dtype, policy)),
        problem.input_dim, n.hidden_size, n.hidden_size, n.num_layers, dropout, PADDED_IO if problem.lengths else 0,
    )  # fmt: skip
    lengths = (ctypes.c_int * problem.batch)(*(problem.lengths or (problem.steps,) * problem.batch))
    zero = ctypes.create_string_buffer(8)

    def data(width: int) -> int:
        made = create("RNNData")
        layout = int(RNNDataLayout.SEQ_MAJOR_UNPACKED)
        library.call(
            "cudnnSetRNNDataDescriptor", made, kind, layout, problem.steps, problem.batch, width, lengths, zero
        )
        return made

    x, y = data(problem.input_dim), data(n.hidden_size * n.directions)
    state = create("Tensor")
    shape = (n.num_layers * n.directions, problem.batch, n.hidden_size)
    strides = (shape[1] * shape[2], shape[2], 1)
    library.call("cudnnSetTensorNdDescriptor", state, kind, 3, (ctypes.c_int * 3)(*shape), (ctypes.c_int * 3)(*strides))
    mode = ForwardMode.TRAINING if training else ForwardMode.INFERENCE
    work, reserve, weights = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_size_t()
    library.call("cudnnGetRNNTempSpaceSizes", handle, rnn, int(mode), x, ctypes.byref(work), ctypes.byref(reserve))
    library.call("cudnnGetRNNWeightSpaceSize", handle, rnn, ctypes.byref(weights))
    stretches = _stretches(library, handle, rnn, problem, weights.value, create("Tensor"), create("Tensor"))
    return Descriptors(rnn, x, y, state, weights.value, work.value, reserve.value, stretches, (keep, lengths, zero))


def _stretches(
    library: lib.Library, handle: int, rnn: int, problem: RnnProblem, size: int, matrix: int, bias: int
) -> list[tuple[int, int, int]]:
    """Where cuDNN keeps what lies where in w: neighbouring stretches joined."""
    n, base, itemsize = problem.network, 1 << 20, problem.inputs[0].itemsize
    rows = n.hidden_size
    pairs = []
    for index, (at_w, at_r, at_bw, at_br) in enumerate(n.blocks(problem.input_dim)[0]):
        width = n.in_dim(index // n.directions, problem.input_dim)
        for k in range(2 * n.gates):
            m, b = ctypes.c_void_p(), ctypes.c_void_p()
            library.call(
                "cudnnGetRNNWeightParams", handle, rnn, index, size, base, k, matrix, ctypes.byref(m), bias,
                ctypes.byref(b),
            )  # fmt: skip
            first, own_bias, columns = (at_w, at_bw, width) if k < n.gates else (at_r, at_br, n.hidden_size)
            gate = k % n.gates
            if m.value is not None and first >= 0:
                pairs.append((first + gate * rows * columns, m.value - base, rows * columns))
            if b.value is not None:
                pairs.append((own_bias + gate * rows, b.value - base, rows))
    joined: list[tuple[int, int, int]] = []
    for ours, theirs, count in sorted(pairs):
        stretch = (ours * itemsize, theirs, count * itemsize)
        if joined and joined[-1][0] + joined[-1][2] == stretch[0] and joined[-1][1] + joined[-1][2] == stretch[1]:
            joined[-1] = (*joined[-1][:2], joined[-1][2] + stretch[2])
        else:
            joined.append(stretch)
    return joined


class Calls:
    """The C calls of one plan. ``at`` are its pieces of the workspace, as byte offsets."""

    def __init__(self, problem: RnnProblem, policy: Policy, training: bool, algorithm: RNNAlgo) -> None:
        from numbadnn.gpu import context as _context
        from numbadnn.gpu import driver as _driver

        self.library, self.device, self.problem = lib.load(), policy.device, problem
        with _context.ensure_context(policy.device):
            self.handle = lib.handle(self.library, policy.device)
            self.d = describe(self.library, self.handle.value, problem, policy, training, algorithm)
        self.driver, self.workspace_bytes = _driver.library(), 0
        self.at: dict[str, int] = {}
        size = problem.inputs[0].size * problem.inputs[0].itemsize
        self.converts = self.d.stretches != [(0, 0, size)] or self.d.weights != size  # all of its space is written
        self.reserve("work", self.d.workspace)
        if problem.steps and self.d.weights and self.converts:
            self.reserve("w", self.d.weights)

    def reserve(self, name: str, nbytes: int) -> None:
        """Set a piece of the workspace apart."""
        self.at[name] = self.workspace_bytes
        self.workspace_bytes += padded(nbytes)

    def zero(self, address: int, nbytes: int, stream: int) -> None:
        from numbadnn.gpu import driver as _driver

        _driver.call("cuMemsetD8Async", address, ctypes.c_ubyte(0), nbytes, stream)

    def weights(self, w: int, workspace: int, stream: int) -> int:
        """w as cuDNN lays it out."""
        from numbadnn.gpu import driver as _driver

        if not self.converts:
            return w
        target = workspace + self.at["w"]
        for ours, theirs, nbytes in self.d.stretches:
            _driver.call("cuMemcpyDtoDAsync_v2", target + theirs, w + ours, nbytes, stream)
        return target

    def gather(self, dw: int, theirs: int, stream: int) -> None:
        """The inverse of ``weights``: dw out of cuDNN's layout."""
        from numbadnn.gpu import driver as _driver

        for at, start, nbytes in self.d.stretches:
            _driver.call("cuMemcpyDtoDAsync_v2", dw + at, theirs + start, nbytes, stream)

    def forward(self, mode: ForwardMode, a: dict[str, int], w: int, reserve: int, workspace: int) -> None:
        d = self.d
        self.library.call(
            "cudnnRNNForward", self.handle.value, d.rnn, int(mode), LENGTHS, d.x, a["x"], d.y, a["y"],
            d.state, a["hx"], a.get("hy"), d.state, a.get("cx"), a.get("cy"), d.weights, w, d.workspace,
            workspace + self.at["work"], d.reserve if reserve else 0, reserve or None,
        )  # fmt: skip

    def backward(self, a: dict[str, int], w: int, dw: int, workspace: int) -> None:
        d = self.d
        space = (d.workspace, workspace + self.at["work"], d.reserve, a["reserve"])
        self.library.call(
            "cudnnRNNBackwardData_v8", self.handle.value, d.rnn, LENGTHS, d.y, a["y"], a["dy"], d.x, a["dx"], d.state,
            a["hx"], a.get("dhy"), a["dhx"], d.state, a.get("cx"), a.get("dcy"), a.get("dcx"), d.weights, w, *space,
        )  # fmt: skip
        self.library.call(
            "cudnnRNNBackwardWeights_v8", self.handle.value, d.rnn, int(WgradMode.ADD), LENGTHS, d.x, a["x"], d.state,
            a["hx"], d.y, a["y"], d.weights, dw, *space,
        )  # fmt: skip
