"""Run lines of 16-bit types, as tensor cores do them, under the CUDA simulator; test_line.py starts it.

Prints one line a check and exits 1 if any fails. Needs ``NUMBA_ENABLE_CUDASIM=1`` in the environment.
"""

import sys

from numbadnn.kernels import line_halves, simulate
from numbadnn.kernels.line_halves import with_pieces
from numbadnn.ops.conv import ConvProblem
from numbadnn.problem import Policy
from numbadnn.validate.oracle import Trial

CASES = (  # taps four steps apart; odd channels; rooms of channels, turns of filters; groups, a line shorter than what is behind
    ("x={t}:2x16x1x80 w={t}:16x16x1x3 pad=0,0,8,0 dilation=1,4", (16, 1, 8, 1, 1)),
    ("x={t}:1x5x1x40 w={t}:7x5x1x3 pad=0,0,2,0 flip=0", (16, 1, 8, 1, 1)),
    ("x={t}:1x40x1x40 w={t}:20x40x1x2 pad=0,0,5,0 dilation=1,5 flip=0", (16, 1, 8, 1, 1)),
    ("x={t}:1x16x1x72 w={t}:20x8x1x2 pad=0,0,99,0 dilation=1,99 groups=2", (16, 2, 8, 1, 1)),
)


def check(text: str, sizes: tuple[int, int, int, int, int], dtype: str, kind: str) -> bool:
    problem = ConvProblem.parse("causal_conv1d " + text.format(t=dtype))
    trial = Trial.of(problem, kind=kind)
    got = simulate.run(problem, trial.inputs, "numba.line", Policy(device=0), with_pieces(problem, *sizes))
    found = trial.compare_exactly(got) if kind == "integers" else trial.compare(got, "tensor_core")
    print("ok  " if found.ok else "FAIL", problem, found, flush=True)
    return bool(found.ok)


if __name__ == "__main__":
    line_halves.MULTIPROCESSORS = 1  # one block for several turns
    done = [check(*case, *kind) for case in CASES for kind in (("float16", "integers"), ("bfloat16", "random"))]
    sys.exit(not all(done))
