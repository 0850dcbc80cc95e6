"""The spatial transformer on the GPU: grid and theta, the sampler, and its gradients in image and grid.

``numba.spatial_planes`` takes any strides and dtypes; ``numba.spatial_channels`` takes NHWC images some channels at a time,
``numba.spatial_staged`` NCHW images by way of shared memory. The gradient in the image gathers: points are sorted into the
cells of the image once for all channels (``device/bins.py``), then each pixel sums over the cells around it
(``device/gather.py``). ``channels`` and ``staged`` make the gradient in the grid of the same reads; ``planes`` has a pass of its
own for it (``device/slope.py``). What follows the bins starts early: its first instructions run while they end. The images of a
batch are done in as many slices as the workspace limit asks for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from numbadnn.kernels.build.launch import Kernel, sequence
from numbadnn.kernels.build.plans import around
from numbadnn.kernels.build.support import LEAF, LIMIT32, device_reason, precision_reason
from numbadnn.kernels.spatial import gradients, grid, layout
from numbadnn.kernels.spatial.bins import workspace_of
from numbadnn.kernels.spatial.layout import Step
from numbadnn.problem import Policy
from numbadnn.problems.spatial import OPERANDS, SpatialProblem
from numbadnn.registry import Executable, Impl, Summation, register

#: stem -> bytes a microsecond that the sampler moves on an H200
SPEED = {"planes": 2.4e6, "channels": 3.2e6, "staged": 2.8e6}


def _prepared(step: Step, device: int) -> Any:
    return step.kernel.prepare(device, step.grid, (step.threads, 1, 1), step.scalars, step.shared_bytes)


def _ready(step: Step, device: int) -> Callable[..., None]:
    return _prepared(step, device).direct


def _plan_grid(problem: SpatialProblem, policy: Policy, config: Any = None) -> Executable:
    step = grid.grid_step(problem)
    return around(_ready(step, policy.device), {"kernel": step.kernel.name})


def _plan_theta(problem: SpatialProblem, policy: Policy, config: Any = None) -> Executable:
    first, last, nbytes = grid.theta_steps(problem)
    facts = {"kernel": first.kernel.name, "launches": 1 if last is None else 2}
    if last is None:
        return around(_ready(first, policy.device), facts)
    parts, finish = _prepared(first, policy.device), _prepared(last, policy.device)
    return around(sequence("dgrid dtheta space", [(parts, "dgrid space"), (finish, "space dtheta")]), facts, nbytes)


def _plan_sampler(stem: str) -> Callable[..., Executable]:
    def plan(problem: SpatialProblem, policy: Policy, config: Any = None) -> Executable:
        step = layout.sampler_step(problem, stem, config)
        return around(_ready(step, policy.device), {"kernel": step.kernel.name})

    return plan


# ---- the sampler's gradients -----------------------------------------------------------------------------------------


def images_a_slice(problem: SpatialProblem, policy: Policy, stem: str) -> int:
    """How many images' bins fit the workspace limit, and have fewer than 2**31 records; 0: not even one's."""
    assert problem.img is not None and problem.dy is not None
    n = min(problem.img.shape[0], (LIMIT32 - 1) // max(1, math.prod(problem.dy.shape[2:])))
    while n and workspace_of(problem, n, stem)[-1] > policy.workspace_limit:
        n = n // 2
    return n


def _plan_gradients(stem: str) -> Callable[..., Executable]:
    def plan(problem: SpatialProblem, policy: Policy, config: Any = None) -> Executable:
        assert problem.img is not None
        n, each = problem.img.shape[0], images_a_slice(problem, policy, stem)
        slices = [(first, min(each, n - first)) for first in range(0, n, each)]
        bins = {count: gradients.bins_of(problem, count, stem, config) for count in {c for _, c in slices}}
        names, specs = sum(OPERANDS[problem.op], ()), (*problem.inputs, *problem.outputs)
        strides = {name: spec.strides[0] * spec.itemsize for name, spec in zip(names, specs, strict=True)}
        launches: list[tuple[Any, str]] = []
        if stem == "planes":
            launches.append((_prepared(gradients.slope_step(problem), policy.device), "img grid dy dgrid"))
        prepared = {count: [_prepared(step, policy.device) for step in bins[count].steps] for count in bins}
        for first, count in slices:
            for step, launch in zip(bins[count].steps, prepared[count], strict=True):
                words = (f"{w}+{first * strides[w]}" if w in strides else w for w in step.operands.split())
                launches.append((launch, " ".join(words)))
        gather = bins[each].steps[-1 if stem == "planes" else -2]
        direct = sequence("img grid dy dimg dgrid space", launches)
        return around(
            direct, {"kernel": gather.kernel.name, "launches": len(launches)}, max(b.nbytes for b in bins.values()),
            summation=Summation((max(LEAF, problem.img.shape[1]),), "compensated"),  # points; channels, one by one
        )  # fmt: skip

    return plan


# ---- registration ----------------------------------------------------------------------------------------------------


def _register(op: str, stem: str, plan: Callable[..., Executable], complete: bool) -> None:
    def supports(problem: SpatialProblem, policy: Policy) -> str:
        if wrong := precision_reason(problem.inputs[0].dtype, problem.accumulator, policy):
            return wrong
        reason = getattr(layout, f"{stem}_reason")(problem)
        if (
            not reason
            and op == "spatialtf_grid_grad"
            and (needed := grid.theta_steps(problem)[2]) > policy.workspace_limit
        ):
            reason = f"needs a workspace of {needed} bytes, the limit is {policy.workspace_limit}"
        if not reason and op == "spatialtf_sampler_grad" and not images_a_slice(problem, policy, stem):
            needed = workspace_of(problem, 1, stem)[-1]
            reason = f"needs a workspace of {needed} bytes for one image, the limit is {policy.workspace_limit}"
            reason = reason if needed > policy.workspace_limit else "needs fewer than 2**31 points an image"
        return reason or device_reason(policy)

    def rank(problem: SpatialProblem) -> float:
        launches = 3 if op == "spatialtf_sampler_grad" else 1  # 7 of many points: little beside their bytes
        few = op == "spatialtf_sampler" and stem == "planes" and problem.img is not None and problem.img.shape[1] < 16
        # of few channels the positions cost most, whatever the bytes of a pixel
        return 2 * launches + problem.bytes / (0.53e6 * problem.output.itemsize if few else SPEED[stem])

    register(Impl(op, "numba", f"numba.spatial_{stem}", supports, plan, rank, "ieee", "gpu_to_gpu", complete=complete))


_register("spatialtf_grid", "planes", _plan_grid, True)
_register("spatialtf_grid_grad", "planes", _plan_theta, True)
for _stem in SPEED:
    _register("spatialtf_sampler", _stem, _plan_sampler(_stem), _stem == "planes")
    _register("spatialtf_sampler_grad", _stem, _plan_gradients(_stem), _stem == "planes")


def kernels() -> Iterator[Kernel]:
    """A representative set: every kernel once, float32 and float16, packed and not."""
    forward = SpatialProblem.parse("spatialtf_grid theta=float32:2x2x3 grid=float32:2x8x8x2")
    yield grid.grid_step(forward).kernel
    yield grid.grid_step(SpatialProblem.parse("spatialtf_grid theta=float16:2x2x3 grid=float32:2x8x8x2")).kernel
    first, last, _ = grid.theta_steps(SpatialProblem.parse("spatialtf_grid_grad dgrid=float16:1x100x100x2"))
    assert last is not None
    yield from (first.kernel, last.kernel)
    large = "img=float16:1x16x16x16 grid=float16:1x16x16x2"
    yield layout.sampler_step(SpatialProblem.parse(f"spatialtf_sampler {large}"), "staged").kernel
    gradient = SpatialProblem.parse(f"spatialtf_sampler_grad {large} dy=float16:1x16x16x16")
    yield gradients.bins_of(gradient, 1, "staged").steps[-2].kernel
    many = "spatialtf_sampler_grad img=float32:1x16x8x8 grid=float32:1x300x300x2 dy=float32:1x16x300x300"
    yield from (step.kernel for step in gradients.bins_of(SpatialProblem.parse(many), 1, "planes").steps[:-1])
    for stem, text in (
        ("planes", "img=float32:1x16x8x8 grid=float32:1x8x8x2"),
        ("channels", "img=float16:1x16x8x8:nhwc grid=float16:1x8x8x2"),
    ):
        yield layout.sampler_step(SpatialProblem.parse(f"spatialtf_sampler {text}"), stem).kernel
        layout_word = ":nhwc" if stem == "channels" else ""
        dtype = text[4:11]
        gradient = SpatialProblem.parse(f"spatialtf_sampler_grad {text} dy={dtype}:1x16x8x8{layout_word}")
        bins = gradients.bins_of(gradient, 1, stem)
        if stem == "planes":
            yield gradients.slope_step(gradient).kernel
        yield from (step.kernel for step in (bins.steps if stem == "planes" else bins.steps[-2:]))
