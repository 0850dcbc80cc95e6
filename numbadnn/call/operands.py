"""What every operation does with its arrays before and around the work: checks, output layout, casts, empty problems."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from numbadnn.arrays import View, view_of
from numbadnn.problem import ITEMSIZE, Policy, Spec
from numbadnn.registry import Executable, Impl

_ALIGN = 256


def named_view(array: Any, argument: str) -> View:
    """The view of an array; what its library says against it is raised with the argument's name in front."""
    try:
        return view_of(array, argument)
    except (TypeError, ValueError) as error:
        text = str(error)
        raise type(error)(text if text.startswith(argument) else f"{argument}: {text}") from None


def check_devices(views: list[View], names: tuple[str, ...]) -> None:
    """All arrays on the first one's device, else ValueError."""
    for view, name in zip(views[1:], names[1:], strict=False):
        if view.device != views[0].device:
            raise ValueError(
                f"{name}: expected an array on {place(views[0].device)}, where {names[0]} is, got one on "
                f"{place(view.device)}"
            )


def place(device: int) -> str:
    return f"CUDA device {device}" if device >= 0 else "the CPU"


def check_out(outs: tuple[Any, ...], views: list[View], name: str = "out") -> list[View]:
    """Views of the destinations: writable, on the inputs' device, no element stored twice; ``name``: the argument's."""
    for array in outs:
        if isinstance(array, list) or array is None:
            raise TypeError(
                f"{name}: expected an array, or a tuple of one for each result where there are several, got "
                f"{'None in a tuple' if array is None else 'a list'}"
            )
    out_views = [named_view(array, name) for array in outs]
    for view in out_views:
        if not view.library.takes_out:
            raise TypeError(f"{name}: expected None for {view.library.name} arrays, which are immutable")
        if view.readonly:
            raise ValueError(f"{name}: expected a writable array, got a read-only one")
        if view.device != views[0].device:
            raise ValueError(f"{name}: expected an array on {place(views[0].device)}, got one on {place(view.device)}")
        if _overlaps_itself(view):
            raise ValueError(f"{name}: expected an array whose elements do not overlap, got strides {view.strides}")
    return out_views


#: of arrays whose axes reach over each other, those of up to so many elements are looked at one by one
FEW_ELEMENTS = 1 << 20


def _overlaps_itself(view: View) -> bool:
    if 0 in view.shape:  # whatever its strides: NumPy's are often 0
        return False
    axes = sorted((abs(s), n) for s, n in zip(view.strides, view.shape, strict=True) if n > 1)
    reach, apart = 0, True
    for stride, n in axes:
        apart = apart and stride > reach
        reach += stride * (n - 1)
    count = math.prod(n for _, n in axes)
    if apart or not axes or axes[0][0] == 0 or count > min(FEW_ELEMENTS, reach + 1):
        return not apart
    places = np.zeros(1, np.int64)
    for stride, n in axes:
        places = (places[:, None] + stride * np.arange(n)).ravel()
    return len(np.unique(places)) < count


def result_dtype(views: list[View]) -> str:
    """The upcast of the inputs; float16 with bfloat16 is float32."""
    dtypes = {v.dtype for v in views}
    if dtypes == {"float16", "bfloat16"}:
        return "float32"
    return max(dtypes, key=lambda d: ITEMSIZE[d])


def input_spec(view: View, dtype: str) -> Spec:
    """The operand an implementation sees: the array itself, or the packed copy that a cast makes of it."""
    spec = view.spec()
    if view.dtype == dtype:
        return spec
    return Spec.of(dtype, spec.shape, spec.layout)


def output_spec(shape: tuple[int, ...], dtype: str, first: View, out_view: View | None, name: str = "out") -> Spec:
    """The destination: ``out`` if it was given (checked), else new: channels last if the first array is, else C order."""
    if out_view is None:
        spec = first.spec()
        return Spec.of(dtype, shape, spec.layout if len(shape) == len(spec.shape) else "")
    if out_view.shape != shape:
        raise ValueError(f"{name}: expected shape {shape}, got {out_view.shape}")
    if out_view.dtype != dtype:
        raise TypeError(f"{name}: expected dtype {dtype}, got {out_view.dtype}")
    return out_view.spec()


#: bytes that a process can address
ADDRESSABLE = 1 << 47
#: bytes of a new output that are asked of the operating system before anything is prepared for them
LARGE = 1 << 30


def check_memory(outputs: tuple[Spec, ...], device: int) -> None:
    """Outputs that are to be allocated fit memory, else ValueError or MemoryError, before a plan of that size is made."""
    for spec in outputs:
        nbytes = spec.size * spec.itemsize
        shown = f"out: a result of {spec.dtype} {spec.shape} takes {nbytes} bytes"
        if nbytes > ADDRESSABLE:
            raise ValueError(f"{shown}, more than the 2**47 that can be addressed")
        if device < 0 and nbytes > LARGE:
            try:
                np.empty(nbytes, np.uint8)  # reserves addresses, touches no page
            except MemoryError:
                raise MemoryError(f"{shown}, which this machine has not") from None


OVERLAPS_INPUT = "{}: expected memory of its own, got an array that overlaps an input"
OVERLAPS_OUTPUT = "{}: expected arrays with memory of their own, got two that overlap"


def overlap_checker(problem: Any, views: list[View]) -> Callable[[Any, Any], None]:
    """A function of (input addresses, output addresses): ValueError where an output overlaps an input or another output."""
    name = getattr(problem, "out_argument", "out")
    if views[0].device < 0:

        def check_arrays(inputs: Any, outputs: Any) -> None:
            for number, target in enumerate(outputs):
                others = ((OVERLAPS_INPUT, inputs), (OVERLAPS_OUTPUT, outputs[:number]))
                for error, array in ((e, a) for e, arrays in others for a in arrays):
                    if np.may_share_memory(target, array) and np.shares_memory(target, array):
                        raise ValueError(error.format(name))

        return check_arrays

    inputs_specs = [v.spec() for v in views]
    inputs_spans, outputs_spans = [byte_span(s) for s in inputs_specs], [byte_span(s) for s in problem.outputs]

    def check_addresses(inputs: Any, outputs: Any) -> None:
        known = list(zip(inputs_specs, inputs_spans, inputs, strict=True))
        for spec, (target_low, target_high), target in zip(problem.outputs, outputs_spans, outputs, strict=True):
            for number, (other, (low, high), address) in enumerate(known):
                near = address + low < target + target_high and target + target_low < address + high
                if near and _share(other, address, spec, target):
                    raise ValueError((OVERLAPS_INPUT if number < len(inputs) else OVERLAPS_OUTPUT).format(name))
            known.append((spec, (target_low, target_high), target))

    return check_addresses


def byte_span(spec: Spec) -> tuple[int, int]:
    low, high = spec.span
    return low * spec.itemsize, (high + 1) * spec.itemsize if spec.size else 0


def check_apart(outs: tuple[Any, ...], views: list[View]) -> None:
    """ValueError where a destination has memory in common with an array that one step of several reads, or with another one."""
    targets = check_out(outs, views)
    for number, target in enumerate(targets):
        for others, error in ((views, OVERLAPS_INPUT), (targets[:number], OVERLAPS_OUTPUT)):
            if any(_share(v.spec(), v.pointer, target.spec(), target.pointer) for v in others):
                raise ValueError(error.format("out"))


class _Ghost:
    """An array interface to addresses that nobody reads: NumPy's exact overlap test needs only the geometry."""

    def __init__(self, spec: Spec, address: int) -> None:
        self.__array_interface__ = {
            "shape": spec.shape,
            "strides": tuple(s * spec.itemsize for s in spec.strides),
            "typestr": f"|V{spec.itemsize}",
            "data": (address, False),
            "version": 3,
        }


def _share(one: Spec, address: int, other: Spec, target: int) -> bool:
    """Whether two arrays at these addresses have an element in common."""
    return np.shares_memory(np.asarray(_Ghost(one, address)), np.asarray(_Ghost(other, target)))


def with_casts(executable: Executable, problem: Any, views: list[View], device: int) -> Executable:
    """The same executable behind casts of the inputs whose dtype is not the problem's (mixed dtypes upcast)."""
    casts = [
        (i, spec, view)
        for i, (spec, view) in enumerate(zip(problem.inputs, views, strict=True))
        if spec.dtype != view.dtype and spec.size
    ]
    if not casts:
        return executable
    executable.facts["casts"] = [f"{v.dtype} -> {s}" for _, s, v in casts]
    inner = executable.run
    if device < 0:
        from numbadnn.arrays.numpy_ import numpy_dtype, strided_empty

        packed = [(i, spec) for i, spec, _ in casts]  # without the views, which hold the arrays of this call

        def run_on_cpu(inputs: Any, outputs: Any, workspace: Any, stream: Any) -> None:
            arrays = list(inputs)
            for i, spec in packed:
                arrays[i] = strided_empty(spec)
                arrays[i][...] = inputs[i].astype(numpy_dtype(spec.dtype))
            inner(tuple(arrays), outputs, workspace, stream)

        executable.run = run_on_cpu
        return executable
    from numbadnn.kernels.copies.copy import plan_copy

    steps, offset = [], _aligned(executable.workspace_bytes)
    for i, spec, view in casts:
        steps.append((i, offset, plan_copy(view.spec(), spec, (0,) * len(spec.shape), device)))
        offset += _aligned(spec.size * spec.itemsize)
    executable.workspace_bytes = offset

    def run_on_gpu(inputs: Any, outputs: Any, workspace: Any, stream: Any) -> None:
        addresses = list(inputs)
        for i, at, step in steps:
            step(inputs[i], workspace + at, stream)
            addresses[i] = workspace + at
        inner(tuple(addresses), outputs, workspace, stream)

    executable.run, executable.direct = run_on_gpu, None  # its own ``direct`` knows nothing of the casts
    return executable


def cast_bytes(problem: Any, views: list[View]) -> int:
    """What ``with_casts`` adds to the workspace of a plan on a GPU, and what it rounds that up by at most."""
    pairs = zip(problem.inputs, views, strict=True)
    cast = [spec.size * spec.itemsize for spec, view in pairs if spec.dtype != view.dtype and spec.size]
    return sum(map(_aligned, cast)) + (_ALIGN if cast else 0)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGN) * _ALIGN


#: stands for "nothing to compute": an operand of size zero; result = beta * out, which is zeros for beta = 0
EMPTY = Impl(
    op="*",
    backend="none",
    name="empty",
    supports=lambda problem, policy: "",
    plan=lambda problem, policy, config: plan_empty(problem, policy),
    rank=lambda problem: 0.0,
    determinism="gpu_to_gpu",
)


def is_empty(problem: Any) -> bool:
    """Whether there is nothing to compute, so that no implementation is asked."""
    return any(s.size == 0 for s in (*problem.inputs, *problem.outputs))


def plan_empty(problem: Any, policy: Policy) -> Executable:
    """Scale or zero the outputs, what a sum of nothing is; or the problem's ``empty_values``, a number an output.

    An alpha that is not finite makes NaN of a sum of nothing, and so of the result, as it does of a sum of zeros.
    """
    nothing = 0.0 if math.isfinite(getattr(problem, "alpha", 1.0)) else math.nan
    beta = 0.0 if nothing else getattr(problem, "beta", 0.0)
    values = getattr(problem, "empty_values", (nothing,) * len(problem.outputs))
    specs = [s for s in problem.outputs if s.size]
    if not specs:
        return Executable(lambda inputs, outputs, workspace, stream: None, determinism="gpu_to_gpu")
    if policy.device < 0:

        def scale(inputs: Any, outputs: Any, workspace: Any, stream: Any) -> None:
            with np.errstate(all="ignore"):
                for target, value in zip(outputs, values, strict=True):
                    target[...] = value if beta == 0 else (target.astype(np.float64) * beta).astype(target.dtype)

        return Executable(scale, determinism="gpu_to_gpu")
    from numbadnn.kernels.copies.copy import plan_fill, plan_scale

    steps = [
        plan_scale(s, beta, policy.device) if beta else plan_fill(s, value, policy.device)
        for s, value in zip(problem.outputs, values, strict=True)
    ]

    def run(inputs: Any, outputs: Any, workspace: Any, stream: Any) -> None:
        for step, spec, target in zip(steps, problem.outputs, outputs, strict=True):
            if spec.size:
                step(target, stream)

    return Executable(run, determinism="gpu_to_gpu")
