"""The sequence of graph calls against the recording fake: order, attributes, types, counts; which engines get in."""

from __future__ import annotations

import ctypes
import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
from fake_cudnn import BAD_PARAM, CONTEXT, NOT_SUPPORTED, FakeCudnn, Item, engine

from numbadnn.cudnn import lib
from numbadnn.cudnn._enums import Attr, BehaviorNote, DataType, DescriptorType, HeurMode, NumericalNote, Type
from numbadnn.cudnn.graph import plan
from numbadnn.errors import CudnnError, NumbaDNNError
from numbadnn.problem import Policy, Spec
from numbadnn.problems.conv import ConvProblem
from numbadnn.registry import accuracy_of

GPU = Policy(device=0)
A, K, T, N = Attr, DescriptorType, Type, NumericalNote


def problem_of(op="conv2d", dtype="float32", **rest):
    specs = [Spec.of(dtype, s) for s in ((2, 4, 6, 7), (6, 2, 3, 3), (2, 6, 3, 3))]
    return ConvProblem(op, *specs, ((1, 1), (0, 0)), (2, 1), (1, 2), groups=2, **rest)


@pytest.fixture
def fake(monkeypatch):
    made = FakeCudnn().install(monkeypatch)
    yield made
    assert not made.problems


def built(fake, problem):
    """The finalised items of a graph: kind -> attributes."""
    handle = lib.handle(fake.library, 0)
    keep = plan.graph(fake.library, handle, problem)
    return keep, {item.kind: item for item in fake.items.values()}


def test_the_convolution_descriptor(fake):
    _keep, items = built(fake, problem_of(flip=False))
    assert items[K.CONVOLUTION].attributes == {
        A.CONVOLUTION_SPATIAL_DIMS: (T.INT64, [2]),
        A.CONVOLUTION_COMP_TYPE: (T.DATA_TYPE, [DataType.FLOAT]),
        A.CONVOLUTION_CONV_MODE: (T.CONVOLUTION_MODE, [1]),
        A.CONVOLUTION_DILATIONS: (T.INT64, [1, 2]),
        A.CONVOLUTION_FILTER_STRIDES: (T.INT64, [2, 1]),
        A.CONVOLUTION_PRE_PADDINGS: (T.INT64, [1, 0]),
        A.CONVOLUTION_POST_PADDINGS: (T.INT64, [1, 0]),
    }
    del _keep, items
    _keep, items = built(fake, problem_of(flip=True))
    assert items[K.CONVOLUTION].get(A.CONVOLUTION_CONV_MODE) == [0]


@pytest.mark.parametrize(
    ("dtype", "stored", "compute", "scalar"),
    [("float16", 2, 0, T.FLOAT), ("bfloat16", 9, 0, T.FLOAT), ("float32", 0, 0, T.FLOAT), ("float64", 1, 1, T.DOUBLE)],
)
@pytest.mark.parametrize("op", ["conv2d", "conv2d_grad_wrt_inputs", "conv2d_grad_wrt_weights"])
def test_types_of_data_compute_and_scalars(fake, op, dtype, stored, compute, scalar):
    _keep, items = built(fake, problem_of(op, dtype, alpha=0.1, beta=-3.0))
    assert items[K.TENSOR].attributes[A.TENSOR_DATA_TYPE] == (T.DATA_TYPE, [stored])
    assert items[K.CONVOLUTION].get(A.CONVOLUTION_COMP_TYPE) == [compute]
    *_, alpha, beta, kind = fake.operation(items[K.OPERATIONGRAPH])
    assert (alpha[0], beta) == (scalar, (scalar, [-3.0]))
    # a float alpha is rounded to float, a double one is not
    assert alpha[1] == [0.1 if scalar == T.DOUBLE else float(np.float32(0.1))]
    assert kind == plan._OPERATION[op][0]


def test_tensors_and_operation_name_the_right_operands(fake):
    for op in ("conv2d", "conv2d_grad_wrt_inputs", "conv2d_grad_wrt_weights"):
        _keep, items = built(fake, problem_of(op))
        _, x, w, y, *_ = fake.operation(items[K.OPERATIONGRAPH])
        found = [(t.get(A.TENSOR_UNIQUE_ID), t.get(A.TENSOR_DIMENSIONS), t.get(A.TENSOR_STRIDES)) for t in (x, w, y)]
        assert found == [
            ([1], [2, 4, 6, 7], [168, 42, 7, 1]),
            ([2], [6, 2, 3, 3], [18, 9, 3, 1]),
            ([3], [2, 6, 3, 3], [54, 9, 3, 1]),
        ]
        assert x.get(A.TENSOR_BYTE_ALIGNMENT) == [16]
        del _keep, items


def test_alignment_promised_is_the_item_size_for_unaligned_arrays(fake):
    problem = problem_of(dtype="float16")
    problem = dataclasses.replace(problem, w=dataclasses.replace(problem.w, aligned=False))
    _keep, items = built(fake, problem)
    _, x, w, y, *_ = fake.operation(items[K.OPERATIONGRAPH])
    assert [t.get(A.TENSOR_BYTE_ALIGNMENT) for t in (x, w, y)] == [[16], [2], [16]]


def test_a_refused_attribute_is_named_with_cudnns_message(fake):
    fake.failing["cudnnBackendSetAttribute"] = BAD_PARAM
    with pytest.raises(CudnnError, match=r"TENSOR_DATA_TYPE.*CUDNN_STATUS_2000 \(2000\): the fake said so") as caught:
        plan.tensor(fake.library, Spec.of("float32", (1, 1, 2, 2)), 1)
    assert caught.value.status == BAD_PARAM
    assert not fake.items or "cudnnBackendFinalize" not in fake.names()


def test_a_plan_that_finds_no_memory_is_no_refusal(monkeypatch):
    """A refusal is remembered, and memory may be there again a moment later."""
    candidate = SimpleNamespace(config=None, refusal="", plan=None, workspace=None)
    for status, wanted in ((4003, None), (4004, None), (4000, False), (3000, False)):

        def failing(*more, status=status):
            raise CudnnError(f"status {status}", status)

        monkeypatch.setattr(plan._descriptors, "make", failing)
        if wanted is None:
            with pytest.raises(CudnnError, match=f"status {status}"):
                plan.finalise(None, SimpleNamespace(value=0), candidate, 0)
        else:
            assert plan.finalise(None, SimpleNamespace(value=0), candidate, 0) is wanted
            assert candidate.refusal == f"cuDNN does not build it: status {status}"


def test_only_the_plan_that_is_used_is_finalised(fake):
    fake.engines = [engine(1, notes=(N.TENSOR_CORE,)), engine(2), engine(3), engine(4, modes=(HeurMode.FALLBACK,))]
    library, handle = fake.library, lib.handle(fake.library, 0)
    graph = plan.graph(library, handle, problem_of())
    chosen, passed = plan.first_admissible(library, handle, graph, problem_of(), GPU, 100)
    assert (chosen.engine, [c.engine for c in passed]) == (2, [1])
    assert fake.alive(K.EXECUTION_PLAN) == 1
    asked = [c for c in fake.calls if c[0] == "cudnnBackendCreateDescriptor" and c[1] == K.ENGINEHEUR]
    assert len(asked) == 1, "mode B and the fallback list were not needed"


def test_modes_are_asked_in_order_until_one_serves(fake):
    fake.engines = [
        engine(1, builds=False), engine(2, workspace=101), engine(5, modes=(HeurMode.B,), notes=(N.NONDETERMINISTIC,)),
        engine(2, workspace=101, modes=(HeurMode.FALLBACK,)), engine(7, modes=(HeurMode.FALLBACK,)),
    ]  # fmt: skip
    library, handle = fake.library, lib.handle(fake.library, 0)
    graph = plan.graph(library, handle, problem_of())
    chosen, passed = plan.first_admissible(library, handle, graph, problem_of(), GPU, 100)
    assert (chosen.engine, chosen.heuristic) == (7, "FALLBACK")
    reasons = {c.engine: c.refusal for c in passed}
    assert list(reasons) == [1, 2, 5], "the same configuration from a second mode counts once"
    assert "does not build" in reasons[1] and "CUDNN_STATUS_3000" in reasons[1]
    assert reasons[2] == "needs a workspace of 101 bytes, 100 are allowed"
    assert reasons[5].startswith("NONDETERMINISTIC")


@pytest.mark.parametrize(
    ("dtype", "note", "policy", "admitted"),
    [
        ("float32", N.TENSOR_CORE, {}, False),
        ("float32", N.DOWN_CONVERT_INPUTS, {}, False),
        ("float32", N.REDUCED_PRECISION_REDUCTION, {}, False),
        ("float32", N.TENSOR_CORE, {"fp32_precision": "tf32"}, True),
        ("float32", N.WINOGRAD, {}, True),
        ("float32", N.FFT, {}, True),
        ("float32", N.NONDETERMINISTIC, {}, False),
        ("float32", N.NONDETERMINISTIC, {"determinism": "not_guaranteed"}, True),
        ("float16", N.TENSOR_CORE, {}, True),
        ("float16", N.DOWN_CONVERT_INPUTS, {}, False),
        ("float16", N.REDUCED_PRECISION_REDUCTION, {}, False),
        ("float16", N.REDUCED_PRECISION_REDUCTION, {"precision": "as_input"}, True),
        ("bfloat16", N.REDUCED_PRECISION_REDUCTION, {"precision": "as_input"}, False),
        ("float64", N.TENSOR_CORE, {}, True),
        ("float64", N.DOWN_CONVERT_INPUTS, {}, False),
    ],
)
def test_notes_filter_engines(fake, dtype, note, policy, admitted):
    fake.engines = [engine(9, notes=(note,))]
    policy = dataclasses.replace(GPU, **policy)
    handle = lib.handle(fake.library, 0)
    (listed,) = plan.candidates(fake.library, handle, problem_of(dtype=dtype), policy)
    assert listed.notes == (note.name,)
    assert (listed.refusal == "") is admitted
    assert admitted or note.name in listed.refusal
    assert (listed.plan is not None) is admitted


def test_candidates_lists_all_with_knobs_behaviour_and_reasons(fake):
    fake.engines = [
        engine(1, knobs={2: 7, 12: 1}, workspace=8, behavior=(BehaviorNote.RUNTIME_COMPILATION,)),
        engine(1, knobs={2: 8}, workspace=8),
        engine(3, behavior=(BehaviorNote.REQUIRES_FILTER_INT8x32_REORDER,)),
        engine(4, notes=(77,)),
    ]
    handle = lib.handle(fake.library, 0)
    listed = plan.candidates(fake.library, handle, problem_of(), GPU)
    assert [(c.engine, c.knobs, c.workspace) for c in listed] == [
        (1, {2: 7, 12: 1}, 8), (1, {2: 8}, 8), (3, {}, None), (4, {}, 0),
    ]  # fmt: skip
    assert listed[0].behavior == ("RUNTIME_COMPILATION",)
    assert "INT8x32" in listed[2].refusal
    assert listed[3].notes == ("77",), "a note from a newer cuDNN is a number"


@pytest.mark.parametrize(
    ("dtype", "notes", "want"),
    [
        ("float32", (), "ieee"), ("float32", ("TENSOR_CORE",), "tf32_cut"), ("float32", ("FFT",), "fft"),
        ("float32", ("WINOGRAD_TILE_4x4",), "winograd"), ("float16", (), "tensor_core"),
        ("bfloat16", ("TENSOR_CORE",), "tensor_core"), ("float64", ("TENSOR_CORE",), "ieee"),
        ("float16", ("TENSOR_CORE", "REDUCED_PRECISION_REDUCTION"), "half"),
    ],
)  # fmt: skip
def test_arithmetic_follows_the_notes(dtype, notes, want):
    assert plan.arithmetic(plan.Candidate("A", 0, {}, notes, (), None), problem_of(dtype=dtype)) == want


# ---- the compiled shim -----------------------------------------------------------------------------------------------

PACK = ["cudnnBackendCreateDescriptor", *["cudnnBackendSetAttribute"] * 3, "cudnnBackendFinalize"]


@pytest.fixture
def table(fake):
    from numbadnn.cudnn import _shim

    library, handle = fake.library, lib.handle(fake.library, 0)
    graph = plan.graph(library, handle, problem_of())
    chosen, _ = plan.first_admissible(library, handle, graph, problem_of(), GPU, 100)
    current = ctypes.cast(fake.driver.cuCtxGetCurrent, ctypes.c_void_p).value
    words = _shim.graph_table(library, current, CONTEXT, handle.value, chosen.plan.pointer, [3, 1, 2])
    seen = []
    # instead of computing, look at the pack
    fake._real = fake.cudnnBackendExecute

    def execute(handle_value, plan_pointer, pack):
        seen.append((handle_value, plan_pointer, dict(fake.items[pack].attributes)))

    fake.functions.cudnnBackendExecute = type(fake.functions.cudnnBackendExecute)(
        fake._guard("cudnnBackendExecute", execute)
    )
    library.addresses.clear()
    words = _shim.graph_table(library, current, CONTEXT, handle.value, chosen.plan.pointer, [3, 1, 2])
    fake.calls.clear()
    return ctypes.addressof(words), seen, (words, chosen, handle)


def test_one_execution_makes_fills_finalises_executes_and_destroys_a_pack(fake, table):
    from numbadnn.cudnn._compiled import execute_plan

    address, seen, (_, chosen, handle) = table
    assert execute_plan(address, 0xABC0, 0x10, 2**46, 0x30, 0) == 0
    assert fake.names() == [*PACK, "cudnnBackendExecute", "cudnnBackendDestroyDescriptor"]
    assert fake.calls[0][1] == K.VARIANT_PACK
    assert [call[2:5] for call in fake.calls[1:4]] == [
        (A.VARIANT_PACK_UNIQUE_IDS, T.INT64, 3),
        (A.VARIANT_PACK_DATA_POINTERS, T.VOID_PTR, 3),
        (A.VARIANT_PACK_WORKSPACE, T.VOID_PTR, 1),
    ]
    assert seen == [
        (
            handle.value,
            chosen.plan.pointer,
            {
                A.VARIANT_PACK_UNIQUE_IDS: (T.INT64, [3, 1, 2]),
                A.VARIANT_PACK_DATA_POINTERS: (T.VOID_PTR, [0x10, 2**46, 0x30]),
                A.VARIANT_PACK_WORKSPACE: (T.VOID_PTR, [0xABC0]),
            },
        )
    ]
    assert fake.alive(K.VARIANT_PACK) == 0
    assert execute_plan(address, 0, 1, 2, 3, 0) == 0
    assert seen[1][2][A.VARIANT_PACK_WORKSPACE] == (T.VOID_PTR, [None]), "no workspace is a null pointer"


@pytest.mark.parametrize(
    ("function", "step"),
    [
        ("cudnnBackendCreateDescriptor", 1),
        ("cudnnBackendSetAttribute", 2),
        ("cudnnBackendFinalize", 5),
        ("cudnnBackendExecute", 6),
        ("cudnnBackendDestroyDescriptor", 7),
    ],
)
def test_after_an_error_the_pack_is_destroyed_and_the_step_known(fake, table, function, step):
    from numbadnn.cudnn._compiled import execute_plan
    from numbadnn.cudnn._shim import STEPS, failure

    fake.failing[function] = 4003
    code = execute_plan(table[0], 0, 1, 2, 3, 0)
    assert (code >> 32, code & 0xFFFFFFFF) == (step, 4003)
    error = failure(fake.library, code, "conv2d")
    assert isinstance(error, CudnnError) and error.status == 4003
    assert STEPS[step] in str(error)
    created = "cudnnBackendDestroyDescriptor" in fake.names()
    assert created == (step != 1)
    if step < 6:
        assert "cudnnBackendExecute" not in fake.names()


def test_another_context_is_noticed_before_anything_is_done(fake, table):
    from numbadnn.cudnn import _compiled, _shim

    fake.context = 0xBAD
    assert _compiled.execute_plan(table[0], 0, 1, 2, 3, 0) == _shim.WRONG_CONTEXT
    assert fake.calls == []
    # the cold path enters the primary context for the call, and leaves it again
    _shim.recover(fake.library, _shim.WRONG_CONTEXT, 0, "conv2d", None, _compiled.execute_plan, table[0], 0, 1, 2, 3, 0)
    assert fake.names().count("cudnnBackendExecute") == 1
    assert fake.context == 0xBAD


def test_a_context_that_cannot_be_entered_is_an_error(fake, table, monkeypatch):
    from contextlib import nullcontext

    from numbadnn.cudnn import _compiled, _shim
    from numbadnn.gpu import context as _context

    fake.context = 0xBAD
    monkeypatch.setattr(_context, "ensure_context", lambda device: nullcontext())
    with pytest.raises(NumbaDNNError, match="primary context of CUDA device 0 is not the one it was planned in"):
        _shim.recover(fake.library, -1, 0, "conv2d", None, _compiled.execute_plan, table[0], 0, 1, 2, 3, 0)


def test_the_fake_itself_refuses_wrong_types_and_missing_attributes(fake):
    """A stand-in that accepts everything would prove nothing."""
    out = ctypes.c_void_p()
    fake.library.call("cudnnBackendCreateDescriptor", int(K.TENSOR), ctypes.byref(out))
    value = ctypes.c_double(1)
    wrong = (out, int(A.TENSOR_UNIQUE_ID), int(T.DOUBLE), 1, ctypes.byref(value))
    assert fake.library.status("cudnnBackendSetAttribute", *wrong) == BAD_PARAM
    assert fake.library.status("cudnnBackendFinalize", out) == BAD_PARAM
    assert isinstance(fake.items.pop(out.value), Item)
    uneven = dataclasses.replace(problem_of(), padding=((1, 0), (0, 0)))
    with pytest.raises(CudnnError) as caught:
        plan.graph(fake.library, lib.handle(fake.library, 0), uneven)
    assert caught.value.status == NOT_SUPPORTED


def test_an_engine_that_hides_its_transform_is_classed_by_what_was_measured():
    op, dtype, number = next(iter(plan.UNNOTED_WINOGRAD))
    candidate = plan.Candidate("A", number, {}, (), (), None)
    assert plan.arithmetic(candidate, problem_of(op, dtype)) == "winograd"
    assert plan.arithmetic(candidate, problem_of("conv2d", dtype)) == "ieee"


@pytest.mark.parametrize(("notes", "knobs"), [
    ((N.FFT,), {}), ((N.WINOGRAD,), {}), ((N.WINOGRAD_TILE_6x6,), {}), ((), {plan.WINO_TILE: 2}),
])  # fmt: skip
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_elementwise_leaves_out_what_transforms(fake, notes, knobs, dtype):
    fake.engines = [engine(1, notes=notes, knobs=knobs), engine(2)]
    library, handle = fake.library, lib.handle(fake.library, 0)
    for accuracy, wanted in (("normwise", 1), ("elementwise", 2)):
        policy = Policy(0, accuracy=accuracy)
        problem = problem_of(dtype=dtype)
        chosen, passed = plan.first_admissible(
            library, handle, plan.graph(library, handle, problem), problem, policy, 100
        )
        assert chosen.engine == wanted and accuracy_of(plan.arithmetic(chosen, problem)) == accuracy
        assert all("the option accuracy asks for elementwise" in c.refusal for c in passed)


def test_elementwise_leaves_out_what_hides_its_transform(fake):
    direction, dtype, number = next(iter(plan.UNNOTED_WINOGRAD))
    candidate = plan.Candidate("A", number, {}, (), (), None)
    problem = problem_of(direction, dtype)
    assert "winograd" in plan.refusal(candidate, problem, Policy(0, accuracy="elementwise"))
    assert plan.refusal(candidate, problem, GPU) == ""
