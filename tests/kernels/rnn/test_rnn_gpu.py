"""Recurrent networks on the GPU: what cuDNN refuses, how it lays out w, the tensor core's twin, captured graphs."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from folders import ROOT

from numbadnn import RNNBlock
from numbadnn.cudnn import _rnn_calls
from numbadnn.cudnn import rnn as cudnn_rnn
from numbadnn.cudnn._enums import RNNAlgo
from numbadnn.errors import CudnnError, NotSupportedError
from numbadnn.problem import Policy, Spec
from numbadnn.problems.rnn import make
from numbadnn.problems.rnn_network import Network
from numbadnn.registry import Executable


def problem(dtype="float32", hidden=64, lengths=None, mode="gru", keep=1, **network):
    n = Network(hidden, network.pop("layers", 1), mode, **network)
    shapes = {"w": (n.blocks(128)[1],), "x": (9, 8, 128), "hx": (n.num_layers * n.directions, 8, hidden)}
    return make("rnn_forward", n, {k: Spec.of(dtype, v) for k, v in shapes.items()}, lengths, keep)


GPU, TF32 = Policy(device=0), Policy(0, fp32_precision="tf32")
STANDARD, STATIC, SMALL = RNNAlgo.STANDARD, RNNAlgo.PERSIST_STATIC, RNNAlgo.PERSIST_STATIC_SMALL_H


def test_what_cudnn_refuses_and_which_algorithm_it_takes():
    assert cudnn_rnn.supports(problem(), GPU) == ""
    assert "batch_invariant" in cudnn_rnn.supports(problem(), Policy(0, determinism="batch_invariant"))
    assert "not in float64" in cudnn_rnn.supports(problem(), Policy(0, precision="float64"))
    chosen, both = cudnn_rnn.algorithms, {"direction_mode": "bidirectional"}
    assert chosen(problem(), GPU) == [STANDARD]  # the gates of the small one are too coarse for IEEE float32
    assert chosen(problem(hidden=128), GPU) == [SMALL, STANDARD]  # where sums are long, less than what these are off by
    assert chosen(problem(), TF32) == chosen(problem("float16"), GPU) == [SMALL, STANDARD]
    assert chosen(problem("float16", 256, mode="rnn_tanh", keep=0), GPU) == [SMALL, STANDARD]
    assert chosen(problem("float16", 192, keep=0), GPU) == [STANDARD]  # on tensor cores it is not known to be right
    for size, mode, algorithms in (
        (48, "lstm", [STANDARD]), (72, "lstm", [STANDARD]), (40, "gru", [STANDARD]), (44, "lstm", [SMALL, STANDARD]),
        (32, "lstm", [SMALL, STANDARD]), (120, "rnn_relu", [SMALL, STANDARD]), (200, "rnn_relu", [STANDARD]),
    ):  # fmt: skip
        for keep in (0, 1):
            assert chosen(problem("float16", size, mode=mode, keep=keep), GPU) == algorithms, (size, mode)
    assert chosen(problem(hidden=48, mode="lstm"), TF32) == [STANDARD]
    assert chosen(problem("float16", 192), GPU) == [STANDARD]
    assert chosen(problem("float16", lengths=[9, *[1] * 7]), GPU) == [STANDARD]
    assert chosen(problem("float64"), GPU) == [STANDARD]
    assert chosen(problem("float16", 512, mode="rnn_tanh", layers=2), GPU) == [STATIC, STANDARD]
    assert chosen(problem("float16", 512, mode="lstm"), GPU) == [STATIC, STANDARD]
    assert chosen(problem("float16", 512, mode="lstm", layers=2), GPU) == [STANDARD]
    assert chosen(problem("float16", mode="rnn_tanh", **both), GPU) == [STANDARD]
    assert chosen(problem("float16", mode="rnn_tanh", keep=0, **both), GPU) == [SMALL, STANDARD]


def test_an_algorithm_is_stored_and_a_reserve_has_one():
    stored = {"algorithm": "persist_static"}
    assert cudnn_rnn.restore(problem("float16"), GPU, stored) == stored
    for asked, config, says in (
        (problem("float16"), {"algorithm": "quick"}, "expected an algorithm out of standard, persist_static"),
        (problem("float16"), {"engine": 3}, "expected an algorithm"),
        (problem("float64"), stored, "one length, in float16 or float32"),
        (replace(problem("float16"), made_by="cudnn.rnn:standard"), stored, "written by cudnn.rnn:standard"),
    ):
        with pytest.raises(NotSupportedError, match=says):
            cudnn_rnn.restore(asked, GPU, config)
    small = replace(problem(), made_by="cudnn.rnn:persist_static_small_h")
    assert cudnn_rnn.supports(small, TF32) == "" and "1e-5" in cudnn_rnn.supports(small, GPU)
    assert "which alone can read it" in cudnn_rnn.supports(replace(problem(), made_by="numba.rnn"), GPU)


def test_what_cudnn_refuses_goes_to_its_next_algorithm(monkeypatch):
    def only(known, status):
        def planned(problem, policy, algorithm):
            if algorithm not in known:
                raise CudnnError("cudnnGetRNNTempSpaceSizes: not supported", status)
            return Executable(lambda *a: None, facts={"config": {"algorithm": algorithm.name.lower()}, "copies": []})

        monkeypatch.setattr(cudnn_rnn, "_plan", planned)

    only([STANDARD], 3000)
    made = cudnn_rnn.plan(problem("float16"), GPU)
    assert made.facts["config"] == {"algorithm": "standard"}
    assert made.facts["refused"] == ["PERSIST_STATIC_SMALL_H: cudnnGetRNNTempSpaceSizes: not supported"]
    with pytest.raises(NotSupportedError, match="PERSIST_STATIC: cudnnGet"):
        cudnn_rnn.plan(problem("float16"), GPU, {"algorithm": "persist_static"})
    only([STANDARD], 4000)  # not a refusal
    with pytest.raises(CudnnError):
        cudnn_rnn.plan(problem("float16"), GPU)


class LayoutOfWeights:
    """Stands for libcudnn where it is asked for the layout of w: ``place`` moves an element's offset to cuDNN's."""

    def __init__(self, network, width, place):
        self.network, self.width, self.place = network, width, place

    def call(self, name, handle, rnn, index, size, base, k, matrix, m, bias, b):
        assert name == "cudnnGetRNNWeightParams"
        n = self.network
        at_w, at_r, at_bw, at_br = n.blocks(self.width)[0][index]
        first, own, columns = (at_w, at_bw, self.width) if k < n.gates else (at_r, at_br, n.hidden_size)
        gate, rows = k % n.gates, n.hidden_size
        m._obj.value = base + 4 * self.place(first + gate * rows * columns) if first >= 0 else None
        b._obj.value = base + 4 * self.place(own + gate * rows)


@pytest.mark.parametrize("input_mode", ["linear", "skip"])
def test_cudnns_layout_of_w_is_ours_or_converted(input_mode):
    n = Network(4, 1, "gru", input_mode, "bidirectional")
    size = n.blocks(4)[1]
    shapes = {"w": (size,), "x": (2, 3, 4), "hx": (2, 3, 4)}
    asked = make("rnn_forward", n, {k: Spec.of("float32", v) for k, v in shapes.items()})

    def stretches(place):
        return _rnn_calls._stretches(LayoutOfWeights(n, 4, place), 1, 2, asked, 4 * size, 3, 4)

    assert stretches(lambda at: at) == [(0, 0, 4 * size)]
    biases = 4 * n.blocks(4)[0][0][2]
    apart = stretches(lambda at: at + 32 if 4 * at >= biases else at)
    assert apart == [(0, 0, biases), (biases, biases + 128, 4 * size - biases)]


PRODUCT = """
import numpy as np
from numbadnn.kernels.lang.cuda import cuda, f32, types, i32
from numbadnn.kernels.lang.mma import product
from numbadnn.kernels.build.simulated_block import launch
u32 = types.uint32 if hasattr(types, "uint32") else np.uint32
rng = np.random.default_rng(0)
A, B = rng.integers(-3, 4, (16, 16)).astype(np.float16), rng.integers(-3, 4, (8, 16)).astype(np.float16)
C = np.zeros((16, 8), np.float32)
left, right = A.view(np.uint32), B.view(np.uint32)

multiply = product("float16", 16)

def kernel(left, right, C):
    a, b, c = np.zeros(4, np.uint32), np.zeros(2, np.uint32), np.zeros(4, np.float32)
    lane = cuda.threadIdx.x
    g, t = lane >> 2, lane & 3
    a[0], a[1], a[2], a[3] = left[g, t], left[g + 8, t], left[g, t + 4], left[g + 8, t + 4]
    b[0], b[1] = right[g, t], right[g, t + 4]
    multiply(c, 0, a, 0, b, 0)
    C[g, 2 * t], C[g, 2 * t + 1], C[g + 8, 2 * t], C[g + 8, 2 * t + 1] = c[0], c[1], c[2], c[3]

launch(kernel, 1, 32, 0, left, right, C)
assert np.array_equal(C, A.astype(np.float32) @ B.T.astype(np.float32)), C
"""


BARRIER = """
from numbadnn.cases import parse
from numbadnn.validate import simulate
from numbadnn.kernels.rnn import persist
from numbadnn.validate.oracle import Trial

persist.EAGER_TILES = ()
for text in (
    "rnn_forward w=float32:4608 x=float32:2x2x2 hx=float32:1x2x32 mode=lstm hidden=32 layers=1",
    "rnn_backward w=float32:3456 x=float32:2x2x2 hx=float32:1x2x32 dy=float32:2x2x32 mode=gru hidden=32 layers=1",
):
    problem = parse(text)
    trial = Trial.of(problem, 0, "random")
    assert trial.compare(simulate.run(problem, trial.inputs), "ieee").ok, text
"""


#: what a pass keeps of several layers, each piece by itself in memory: the simulator raises where one is past the reserve
RESERVE = """
from numbadnn.cases import parse
from numbadnn.validate import simulate
from numbadnn.validate.oracle import Trial
from numbadnn.validate.reserve import backward_of, forward_of

for text in (
    "rnn_backward w=float32:36 x=float32:1x1x2 hx=float32:2x1x1 dy=float32:1x1x1 mode=lstm hidden=1 layers=2",
    "rnn_backward w=float32:54 x=float32:1x1x1 hx=float32:4x1x1 dy=float32:1x1x2 mode=gru hidden=1 layers=2"
    " direction=bidirectional",
    "rnn_backward w=float16:17 x=float16:2x1x2 hx=float16:4x1x1 dhy=float16:4x1x1 mode=rnn_relu hidden=1 layers=4",
):
    problem = parse(text)
    trial, forward = Trial.of(problem), forward_of(problem, 0)
    given = dict(zip(problem.names, trial.inputs))
    y, *_, kept = simulate.run(forward, [given[name] for name in forward.names])
    found = simulate.run(backward_of(problem, forward, "numba.rnn"), (*trial.inputs, y, kept))
    assert trial.compare(found, "ieee").ok, text
"""


#: what lies past the end of a sequence is no part of it
ENDS = """
import numpy as np
from numbadnn.cases import parse
from numbadnn.validate import simulate
from numbadnn.validate.oracle import Trial

for text in (
    "rnn_backward w=float32:36 x=float32:3x2x2 hx=float32:2x2x1 dy=float32:3x2x1 mode=lstm hidden=1 layers=2 lengths=3,1",
    "rnn_backward w=float16:24 x=float16:3x2x1 hx=float16:2x2x1 dy=float16:3x2x2 mode=gru hidden=1 layers=1"
    " direction=bidirectional lengths=2,3",
):
    problem = parse(text)
    trial = Trial.of(problem)
    given = dict(zip(problem.names, trial.inputs))
    for i, end in enumerate(problem.lengths):
        given["x"][end:, i] = given["dy"][end:, i] = np.nan
    assert trial.compare(simulate.run(problem, tuple(given.values())), "ieee").ok, text
"""


@pytest.mark.parametrize("script", [PRODUCT, BARRIER, RESERVE, ENDS], ids=["tensor core", "barrier", "reserve", "ends"])
def test_what_no_case_of_the_simulator_reaches(script):
    """The twin of the tensor core's product; steps that meet at a barrier (small states are passed on without one);
    gradients by way of a reserve; numbers past the end of a sequence."""
    pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def on_the_gpu(torch, dtype, mode, backend, *, hidden=128, layers=2, steps=7, batch=20, width=64):
    """(block, [w, x, hx(, cx)], dy) as CUDA tensors."""
    torch.manual_seed(0)
    block, kind = RNNBlock(dtype, hidden, layers, mode, backend=backend), getattr(torch, dtype)
    w = (torch.rand(block.get_param_size([1, width]), device="cuda") - 0.5) / hidden**0.5
    state = (layers, batch, hidden)
    shapes = [(steps, batch, width), state] + [state] * (mode == "lstm")
    arrays = [w.to(kind), *(torch.randn(s, device="cuda", dtype=kind) for s in shapes)]
    return block, arrays, torch.randn(steps, batch, hidden, device="cuda", dtype=kind)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize("mode", ["lstm", "gru", "rnn_tanh"])
@pytest.mark.parametrize("backend", ["cudnn", "numba"])
def test_repeated_runs_have_the_same_bits(backend, mode, dtype):
    torch = pytest.importorskip("torch")
    block, arrays, dy = on_the_gpu(torch, dtype, mode, backend)

    def passes():
        outputs, reserve = block.forward(*arrays)
        return [*outputs, *block.backward(reserve, dy)]

    first = passes()
    for _ in range(10):
        assert all(torch.equal(again, once) for again, once in zip(passes(), first, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("backend", ["cudnn", "numba"])
def test_a_captured_graph_does_it_again(backend, dtype):
    """After one warm call both passes are captured; a replay on other data equals a plain call, to the bit."""
    torch = pytest.importorskip("torch")
    block, arrays, dy = on_the_gpu(torch, dtype, "lstm", backend)

    def passes():
        outputs, reserve = block.forward(*arrays, lengths=[7, 1] * 10)
        return [*outputs, *block.backward(reserve, dy)]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        passes()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = passes()
    for a in (*arrays[1:], dy):
        a.normal_()
    graph.replay()
    torch.cuda.synchronize()
    for again, plain in zip(captured, passes(), strict=True):
        assert torch.equal(again, plain)


#: (H, T, N, inputs): launches of a microsecond, pieces of a reserve of some bytes; units of no warp, of one and a bit
SMALL_NETWORKS = (
    (1, 1, 1, 2), (2, 2, 2, 5), (3, 4, 1, 2), (4, 2, 2, 4), (8, 3, 4, 7), (17, 3, 4, 2), (32, 3, 3, 8), (33, 3, 1, 1)
)  # fmt: skip


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["cudnn", "numba"])
@pytest.mark.parametrize("direction", ["unidirectional", "bidirectional"])
@pytest.mark.parametrize("layers", [1, 2, 3, 4])
@pytest.mark.parametrize("mode", ["lstm", "gru", "rnn_tanh"])
def test_layers_by_way_of_a_reserve(mode, layers, direction, backend):
    """As the CPU has them, with the same bits each time, also where memory was used by others in between."""
    torch = pytest.importorskip("torch")
    rng, d, cells = np.random.default_rng(layers), 1 + (direction == "bidirectional"), 1 + (mode == "lstm")
    names = ("y", "hy", "cy")[: 1 + cells] + ("dw", "dx", "dhx", "dcx")[: 2 + cells]
    for hidden, steps, batch, width in SMALL_NETWORKS:
        arguments = ("float32", hidden, layers, mode, "linear", direction)
        cpu, gpu = (RNNBlock(*arguments, backend=name) for name in ("cpu", backend))
        states, output = [(layers * d, batch, hidden)] * cells, (steps, batch, hidden * d)
        shapes = (cpu.get_param_size([batch, width]),), (steps, batch, width), *states, output, *states
        arrays = [rng.standard_normal(shape).astype("float32") / 2 for shape in shapes]
        outputs, reserve = cpu.forward(*arrays[: 2 + cells])
        wanted, runs = [*outputs, *cpu.backward(reserve, *arrays[2 + cells :])], []
        given = [torch.from_numpy(a).cuda() for a in arrays]
        for _ in range(3):
            outputs, reserve = gpu.forward(*given[: 2 + cells])
            others = [torch.full((n,), float("nan"), device="cuda") for n in (64, 128, 512, 4096)]
            runs.append([*outputs, *gpu.backward(reserve, *given[2 + cells :])])
            assert all(bool(other.isnan().all()) for other in others), "memory of others was written"
        for name, want, *got in zip(names, wanted, *runs, strict=True):
            np.testing.assert_allclose(got[0].cpu(), want, rtol=1e-3, atol=1e-3, err_msg=f"{name} of {gpu}, {output}")
            assert all(torch.equal(again, got[0]) for again in got[1:]), f"other bits of {name} of {gpu}, {output}"
