"""bilinear_upsampling and its gradient on the GPU, by three kernels: NCHW planes, NHWC channels, and anything at all.

``numba.upsample_planes`` and ``numba.upsample_channels``: whole ratios, 16-byte accesses, each pixel read about once.
``numba.upsample_general``: any ratio, strides and size, one thread a result. A result's bits depend on the problem's ratio
and image alone, not on the batch or the GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from numbadnn.kernels.build.launch import Kernel
from numbadnn.kernels.build.plans import one_launch
from numbadnn.kernels.build.support import device_reason, precision_reason
from numbadnn.kernels.upsample import layout
from numbadnn.problem import Policy
from numbadnn.problems.upsample import UpsampleProblem
from numbadnn.registry import Executable, Impl, register

OPS = ("bilinear_upsampling", "bilinear_upsampling_grad")
#: stem -> bytes a microsecond that it moves on an H200
SPEED = {"planes": 3.8e6, "channels": 3.8e6, "general": 0.8e6}


def _register(op: str, stem: str) -> None:
    reason, configure, prepare = (getattr(layout, f"{stem}_{part}") for part in ("reason", "config", "prepare"))

    def supports(problem: UpsampleProblem, policy: Policy) -> str:
        wrong = precision_reason(problem.x.dtype, layout.accumulator(problem), policy)
        return wrong or reason(problem) or device_reason(policy)

    def plan(problem: UpsampleProblem, policy: Policy, config: Any = None) -> Executable:
        config = config or configure(problem)
        kernel, grid, scalars = prepare(problem, config)
        launch = kernel.prepare(policy.device, grid, (config.threads, 1, 1), scalars)
        return one_launch(kernel, launch, config)

    def rank(problem: UpsampleProblem) -> float:
        return 2 + problem.bytes / SPEED[stem]

    complete = stem == "general"
    register(Impl(op, "numba", f"numba.upsample_{stem}", supports, plan, rank, "ieee", "gpu_to_gpu", complete=complete))


for _op in OPS:
    for _stem in SPEED:
        _register(_op, _stem)


def kernels() -> Iterator[Kernel]:
    """A representative set: each kernel in both directions, with the dtypes spread over them."""
    for op in OPS:
        for stem, text in (
            ("planes", "x=float32:1x2x8x8 ratio=2"),
            ("planes", "x=float16:1x2x8x8 ratio=3"),
            ("channels", "x=bfloat16:1x8x8x8:nhwc ratio=2"),
            ("general", "x=float64:1x2x8x8 ratio=3/2"),
        ):
            problem = UpsampleProblem.parse(f"{op} {text}")
            yield getattr(layout, f"{stem}_prepare")(problem, getattr(layout, f"{stem}_config")(problem)).kernel
