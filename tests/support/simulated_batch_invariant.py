"""Run convolutions of a batch and of its images alone under the CUDA simulator; test_batch_invariant.py starts it.

Prints one line a check and exits 1 if any fails. Needs ``NUMBA_ENABLE_CUDASIM=1`` in the environment.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from reporting import agree, end, report

from numbadnn.kernels.conv.tiles import model
from numbadnn.kernels.conv.tiles.product import Product
from numbadnn.measuring.data import make_arrays
from numbadnn.problem import Policy
from numbadnn.problems.conv import ConvProblem
from numbadnn.registry import implementations
from numbadnn.validate import simulate
from numbadnn.validate.determinism import batches

TILES, PATCHES = "numba.implicit_tiles", "numba.patches"
POLICY = Policy(device=0, determinism="batch_invariant")


def same_bits(name: str, line: str, wanted: str, limit: int = 1 << 30) -> None:
    """The first image of three alone, and the other two at unaligned addresses, have the bits that they have in the batch.

    ``wanted``: what the facts of the plan must say, or the check would be of something else.
    """
    problem, policy = ConvProblem.parse(line), replace(POLICY, workspace_limit=limit)
    inputs, _ = make_arrays(problem)
    (impl,) = (i for i in implementations(problem.op) if i.name == name)
    whole = impl.plan(problem, policy, None)
    (together,) = run(name, problem, inputs, policy)
    wrong = []
    for first, last in ((0, 1), (1, 3)):
        part = batches.part(problem, inputs, first, last)
        asked = replace(part.problem, **unaligned(part.problem)) if first else part.problem
        (alone,) = run(name, asked, part.inputs, policy)
        if not np.array_equal(alone, together[first:last]):
            wrong.append(f"images {first} to {last}")
    levels = whole.determinism, impl.plan(problem, Policy(device=0), None).determinism
    if wanted not in str(whole.facts) or levels != ("batch_invariant", "run_to_run"):
        wrong.append(f"{levels} {whole.facts}")
    report(f"{name} {line}", not wrong, "; ".join(wrong))


def unaligned(problem: ConvProblem) -> dict[str, Any]:
    return {name: replace(getattr(problem, name), aligned=False) for name in "xy"}


def run(name: str, problem: ConvProblem, inputs: tuple[Any, ...], policy: Policy) -> Any:
    return simulate.run(problem, inputs, name, policy)


def by_images(p: Product, *_: Any) -> int:
    """Other splits for other numbers of images: bits would differ if a plan's own batch decided; 4 for NOMINAL of them."""
    return 2 + p.problem.x.shape[0] % 3


if __name__ == "__main__":
    for line in ("pad=0,1,2,0 stride=9,10 alpha=2 beta=-1", "stride=10,9 flip=0"):
        line = f"conv2d x=float32:2x3x18x20 w=float32:6x3x9x9 {line}"
        agree(line, "integers", lambda problem, arrays: simulate.run(problem, arrays, PATCHES))
    for line in (  # rows that are copied, filters in any order; both directions
        "conv2d x=float16:2x10x3x5 w=float16:20x10x1x1 alpha=2 beta=-1",
        "conv3d_grad_wrt_inputs x=bfloat16:2x9x2x2x4 w=bfloat16:17x9x1x1x1",
    ):
        agree(line, "integers", lambda problem, arrays: simulate.run(problem, arrays, "numba.pointwise"), "tensor_core")
    model.best_splits = by_images  # type: ignore[assignment]
    same_bits(TILES, "conv2d x=float32:3x24x3x4 w=float32:5x24x3x3 pad=1,1,1,1", "splits=4")
    same_bits(TILES, "conv2d x=float32:3x24x3x3:nhwc w=float32:5x24x3x3:nhwc pad=1,0,1,1 flip=0", "splits=4")
    line = "x=float32:3x5x4x4 w=float32:24x5x2x2 stride=2,1"
    same_bits(TILES, f"conv2d_grad_wrt_inputs {line} alpha=2", "splits=4")
    same_bits(TILES, "conv3d x=float64:3x20x2x2x3 w=float64:4x20x2x2x2 pad=1,0,0,0,0,1", "splits=4")
    # the partial sums of one image fit the workspace, those of three do not
    same_bits(TILES, "conv2d x=float32:3x24x5x5 w=float32:5x24x3x3 pad=1,1,1,1", "'images at a time': 1", 30_000)
    same_bits(PATCHES, "conv2d x=float32:3x3x18x20 w=float32:6x3x9x10 stride=9,10 flip=0", "splits=4")
    same_bits(PATCHES, "conv2d x=float32:3x3x19x20:nhwc w=float32:6x3x9x9:nhwc pad=0,1,0,0 stride=10,9", "splits=4")
    end()
