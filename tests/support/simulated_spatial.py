"""Run the sampler by way of shared memory, and both gradients of it, under the CUDA simulator; test_spatial.py starts it.

Prints one line a check and exits 1 if any fails. Needs ``NUMBA_ENABLE_CUDASIM=1`` in the environment.
"""

import sys

import numpy as np

from numbadnn import reference
from numbadnn.kernels.spatial import bins as spatial_bins
from numbadnn.problems.spatial import SpatialProblem
from numbadnn.validate import simulate
from numbadnn.validate.oracle import Trial

#: problem, implementation, how much of the image the points reach over
CASES = (
    ("spatialtf_sampler img=float16:1x18x12x16 grid=float32:1x16x20x2", "staged", 1.0),
    ("spatialtf_sampler img=float16:1x17x12x16 grid=float32:1x17x16x2", "staged", 0.7),
    ("spatialtf_sampler img=float32:1x5x4x6 grid=float32:1x3x5x2", "planes", 1.0),
    ("spatialtf_sampler img=float32:1x8x4x6:nhwc grid=float32:1x3x5x2", "channels", 1.0),
    ("spatialtf_sampler_grad img=float32:1x5x4x6 grid=float32:1x3x5x2 dy=float32:1x5x3x5", "planes", 1.0),
    ("spatialtf_sampler_grad img=float16:1x17x16x16 grid=float32:1x16x16x2 dy=float16:1x17x16x16", "staged", 1.0),
    ("spatialtf_sampler_grad img=float16:2x20x9x40 grid=float16:2x18x28x2 dy=float16:2x20x18x28", "staged", 1.0),
    ("spatialtf_sampler_grad img=float32:1x16x18x16 grid=float32:1x16x16x2 dy=float32:1x16x16x16", "staged", 1.0),
    ("spatialtf_sampler_grad img=float32:1x16x9x12 grid=float32:1x16x20x2 dy=float32:1x16x16x20", "staged", 0.3),
    ("spatialtf_sampler_grad img=float16:1x16x8x16 grid=float32:1x16x16x2 dy=float16:1x16x16x16", "staged", 0.6),
    ("spatialtf_sampler_grad img=float32:1x16x8x8 grid=float32:1x16x16x2 dy=float32:1x16x16x16", "staged", 0.5),
    ("spatialtf_sampler_grad img=float16:1x16x2x8 grid=float32:1x16x20x2 dy=float16:1x16x16x20", "staged", 0.02),
    ("spatialtf_sampler_grad img=float16:1x24x5x6:nhwc grid=float32:1x9x8x2 dy=float16:1x24x9x8:nhwc", "channels", 0.3),
    ("spatialtf_sampler_grad img=float32:2x16x5x6:nhwc grid=float32:2x9x7x2 dy=float32:2x16x9x7:nhwc", "channels", 0.9),
)


def check(text: str, stem: str, scale: float) -> bool:
    """Points turned by some degrees, some of them not finite in pixels; of a small scale many meet in a cell."""
    problem, rng = SpatialProblem.parse(text), np.random.default_rng(0)
    n, h, w, _ = problem.grid.shape
    theta = np.tile(np.array([[[0.98, -0.2, 0.05], [0.2, 0.98, -0.03]]]) * scale, (n, 1, 1))
    grid = reference.spatialtf_grid(theta, (n, 1, h, w)).astype(problem.grid.dtype)
    grid[0, 0, 0, 0], grid[0, 1, 1, 1] = np.nan, np.inf
    if problem.grid.dtype == "float32":
        grid[0, 0, 1] = 1e38, -1e38  # too far in pixels, to opposite sides
    img, *dy = (rng.standard_normal(s.shape).astype(s.dtype) for s in problem.inputs if s is not problem.grid)
    trial = Trial(problem, (img, grid, *dy))
    found = trial.compare(simulate.run(problem, trial.inputs, f"numba.spatial_{stem}"), "ieee")
    print("ok  " if found.ok else "FAIL", problem, found, flush=True)
    return bool(found.ok)


if __name__ == "__main__":
    passed = [check(*case) for case in CASES]
    spatial_bins.STRIPE_CAPACITY = 0  # as if there were more points than shared memory has room for: cells in any order
    passed += [check(*case) for case in CASES if case[0].startswith("spatialtf_sampler_grad img=float16")]
    sys.exit(not all(passed))
