"""Run unshared convolutions of 16-bit types, as tensor cores do them, under the CUDA simulator; test_unshared.py starts it.

Prints one line a check and exits 1 if any fails. Needs ``NUMBA_ENABLE_CUDASIM=1`` in the environment.
"""

import sys

from numbadnn.kernels import simulate
from numbadnn.kernels.unshared_halves import HalvesConfig
from numbadnn.ops.conv import ConvProblem
from numbadnn.problem import Policy
from numbadnn.validate.oracle import Trial

CASES = (  # whole words; odd filters: no tensor cores; strides; groups; turns of filters; idle warps; rooms; many images
    ("x={t}:2x3x5x6 w={t}:4x3x5x3x3x2", None),
    ("x={t}:2x3x3x3 w={t}:4x1x1x3x3x3 flip=0", None),
    ("x={t}:9x4x4x5 w={t}:20x2x3x4x2x2 pad=0,0,1,1 stride=2,2 flip=0", None),
    ("x={t}:3x12x4x4 w={t}:8x2x2x6x3x3 groups=2 pad=1,1,1,1 stride=2,2 alpha=2 beta=-3", None),
    ("x={t}:3x8x3x3 w={t}:36x1x1x8x3x3 ", HalvesConfig(4, 8, 2, 1, 1, 32, False, False, 4, 1)),
    ("x={t}:2x8x3x3 w={t}:5x1x1x8x3x3 flip=0", HalvesConfig(2, 8, 1, 5, 1, 96, True, True, 2, 1)),
    ("x={t}:2x16x4x3 w={t}:5x2x3x16x3x2 dilation=1,2 pad=0,0,1,1", HalvesConfig(2, 8, 1, 2, 2, 64, False, True, 1, 1)),
    ("x={t}:35x2x2x2:nhwc w={t}:4x1x1x2x2x2", None),
)


def check(text: str, config: HalvesConfig | None, dtype: str, kind: str) -> bool:
    problem, policy = ConvProblem.parse("conv2d " + text.format(t=dtype)), Policy(device=0)
    trial = Trial.of(problem, kind=kind)
    arrays = (*trial.inputs, *(() if trial.old is None else (trial.old,)))
    got = simulate.run(problem, arrays, "numba.unshared", policy, config)
    found = trial.compare_exactly(got) if kind == "integers" else trial.compare(got, "tensor_core")
    print("ok  " if found.ok else "FAIL", problem, found, flush=True)
    return bool(found.ok)


if __name__ == "__main__":
    sys.setswitchinterval(1e-4)  # the simulator's threads wait for each other all the time
    kinds = (("float16", "integers"), ("bfloat16", "random"))
    done = [check(*case, *kind) for case in CASES for kind in kinds]
    sys.exit(not all(done))
