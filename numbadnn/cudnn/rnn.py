"""Recurrent networks through cudnnRNNForward, cudnnRNNBackwardData_v8 and cudnnRNNBackwardWeights_v8: "cudnn.rnn".

Source: cudnn_adv.h. Both biases; the algorithm for small states where it serves, else the standard one. The weight
space is w itself where cuDNN lays it out as the specification does, which is asked of cuDNN for every matrix and
vector; where it does not, w is rearranged in the workspace. The data gradient comes before the weight gradient, which
only adds: dw is zeroed first. Sequences of different lengths are padded on both sides (CUDNN_RNN_PADDED_IO_ENABLED), in
any order.
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
from numbadnn.kernels.rnn_pack import padded, plan_packed
from numbadnn.ops.rnn import RnnProblem
from numbadnn.problem import Policy
from numbadnn.registry import Executable, Impl, register

NAME = "cudnn.rnn"
PADDED_IO = 1
#: the lengths on the device: cuDNN 9 takes those of the descriptors and NULL here (tested with 9.19, different lengths)
LENGTHS = None


def supports(problem: RnnProblem, policy: Policy) -> str:
    """ "" if cuDNN can do this, else the reason; asks no device."""
    if problem.made_by not in ("", NAME):
        return f"the reserve was written by {problem.made_by}, which alone can read it"
    if policy.determinism not in ("run_to_run", "not_guaranteed"):
        return f"cuDNN promises run_to_run at best, the option determinism asks for {policy.determinism}"
    accumulator = "float64" if problem.dtype == "float64" else "float32"
    if policy.precision in ("float16", "float32", "float64") and policy.precision != accumulator:
        return f"cuDNN computes {problem.dtype} networks in {accumulator}, not in {policy.precision}"
    return ""


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


def algorithm(problem: RnnProblem, policy: Policy, training: bool) -> RNNAlgo:
    """The persistent algorithm for small states, which is several times faster where it serves; limits as PyTorch's.

    Its sigmoid and tanh are off by up to 1e-5 (cuDNN 9.19, H200), which float16 does not show but float32 under ieee
    does. It takes sequences of one length and no float64. One algorithm serves a forward pass and its gradient, hence
    ``training``.
    """
    n = problem.network
    if n.has_cell or n.rnn_mode == "gru":
        limit = 128 if training else 192
    else:
        limit = 256 if training else 384
    coarse = problem.dtype == "float16" or (problem.dtype == "float32" and policy.fp32_precision == "tf32")
    small = n.hidden_size <= limit and problem.lengths is None and coarse
    return RNNAlgo.PERSIST_STATIC_SMALL_H if small else RNNAlgo.STANDARD


def describe(library: lib.Library, handle: int, problem: RnnProblem, policy: Policy, training: bool) -> Descriptors:
    """Every descriptor of a problem, and what cuDNN says about sizes and the layout of w."""
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
        "cudnnSetRNNDescriptor_v8", rnn, int(algorithm(problem, policy, training)), int(RNNMode[n.rnn_mode.upper()]),
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


def reserve_bytes(problem: RnnProblem, device: int) -> int:
    """The size of cuDNN's reserve for a forward problem, 0 where cuDNN cannot be used."""
    from numbadnn import cudnn
    from numbadnn.kernels import _context

    if not cudnn.available():
        return 0
    library = lib.load()
    with _context.ensure_context(device):
        sizes = [
            describe(
                library, lib.handle(library, device).value, problem, Policy(device, fp32_precision=p), True
            ).reserve
            for p in ("ieee", "tf32")
        ]
    return max(sizes)


class _Calls:
    """The C calls of one plan. ``at`` are its pieces of the workspace, as byte offsets."""

    def __init__(self, problem: RnnProblem, policy: Policy, training: bool) -> None:
        from numbadnn.kernels import _context, _driver

        self.library, self.device, self.problem = lib.load(), policy.device, problem
        with _context.ensure_context(policy.device):
            self.handle = lib.handle(self.library, policy.device)
            self.d = describe(self.library, self.handle.value, problem, policy, training)
        self.driver, self.workspace_bytes = _driver.library(), 0
        self.at: dict[str, int] = {}
        size = problem.inputs[0].size * problem.inputs[0].itemsize
        self.converts = self.d.stretches != [(0, 0, size)]
        self.reserve("work", self.d.workspace)
        if problem.steps and self.d.weights and self.converts:
            self.reserve("w", self.d.weights)

    def reserve(self, name: str, nbytes: int) -> None:
        """Set a piece of the workspace apart."""
        self.at[name] = self.workspace_bytes
        self.workspace_bytes += padded(nbytes)

    def zero(self, address: int, nbytes: int, stream: int) -> None:
        from numbadnn.kernels import _driver

        _driver.call("cuMemsetD8Async", address, ctypes.c_ubyte(0), nbytes, stream)

    def weights(self, w: int, workspace: int, stream: int) -> int:
        """w as cuDNN lays it out."""
        from numbadnn.kernels import _driver

        if not self.converts:
            return w
        target = workspace + self.at["w"]
        for ours, theirs, nbytes in self.d.stretches:
            _driver.call("cuMemcpyDtoDAsync_v2", target + theirs, w + ours, nbytes, stream)
        return target

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


def plan(problem: RnnProblem, policy: Policy, config: Any) -> Executable:
    """Descriptors and workspace, bound into one callable; operands with gaps are copied."""
    made = plan_packed(problem, policy.device, lambda inner: _plan(inner, policy))
    made.arithmetic = arithmetic(problem, policy)
    return made


def arithmetic(problem: RnnProblem, policy: Policy) -> str:
    """The class whose bound the products keep."""
    if problem.dtype == "float16":
        return "tensor_core"
    return "tf32" if problem.dtype == "float32" and policy.fp32_precision == "tf32" else "ieee"


def _plan(problem: RnnProblem, policy: Policy) -> Executable:
    from numbadnn.kernels import _context

    backward, names = problem.op == "rnn_backward", (*problem.names, *problem.result_names)
    calls = _Calls(problem, policy, training=backward or problem.keeps)
    n, itemsize = problem.network, problem.inputs[0].itemsize
    nbytes = {name: s.size * s.itemsize for name, s in zip(names, (*problem.inputs, *problem.outputs), strict=True)}
    y_bytes = problem.steps * problem.batch * n.hidden_size * n.directions * itemsize
    alone = backward and "reserve" not in problem.names
    if alone:
        calls.reserve("y", y_bytes)
        calls.reserve("reserve", calls.d.reserve)
    if backward and "dy" not in problem.names:
        calls.reserve("dy", y_bytes)
    if backward and calls.converts:
        calls.reserve("dw", calls.d.weights)
    if problem.keeps and nbytes["reserve"] < calls.d.reserve:
        raise ValueError(f"reserve: expected at least {calls.d.reserve} bytes, got {nbytes['reserve']}")
    mode = ForwardMode.TRAINING if problem.keeps else ForwardMode.INFERENCE

    def run(inputs: tuple[int, ...], outputs: tuple[int, ...], workspace: int, stream: int) -> None:
        a = dict(zip(names, (*inputs, *outputs), strict=True))
        workspace, stream = workspace or 0, stream or 0
        with _context.ensure_context(policy.device):
            if stream != calls.handle.stream:
                calls.handle.set_stream(stream)
            w = calls.weights(a["w"], workspace, stream)
            if not backward:
                calls.forward(mode, a, w, a.get("reserve", 0), workspace)
                return
            for name in ("y", "reserve", "dy"):
                a.setdefault(name, workspace + calls.at.get(name, 0))
            if alone:
                calls.forward(ForwardMode.TRAINING, a, w, a["reserve"], workspace)
            if "dy" not in problem.names:
                calls.zero(a["dy"], y_bytes, stream)
            dw = workspace + calls.at["dw"] if calls.converts else a["dw"]
            calls.zero(dw, calls.d.weights, stream)
            calls.backward(a, w, dw, workspace)
            if calls.converts:
                from numbadnn.kernels import _driver

                for ours, theirs, count in calls.d.stretches:
                    _driver.call("cuMemcpyDtoDAsync_v2", a["dw"] + ours, dw + theirs, count, stream)

    facts: dict[str, Any] = {
        "cudnn": calls.library.version,
        "math": math_type(problem.dtype, policy).name,
        "copies": [],
    }
    facts["algorithm"] = algorithm(problem, policy, backward or problem.keeps).name
    if backward and n.rnn_mode == "rnn_relu":
        facts["slope at 0"] = (
            "1 (cuDNN 9.19): a gradient passes where the sum is exactly 0; elsewhere in numbadnn it is 0"
        )
    if calls.converts:
        facts["copies"] = [f"w in {len(calls.d.stretches)} stretches"]
    return Executable(run, workspace_bytes=calls.workspace_bytes, facts=facts)


def rank(problem: RnnProblem) -> float:
    """Microseconds, roughly, as measured on an H200: a step of the standard algorithm costs 9 whatever its size."""
    n = problem.network
    rate = {"float16": 3e8, "float32": 4e7, "float64": 3e7}[problem.dtype]
    small = algorithm(problem, Policy(0), problem.op == "rnn_backward") is RNNAlgo.PERSIST_STATIC_SMALL_H
    return 30 + (1.8 if small else 9) * problem.steps * n.num_layers * n.directions + problem.flops / rate


for _op in ("rnn_forward", "rnn_backward"):
    register(Impl(_op, "cudnn", NAME, supports, plan, rank, "ieee", "run_to_run"))
