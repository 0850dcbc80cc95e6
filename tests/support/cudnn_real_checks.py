"""The binding against the real libcudnn, without a GPU; run by test_cudnn_real.py in a process of its own.

Since 9.8 cuDNN accepts a *description* of a device instead of a handle: heuristics answer and plans are built for an
H200 that is not there. So everything up to execution is checked here: each attribute and type, the engines there are
for true convolution, groups, beta and odd shapes, and what their notes say.
"""

from __future__ import annotations

import json
from enum import IntEnum

import pytest

from numbadnn.cudnn import _find, lib
from numbadnn.cudnn._enums import Attr, DescriptorType, Type
from numbadnn.cudnn.graph import descriptors as _descriptors
from numbadnn.cudnn.graph import plan
from numbadnn.errors import CudnnError
from numbadnn.problem import Policy, Spec
from numbadnn.problems.conv import DIRECTIONS, ConvProblem

H200 = {
    "deviceName": "NVIDIA H200", "deviceVer": 900, "driverVer": 13000, "cudaDeviceId": 0,
    "totalGlobalMem": 150000000000,
    "multiProcessorCount": 132, "smCountOrigin": 0, "warpSize": 32, "maxGridSize": [2147483647, 65535, 65535],
    "maxBlockSize": [1024, 1024, 64], "regsPerBlock": 65536, "maxRegistersPerSM": 65536, "maxCtasPerSM": 32,
    "maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048, "maxSharedMemoryPerBlock": 49152,
    "maxSharedMemoryPerBlockOptin": 232448, "oversizedSharedMemoryPerBlock": 0, "reservedSharedMemoryPerBlock": 1024,
    "pciDeviceId": 9013, "isTccDriver": 0, "supportCoopLaunch": 1, "smClockRateKHz": 1980000,
    "memClockRateKHz": 3201000, "memoryBusWidth": 6144, "l2CacheSize": 62914560,
}  # fmt: skip


class More(IntEnum):
    """What describing a device takes beyond the binding's own tables."""

    TYPE_CHAR = 24
    DEVICEPROP_DESCRIPTOR = 38
    ENGINEHEUR_DEVICEPROP = 204
    EXECUTION_PLAN_DEVICEPROP = 407
    ENGINE_DEVICEPROP = 1307
    DEVICEPROP_JSON_REPRESENTATION = 2702


@pytest.fixture(scope="module")
def real():
    return lib.load()


@pytest.fixture
def h200(real, monkeypatch):
    """The library, with the described device wherever the binding names a handle."""
    text = json.dumps(H200).encode()
    device = _descriptors.Descriptor(real, More.DEVICEPROP_DESCRIPTOR)
    status = real.status(
        "cudnnBackendSetAttribute", device.pointer, More.DEVICEPROP_JSON_REPRESENTATION, More.TYPE_CHAR, len(text), text
    ) or real.status("cudnnBackendFinalize", device.pointer)
    if status:
        pytest.skip(f"cuDNN {real.version} does not take this description of a device: {real.explain(status)}")
    make = _descriptors.make

    def make_for_the_described(library, kind, attributes):
        attributes = [a for a in attributes if a[0] not in (Attr.OPERATIONGRAPH_HANDLE, Attr.EXECUTION_PLAN_HANDLE)]
        extra = {
            DescriptorType.ENGINE: More.ENGINE_DEVICEPROP,
            DescriptorType.ENGINEHEUR: More.ENGINEHEUR_DEVICEPROP,
            DescriptorType.EXECUTION_PLAN: More.EXECUTION_PLAN_DEVICEPROP,
        }.get(kind)
        if extra is not None:
            attributes.append((extra, Type.BACKEND_DESCRIPTOR, [device]))
        return make(library, kind, attributes)

    monkeypatch.setattr(_descriptors, "make", make_for_the_described)
    return real


NO_HANDLE = lib.Handle(0, 0)
GPU = Policy(device=0)


def problem_of(
    op, dtype, layout="", n=8, c=16, k=24, size=14, taps=3, padding=(1, 1), stride=1, dilation=1, groups=1, **rest
):
    out = (size + sum(padding) - ((taps - 1) * dilation + 1)) // stride + 1
    shapes = (n, c, size, size), (k, c // groups, taps, taps), (n, k, out, out)
    return ConvProblem(
        op, *[Spec.of(dtype, s, layout) for s in shapes], (padding, padding), (stride, stride), (dilation, dilation),
        groups=groups, **rest,
    )  # fmt: skip


SHAPES = {
    "3x3": {},
    "correlation": {"flip": False},
    "beta": {"alpha": 0.5, "beta": -1.0},
    "1x1": {"taps": 1, "padding": (0, 0)},
    "3 channels": {"c": 3, "k": 5},
    "groups": {"groups": 4},
    "depthwise": {"c": 8, "k": 8, "groups": 8},
    "strided, dilated": {"stride": 2, "dilation": 3, "padding": (3, 3)},
    "wide padding": {"taps": 5, "padding": (7, 7)},
}


@pytest.mark.parametrize("layout", ["", "nhwc"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("op", DIRECTIONS)
def test_an_admissible_engine_is_found_and_built(h200, op, dtype, layout):
    for name, shape in SHAPES.items():
        problem = problem_of(op, dtype, layout, **shape)
        graph = plan.graph(h200, NO_HANDLE, problem)
        chosen, passed = plan.first_admissible(h200, NO_HANDLE, graph, problem, GPU, GPU.workspace_limit)
        assert chosen is not None, (name, [c.refusal for c in passed])
        assert chosen.plan is not None and chosen.workspace is not None
        if dtype == "float32":
            assert "TENSOR_CORE" not in chosen.notes
        assert "NONDETERMINISTIC" not in chosen.notes


def test_heuristics_offer_tf32_first_for_float32_and_the_rules_leave_it_out(h200):
    problem = problem_of("conv2d", "float32", n=64, c=64, k=64, size=56)
    listed = plan.candidates(h200, NO_HANDLE, problem, GPU)
    assert "TENSOR_CORE" in listed[0].notes
    assert listed[0].refusal.startswith("TENSOR_CORE: not IEEE float32")
    assert any(not c.refusal for c in listed)
    graph = plan.graph(h200, NO_HANDLE, problem)
    tf32 = Policy(device=0, fp32_precision="tf32")
    chosen, _ = plan.first_admissible(h200, NO_HANDLE, graph, problem, tf32, 1 << 30)
    assert plan.arithmetic(chosen, problem) == "tf32_cut"


@pytest.mark.parametrize("op", DIRECTIONS)
def test_elementwise_has_engines_and_none_that_transforms(h200, op):
    problem = problem_of(op, "float32", n=32, c=64, k=64, size=56)
    kinds = {}
    for accuracy in ("normwise", "elementwise"):
        admitted = [c for c in plan.candidates(h200, NO_HANDLE, problem, Policy(0, accuracy=accuracy)) if not c.refusal]
        kinds[accuracy] = {plan.arithmetic(c, problem) for c in admitted}
    assert kinds["normwise"] - kinds["elementwise"] <= {"fft", "winograd"} and kinds["elementwise"] == {"ieee"}


def test_a_configuration_comes_back_by_its_numbers(h200):
    problem = problem_of("conv2d_grad_wrt_weights", "float16", "nhwc", n=32, c=64, k=64, size=28)
    built = [c for c in plan.candidates(h200, NO_HANDLE, problem, GPU) if not c.refusal and c.knobs]
    assert len({c.engine for c in built}) > 1
    graph = plan.graph(h200, NO_HANDLE, problem)
    for c in built[:6]:
        again = plan.configuration(h200, graph, c.engine, c.knobs)
        assert plan.finalise(h200, NO_HANDLE, again, 1 << 30), again.refusal
        assert (again.engine, again.knobs, again.notes, again.workspace) == (c.engine, c.knobs, c.notes, c.workspace)


def test_less_alignment_leaves_fewer_engines(h200):
    problem = problem_of("conv2d", "float16", "nhwc", n=32, c=64, k=64, size=28)
    odd = [Spec(s.dtype, s.shape, s.strides, aligned=False) for s in (problem.x, problem.w, problem.y)]
    unaligned = ConvProblem("conv2d", *odd, problem.padding)
    counts = [sum(not c.refusal for c in plan.candidates(h200, NO_HANDLE, p, GPU)) for p in (problem, unaligned)]
    assert 0 < counts[1] < counts[0]


def test_three_spatial_axes(h200):
    shapes = (2, 8, 6, 7, 8), (4, 8, 3, 3, 3), (2, 4, 6, 7, 8)
    for op in DIRECTIONS:
        problem = ConvProblem(op, *[Spec.of("float32", s) for s in shapes], ((1, 1),) * 3, (1, 1, 1), (1, 1, 1))
        graph = plan.graph(h200, NO_HANDLE, problem)
        chosen, _ = plan.first_admissible(h200, NO_HANDLE, graph, problem, GPU, 1 << 30)
        assert chosen is not None


def test_tensor_descriptors(real):
    made = plan.tensor(real, Spec.of("bfloat16", (2, 3, 4, 5), "nhwc"), 7)
    assert _descriptors.query(real, made, Attr.TENSOR_DIMENSIONS, Type.INT64) == [2, 3, 4, 5]
    assert _descriptors.query(real, made, Attr.TENSOR_STRIDES, Type.INT64) == [60, 1, 15, 3]
    assert _descriptors.query(real, made, Attr.TENSOR_DATA_TYPE, Type.DATA_TYPE, most=1) == [9]
    assert _descriptors.query(real, made, Attr.TENSOR_UNIQUE_ID, Type.INT64, most=1) == [7]


def test_scalars_of_the_wrong_width_are_refused(real):
    """float64 data wants alpha and beta as doubles; the library itself says so."""
    problem = problem_of("conv2d", "float64")
    operation = plan.operation(real, problem)
    attribute = Attr.OPERATION_CONVOLUTION_FORWARD_BETA
    assert _descriptors.query(real, operation, attribute, Type.DOUBLE, most=1) == [0]
    with pytest.raises(CudnnError):
        _descriptors.query(real, operation, attribute, Type.FLOAT, most=1)


def test_errors_carry_the_status_name_and_cudnns_message(real):
    with pytest.raises(CudnnError, match=r"TENSOR descriptor.*CUDNN_STATUS_BAD_PARAM\w* \(20\d\d\): \S") as caught:
        _descriptors.make(real, DescriptorType.TENSOR, [(Attr.TENSOR_DATA_TYPE, Type.INT64, [1])])
    assert caught.value.status // 1000 == 2
    assert real.explain(3001).startswith("CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN (3001)")


def test_softmax_descriptors(real):
    from numbadnn.cudnn import softmax

    for dtype in ("float16", "bfloat16", "float32", "float64"):
        assert softmax.tensor(real, dtype, (2, 3, 20, 1), (60, 20, 1, 1)).value


def test_all_parts_came_from_one_folder(h200):
    graph = plan.graph(h200, NO_HANDLE, problem_of("conv2d", "float32"))
    assert plan.first_admissible(h200, NO_HANDLE, graph, problem_of("conv2d", "float32"), GPU, 1 << 30)[0] is not None
    lib.check_single_folder()
    assert len(_find.mapped(every=True)) > 3
