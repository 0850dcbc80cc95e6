"""What is around an engine: refusals that need no device, copies of operands before it and after it."""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.cudnn.graph.forms import BUFFER_ALIGNMENT, Form, uncountable
from numbadnn.problem import Policy
from numbadnn.problems.conv import ConvProblem

Step = Callable[[int, int, int], None]


def static_refusal(problem: ConvProblem, policy: Policy) -> str:
    """Refusals that need no device."""
    if problem.unshared:
        return "cuDNN has no unshared convolution: its filters are the same at every position of the output"
    if policy.algo != "auto":
        return f"the graph API picks engines by heuristics; it has no algorithm named {policy.algo!r}"
    dtype, precision = problem.x.dtype, policy.precision
    if precision == "float16" or precision not in ("as_input_f32", "as_input", "float32", "float64"):
        return f"cuDNN's graphs compute 16-bit data in float32, precision={precision!r} asks for something else"
    if precision == "float64" and dtype != "float64":
        return f"cuDNN does not compute {dtype} data in float64"
    if precision == "float32" and dtype == "float64":
        return "cuDNN does not compute float64 data in float32"
    if problem.beta and dtype in ("float16", "bfloat16"):
        return f"cuDNN rounds the convolution to {dtype} before it adds beta * out, which rounds twice"
    if policy.determinism not in ("run_to_run", "not_guaranteed"):
        return f"cuDNN guarantees run_to_run at best, the option determinism asks for {policy.determinism}"
    return overrun(problem) or uncountable(problem)


def overrun(problem: ConvProblem) -> str:
    """Why an output might be written past its end ("" = it is not).

    cuDNN 9.19 did so once on an H200, of a pixel of 12 float16 channels in 3 groups. Its vectors have 8 of them.
    """
    output = getattr(problem, problem.output_name)
    if problem.groups == 1 or output.itemsize != 2 or any(n > 1 for n in output.shape[2:]):
        return ""
    each = output.shape[1] // (1 if problem.output_name == "w" else problem.groups)
    return f"cuDNN may write past one pixel of groups of {each} 16-bit channels, no multiple of 8" if each % 8 else ""


def running(direct: Callable[..., None]) -> Callable[..., None]:
    """A plan's ``run`` from its ``direct``."""

    def run(inputs: tuple[int, int], outputs: tuple[int], workspace: int | None, stream: int | None) -> None:
        direct(stream or 0, inputs[0], inputs[1], outputs[0], workspace or 0)

    return run


def aligned(n: int) -> int:
    return -(-n // BUFFER_ALIGNMENT) * BUFFER_ALIGNMENT


def surrounded(
    form: Form, issue: Callable[..., None], engine_bytes: int, device: int
) -> tuple[Callable[..., None], int]:
    """A plan's ``direct`` and the bytes of its workspace: ``issue`` alone, or between the copies of its form."""
    if not form.buffers:
        return issue, engine_bytes
    return with_copies(form, issue, engine_bytes, device), aligned(engine_bytes) + form.buffer_bytes


def with_copies(form: Form, issue: Callable[..., None], engine_bytes: int, device: int) -> Callable[..., None]:
    """``issue`` between copies in and the copy out; in the workspace are the engine's own first, then the buffers."""
    from numbadnn.kernels.copies.copy import plan_copy

    (first, second), output = form.problem.input_names, form.problem.output_name
    order = {first: 0, second: 1, output: 2}
    before: list[tuple[Step, int, int, int]] = []
    after: list[tuple[Step, int, int, int]] = []
    places: dict[int, int] = {}
    position = aligned(engine_bytes)
    for b in form.buffers:
        slot = order[b.name]
        places[slot] = position
        if b.name != output or form.problem.beta:
            before.append((plan_copy(b.outer, b.inner, b.shift, device), slot, b.outer_offset, position))
        if b.name == output:
            back = tuple(-s for s in b.shift)
            after.append((plan_copy(b.inner, b.outer, back, device), slot, b.outer_offset, position))
        position += b.nbytes

    def direct(stream: int, a: int, b: int, out: int, workspace: int) -> None:
        outside = (a, b, out)
        for step, slot, offset, at in before:
            step(outside[slot] + offset, workspace + at, stream)
        inside = [workspace + places[i] if i in places else outside[i] for i in range(3)]
        issue(stream, *inside, workspace)
        for step, slot, offset, at in after:
            step(workspace + at, outside[slot] + offset, stream)

    return direct
