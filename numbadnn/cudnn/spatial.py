"""The spatial transformer through cuDNN's C calls: implementation "cudnn.spatial".

Source: cudnn_ops.h. cuDNN knows packed grids and theta, images of one dtype with them, and 4-D image tensors with positive
strides. NVIDIA documents cudnnSpatialTfSamplerBackward as not reproducible, and cudnnSpatialTfGridGeneratorBackward was seen to
give other bits in repeated runs (cuDNN 9.19, H200): both run where the determinism asked for is ``not_guaranteed``, and
nowhere else.
"""

from __future__ import annotations

from typing import Any

from numbadnn.cudnn import lib
from numbadnn.cudnn._enums import DATA_TYPE, SamplerType
from numbadnn.cudnn._tensors import ints, made, scalars, strides_of, tensor, uncountable
from numbadnn.problem import Policy, Spec
from numbadnn.problems.spatial import OPERANDS, SpatialProblem
from numbadnn.registry import SEQUENCE, Executable, Impl, register

#: the most channels that PyTorch gives cuDNN's sampler, which has "not supported" beyond
MOST_CHANNELS = 1024
#: the most grids that it generates: a block of threads each along one axis, cudaErrorInvalidValue beyond (cuDNN 9.19, H200)
MOST_GRIDS = 65535
FUNCTIONS = {
    "spatialtf_grid": "cudnnSpatialTfGridGeneratorForward",
    "spatialtf_grid_grad": "cudnnSpatialTfGridGeneratorBackward",
    "spatialtf_sampler": "cudnnSpatialTfSamplerForward",
    "spatialtf_sampler_grad": "cudnnSpatialTfSamplerBackward",
}


def _images(problem: SpatialProblem) -> tuple[Spec, ...]:
    return tuple(s for s in (problem.img, problem.y, problem.dy, problem.dimg) if s is not None)


def _packed(problem: SpatialProblem) -> tuple[Spec, ...]:
    return tuple(s for s in (problem.theta, problem.grid, problem.dgrid, problem.dtheta) if s is not None)


def supports(problem: SpatialProblem, policy: Policy) -> str:
    """ "" if cuDNN's spatial transformer can do this, else the reason; asks no device."""
    specs = (*problem.inputs, *problem.outputs)
    dtypes = {s.dtype for s in specs}
    if len(dtypes) > 1:
        return f"cuDNN's spatial transformer takes one dtype for image and grid, got {', '.join(sorted(dtypes))}"
    dtype = specs[0].dtype
    if dtype == "bfloat16":
        return "cuDNN's spatial transformer has no bfloat16: its descriptor refuses it (cuDNN 9.19)"
    if dtype == "float16" and problem.op == "spatialtf_sampler_grad":
        return "cuDNN's sampler gradients of float16 are up to 5 times the bound off (cuDNN 9.19, H200)"
    if policy.determinism not in ("run_to_run", "not_guaranteed"):
        return f"cuDNN guarantees run_to_run at best, the option determinism asks for {policy.determinism}"
    if policy.precision in ("float16", "float32", "float64") and policy.precision != problem.accumulator:
        return f"cuDNN's spatial transformer computes {dtype} data in {problem.accumulator}, not in {policy.precision}"
    if not all(s.is_contiguous for s in _packed(problem)):
        return "cuDNN's spatial transformer takes theta and grid packed in C order only"
    images = _images(problem)
    if any(s <= 0 for spec in images for n, s in zip(spec.shape, spec.strides, strict=True) if n > 1):
        return "cuDNN's spatial transformer takes positive strides only"
    if too_large := uncountable(specs):
        return too_large
    if images and images[0].shape[1] > MOST_CHANNELS:
        return f"cuDNN's sampler takes up to {MOST_CHANNELS} channels, got {images[0].shape[1]}"
    if problem.op == "spatialtf_grid" and problem.outputs[0].shape[0] > MOST_GRIDS:
        return f"cuDNN generates up to {MOST_GRIDS} grids, got {problem.outputs[0].shape[0]}"
    if not images and any(1 in spec.shape[1:3] for spec in specs if spec.shape[-1] == 2):
        return "cuDNN's coordinate on an axis of one point is not 0 (cuDNN 9.19, H200)"
    if problem.img is not None and problem.dimg is not None and strides_of(problem.img) != strides_of(problem.dimg):
        return "cuDNN's spatial transformer gets one descriptor here for an image and its gradient"
    return ""


def _transformer(library: lib.Library, dtype: str, shape: tuple[int, ...]) -> Any:
    """A spatial transformer descriptor for an output of (N, C, H', W'), destroyed with the object returned."""
    out = made(library, "SpatialTransformer")
    library.call(
        "cudnnSetSpatialTransformerNdDescriptor",
        out.value,
        int(SamplerType.BILINEAR),
        int(DATA_TYPE[dtype]),
        4,
        ints(shape),
    )
    return out


def plan(problem: SpatialProblem, policy: Policy, config: Any) -> Executable:
    """Descriptors and scalars, bound into one callable."""
    from numbadnn.cudnn._call import prepare

    library = lib.load()
    dtype, images = problem.inputs[0].dtype, _images(problem)
    if images:
        shape = images[1].shape
    else:
        grid = problem.grid or problem.dgrid
        assert grid is not None
        shape = (grid.shape[0], 1, *grid.shape[1:3])
    tensors = [tensor(library, dtype, s.shape, strides_of(s)) for s in images[:2]]
    transformer = _transformer(library, dtype, shape)
    one, zero, memory = scalars(dtype)
    words = _arguments(problem.op, one, zero, [t.value for t in tensors])
    keep = (tensors, transformer, memory)
    issue = prepare(library, policy.device, problem.op, FUNCTIONS[problem.op], (transformer.value, *words), keep=keep)

    def run(inputs: tuple[int, ...], outputs: tuple[int, ...], workspace: int | None, stream: int | None) -> None:
        issue(stream or 0, *inputs, *outputs)

    facts: dict[str, Any] = {"call": FUNCTIONS[problem.op], "copies": [], "cudnn": library.version}
    return Executable(run=run, determinism=_guarantee(problem.op), facts=facts, direct=issue, summation=SEQUENCE)


def _arguments(op: str, one: int, zero: int, t: list[int]) -> tuple[int, ...]:
    """What follows the transformer in each call; the addresses are those of inputs, then outputs."""
    from numbadnn.cudnn._call import POINTER as A

    if op == "spatialtf_sampler":  # img, grid; y
        return one, t[0], A[0], A[1], zero, t[1], A[2]
    if op == "spatialtf_sampler_grad":  # img, grid, dy; dimg, dgrid
        return one, t[0], A[0], zero, t[0], A[3], one, t[1], A[2], A[1], zero, A[4]
    return A[0], A[1]


def _guarantee(op: str) -> str:
    return "not_guaranteed" if op.endswith("_grad") else "run_to_run"


def rank(problem: SpatialProblem) -> float:
    """An estimate in microseconds: launch, and memory at what cuDNN reached on an H200: most where an image has few channels."""
    few = problem.op == "spatialtf_sampler" and problem.img is not None and problem.img.shape[1] < 8
    return 6.0 + problem.bytes / (0.65e6 * problem.output.itemsize if few and problem.output.itemsize <= 4 else 1.0e6)


for _op in OPERANDS:
    register(
        Impl(
            op=_op,
            backend="cudnn",
            name="cudnn.spatial",
            supports=supports,
            plan=plan,
            rank=rank,
            arithmetic="ieee",
            determinism=_guarantee(_op),
        )
    )
