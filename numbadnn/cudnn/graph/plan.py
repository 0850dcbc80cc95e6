"""Convolutions as cuDNN graphs: the operation graph, the engine configurations heuristics offer, and a plan from one.

A graph of one operation is asked for engine configurations, mode A first, then B, then the fallback list. An engine's
numerical notes say what it does to the numbers, so each configuration is admitted or refused *before* anything is
built: float32 means IEEE float32, and a result that changes from run to run is not offered unasked. Only the
configuration that is taken is finalised into a plan (that compiles or loads kernels); ``candidates`` finalises all, to
list them.

The problem given here is already what cuDNN can express: packed operands, symmetric padding (see ``conv.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from numbadnn.cudnn import lib
from numbadnn.cudnn._enums import (
    DATA_TYPE,
    Attr,
    BehaviorNote,
    ConvolutionMode,
    DataType,
    DescriptorType,
    HeurMode,
    NumericalNote,
    Type,
    note_name,
)
from numbadnn.cudnn.graph import descriptors as _descriptors
from numbadnn.cudnn.graph.descriptors import Attribute, Descriptor
from numbadnn.cudnn.lib import Handle, Library
from numbadnn.errors import CudnnError
from numbadnn.kept import errata, shipped_errata
from numbadnn.problem import Policy, Spec
from numbadnn.problems.conv import ConvProblem
from numbadnn.registry import TRANSFORMS

MODES = (HeurMode.A, HeurMode.B, HeurMode.FALLBACK)

#: more than cuDNN has kinds of knobs
MOST_KNOBS = 64
#: CUDNN_KNOB_TYPE_WINO_TILE, which an engine has that transforms tiles
WINO_TILE = 10

#: float32 engines whose notes say nothing, but that change small integers, which a direct sum would not (cuDNN 9.19, H200)
UNNOTED_WINOGRAD = {("conv2d_grad_wrt_weights", "float32", 17)}

#: unique ids of the three operands in every graph
UID = {"x": 1, "w": 2, "y": 3}

#: what the tables here call a direction: engines have one number for two and three axes, and what is known of them holds for both
_IN_2D = {
    "forward": "conv2d",
    "grad_inputs": "conv2d_grad_wrt_inputs",
    "grad_weights": "conv2d_grad_wrt_weights",
}

#: operation -> (descriptor, start of its attributes, operand -> end of its attribute's name)
_OPERATION = {
    "conv2d": (
        DescriptorType.OPERATION_CONVOLUTION_FORWARD,
        "OPERATION_CONVOLUTION_FORWARD_",
        {"x": "X", "w": "W", "y": "Y"},
    ),
    "conv2d_grad_wrt_inputs": (
        DescriptorType.OPERATION_CONVOLUTION_BACKWARD_DATA,
        "OPERATION_CONVOLUTION_BWD_DATA_",
        {"x": "DX", "w": "W", "y": "DY"},
    ),
    "conv2d_grad_wrt_weights": (
        DescriptorType.OPERATION_CONVOLUTION_BACKWARD_FILTER,
        "OPERATION_CONVOLUTION_BWD_FILTER_",
        {"x": "X", "w": "DW", "y": "DY"},
    ),
}


@dataclass(slots=True)
class Candidate:
    """One engine configuration; ``refusal`` is "" or the reason in words, ``plan`` is there once finalised."""

    heuristic: str
    engine: int
    knobs: dict[int, int]
    notes: tuple[str, ...]
    behavior: tuple[str, ...]
    config: Descriptor
    refusal: str = ""
    workspace: int | None = None
    plan: Descriptor | None = field(default=None, repr=False)

    def facts(self) -> dict[str, Any]:
        """What identifies and describes it, without pointers."""
        return {
            "engine": self.engine,
            "knobs": dict(self.knobs),
            "notes": self.notes,
            "behavior": self.behavior,
            "heuristic": self.heuristic,
            "workspace": self.workspace,
        }


def tensor(library: Library, spec: Spec, uid: int) -> Descriptor:
    """A tensor descriptor; the alignment guaranteed to cuDNN is what the address really has."""
    attributes: list[Attribute] = [
        (Attr.TENSOR_DATA_TYPE, Type.DATA_TYPE, [int(DATA_TYPE[spec.dtype])]),
        (Attr.TENSOR_DIMENSIONS, Type.INT64, spec.shape),
        (Attr.TENSOR_STRIDES, Type.INT64, spec.strides),
        (Attr.TENSOR_UNIQUE_ID, Type.INT64, [uid]),
        (Attr.TENSOR_BYTE_ALIGNMENT, Type.INT64, [16 if spec.aligned else spec.itemsize]),
    ]
    return _descriptors.make(library, DescriptorType.TENSOR, attributes)


def convolution(library: Library, problem: ConvProblem) -> Descriptor:
    """The convolution descriptor: 16-bit data is computed in float32, the others in their own type."""
    compute = DataType.DOUBLE if problem.x.dtype == "float64" else DataType.FLOAT
    mode = ConvolutionMode.CONVOLUTION if problem.flip else ConvolutionMode.CROSS_CORRELATION
    attributes: list[Attribute] = [
        (Attr.CONVOLUTION_SPATIAL_DIMS, Type.INT64, [len(problem.stride)]),
        (Attr.CONVOLUTION_COMP_TYPE, Type.DATA_TYPE, [int(compute)]),
        (Attr.CONVOLUTION_CONV_MODE, Type.CONVOLUTION_MODE, [int(mode)]),
        (Attr.CONVOLUTION_DILATIONS, Type.INT64, problem.dilation),
        (Attr.CONVOLUTION_FILTER_STRIDES, Type.INT64, problem.stride),
        (Attr.CONVOLUTION_PRE_PADDINGS, Type.INT64, [low for low, _ in problem.padding]),
        (Attr.CONVOLUTION_POST_PADDINGS, Type.INT64, [high for _, high in problem.padding]),
    ]
    return _descriptors.make(library, DescriptorType.CONVOLUTION, attributes)


def operation(library: Library, problem: ConvProblem) -> Descriptor:
    """A convolution or one of its gradients as an operation, with alpha and beta as attributes.

    Groups are not named: cuDNN reads them off the channels of x and w.
    """
    kind, prefix, ends = _OPERATION[_IN_2D[problem.direction]]
    scalar = Type.DOUBLE if problem.x.dtype == "float64" else Type.FLOAT
    attributes: list[Attribute] = [
        (Attr[prefix + "CONV_DESC"], Type.BACKEND_DESCRIPTOR, [convolution(library, problem)]),
        *(
            (Attr[prefix + end], Type.BACKEND_DESCRIPTOR, [tensor(library, getattr(problem, name), UID[name])])
            for name, end in ends.items()
        ),
        (Attr[prefix + "ALPHA"], scalar, [problem.alpha]),
        (Attr[prefix + "BETA"], scalar, [problem.beta]),
    ]
    return _descriptors.make(library, kind, attributes)


def graph(library: Library, handle: Handle, problem: ConvProblem) -> Descriptor:
    """The operation graph of one convolution."""
    attributes: list[Attribute] = [
        (Attr.OPERATIONGRAPH_HANDLE, Type.HANDLE, [handle.value]),
        (Attr.OPERATIONGRAPH_OPS, Type.BACKEND_DESCRIPTOR, [operation(library, problem)]),
    ]
    return _descriptors.make(library, DescriptorType.OPERATIONGRAPH, attributes)


def configurations(library: Library, operation_graph: Descriptor) -> Iterator[Candidate]:
    """Every engine configuration, in the order of the heuristics, each (engine, knobs) once; nothing is finalised.

    CudnnError where no mode offers any and one failed over the question.
    """
    seen, failed = set(), None
    for mode in MODES:
        try:
            heuristic = _descriptors.make(
                library,
                DescriptorType.ENGINEHEUR,
                [
                    (Attr.ENGINEHEUR_OPERATION_GRAPH, Type.BACKEND_DESCRIPTOR, [operation_graph]),
                    (Attr.ENGINEHEUR_MODE, Type.HEUR_MODE, [int(mode)]),
                ],
            )
            configs = _descriptors.query_descriptors(
                library, heuristic, Attr.ENGINEHEUR_RESULTS, DescriptorType.ENGINECFG
            )
        except CudnnError as error:
            if not error.refuses:
                raise
            failed = error if error.status // 1000 != 3 else failed  # "not supported": this mode has nothing to say
            continue
        for config in configs:
            config.keep = (operation_graph,)
            candidate = describe(library, config, mode.name)
            identity = (candidate.engine, tuple(sorted(candidate.knobs.items())))
            if identity not in seen:
                seen.add(identity)
                yield candidate
    if failed is not None and not seen:
        raise failed


def describe(library: Library, config: Descriptor, heuristic: str) -> Candidate:
    """Read what an engine configuration is: index, knobs, notes."""
    kinds = DescriptorType
    engine = _descriptors.query_descriptors(library, config, Attr.ENGINECFG_ENGINE, kinds.ENGINE, most=1)[0]
    index = _descriptors.query(library, engine, Attr.ENGINE_GLOBAL_INDEX, Type.INT64, most=1)[0]
    notes = _descriptors.query(library, engine, Attr.ENGINE_NUMERICAL_NOTE, Type.NUMERICAL_NOTE)
    behavior = _descriptors.query(library, engine, Attr.ENGINE_BEHAVIOR_NOTE, Type.BEHAVIOR_NOTE)
    knobs = {}
    choices = _descriptors.query_descriptors(
        library, config, Attr.ENGINECFG_KNOB_CHOICES, kinds.KNOB_CHOICE, MOST_KNOBS
    )
    for choice in choices:
        knob = _descriptors.query(library, choice, Attr.KNOB_CHOICE_KNOB_TYPE, Type.KNOB_TYPE, most=1)[0]
        knobs[knob] = _descriptors.query(library, choice, Attr.KNOB_CHOICE_KNOB_VALUE, Type.INT64, most=1)[0]
    return Candidate(
        heuristic,
        index,
        knobs,
        tuple(note_name(NumericalNote, n) for n in sorted(notes)),
        tuple(note_name(BehaviorNote, n) for n in sorted(behavior)),
        config,
    )


def configuration(library: Library, operation_graph: Descriptor, engine: int, knobs: dict[int, int]) -> Candidate:
    """One engine configuration by its numbers, without asking heuristics: how a stored choice comes back."""
    engine_descriptor = _descriptors.make(
        library,
        DescriptorType.ENGINE,
        [
            (Attr.ENGINE_OPERATION_GRAPH, Type.BACKEND_DESCRIPTOR, [operation_graph]),
            (Attr.ENGINE_GLOBAL_INDEX, Type.INT64, [engine]),
        ],
    )
    choices = [
        _descriptors.make(
            library,
            DescriptorType.KNOB_CHOICE,
            [
                (Attr.KNOB_CHOICE_KNOB_TYPE, Type.KNOB_TYPE, [int(knob)]),
                (Attr.KNOB_CHOICE_KNOB_VALUE, Type.INT64, [value]),
            ],
        )
        for knob, value in knobs.items()
    ]
    attributes: list[Attribute] = [(Attr.ENGINECFG_ENGINE, Type.BACKEND_DESCRIPTOR, [engine_descriptor])]
    if choices:
        attributes.append((Attr.ENGINECFG_KNOB_CHOICES, Type.BACKEND_DESCRIPTOR, choices))
    return describe(library, _descriptors.make(library, DescriptorType.ENGINECFG, attributes), "stored")


def refusal(candidate: Candidate, problem: ConvProblem, policy: Policy) -> str:
    """Why the rules in force leave this engine out ("" = they do not)."""
    notes, dtype, named = candidate.notes, problem.x.dtype, (candidate.engine, candidate.knobs)
    if measured := shipped_errata.find("refused", "cudnn.graph", problem, lib.load().version, *named):
        return f"measured wrong: {measured}"
    if found := errata.against_engine(problem, policy, candidate.engine):
        return found
    if dtype == "float32" and policy.fp32_precision != "tf32":
        for note in ("TENSOR_CORE", "DOWN_CONVERT_INPUTS", "REDUCED_PRECISION_REDUCTION"):
            if note in notes:
                return f"{note}: not IEEE float32 (fp32_precision={policy.fp32_precision})"
    if dtype != "float32":
        if "DOWN_CONVERT_INPUTS" in notes:
            return f"DOWN_CONVERT_INPUTS: inputs would lose bits of their {dtype}"
        if "REDUCED_PRECISION_REDUCTION" in notes and not (policy.precision == "as_input" and dtype == "float16"):
            return (
                f"REDUCED_PRECISION_REDUCTION: sums of {dtype} in {dtype}, precision={policy.precision} asks for more"
            )
    if "NONDETERMINISTIC" in notes and policy.determinism != "not_guaranteed":
        return f"NONDETERMINISTIC: the option determinism asks for {policy.determinism}"
    if policy.accuracy == "elementwise" and (kind := arithmetic(candidate, problem)) in TRANSFORMS:
        return f"{kind}: errors as large as a tile's or an image's, the option accuracy asks for elementwise"
    for note in ("REQUIRES_FILTER_INT8x32_REORDER", "REQUIRES_BIAS_INT8x32_REORDER"):
        if note in candidate.behavior:
            return f"{note}: not for floating point"
    return ""


#: CUDNN_STATUS_INTERNAL_ERROR_HOST_ and _DEVICE_ALLOCATION_FAILED
NO_MEMORY = (4003, 4004)


def finalise(library: Library, handle: Handle, candidate: Candidate, limit: int) -> bool:
    """Build the plan of a candidate, at most ``limit`` bytes of workspace; else its ``refusal`` says why not."""
    try:
        plan = _descriptors.make(
            library,
            DescriptorType.EXECUTION_PLAN,
            [
                (Attr.EXECUTION_PLAN_HANDLE, Type.HANDLE, [handle.value]),
                (Attr.EXECUTION_PLAN_ENGINE_CONFIG, Type.BACKEND_DESCRIPTOR, [candidate.config]),
            ],
        )
        size = _descriptors.query(library, plan, Attr.EXECUTION_PLAN_WORKSPACE_SIZE, Type.INT64, most=1)
    except CudnnError as error:
        if error.status in NO_MEMORY:  # of now, not of this engine: it is no refusal, which would be remembered
            raise
        candidate.refusal = f"cuDNN does not build it: {error}"
        return False
    candidate.workspace = size[0] if size else 0
    if candidate.workspace > limit:
        candidate.refusal = f"needs a workspace of {candidate.workspace} bytes, {limit} are allowed"
        return False
    candidate.plan = plan
    return True


def first_admissible(
    library: Library, handle: Handle, operation_graph: Descriptor, problem: ConvProblem, policy: Policy, limit: int
) -> tuple[Candidate | None, list[Candidate]]:
    """The heuristics' first configuration that the rules admit and cuDNN builds, and those passed over before it."""
    passed: list[Candidate] = []
    for candidate in configurations(library, operation_graph):
        candidate.refusal = refusal(candidate, problem, policy)
        if not candidate.refusal and finalise(library, handle, candidate, limit):
            return candidate, passed
        passed.append(candidate)
    return None, passed


def candidates(
    library: Library, handle: Handle, problem: ConvProblem, policy: Policy, limit: int | None = None
) -> list[Candidate]:
    """Every configuration that heuristics offer, each finalised or with the reason why it is left out."""
    found = []
    for candidate in configurations(library, graph(library, handle, problem)):
        candidate.refusal = refusal(candidate, problem, policy)
        if not candidate.refusal:
            finalise(library, handle, candidate, policy.workspace_limit if limit is None else limit)
        found.append(candidate)
    return found


def arithmetic(candidate: Candidate, problem: ConvProblem) -> str:
    """The class of arithmetic that bounds the error of this engine."""
    dtype = problem.x.dtype
    if (_IN_2D[problem.direction], dtype, candidate.engine) in UNNOTED_WINOGRAD:
        return "winograd"
    if "FFT" in candidate.notes:
        return "fft"
    if WINO_TILE in candidate.knobs or any(note.startswith("WINOGRAD") for note in candidate.notes):
        return "winograd"
    if dtype in ("float16", "bfloat16"):
        return "half" if "REDUCED_PRECISION_REDUCTION" in candidate.notes else "tensor_core"
    lossy = {"TENSOR_CORE", "DOWN_CONVERT_INPUTS", "REDUCED_PRECISION_REDUCTION"}
    return "tf32_cut" if dtype == "float32" and lossy & set(candidate.notes) else "ieee"
