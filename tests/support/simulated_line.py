"""Run lines, of 16-bit types as tensor cores do them, under the CUDA simulator; test_line.py starts it.

Prints one line a check and exits 1 if any fails. Needs ``NUMBA_ENABLE_CUDASIM=1`` in the environment.
"""

import sys
from typing import Any

import numpy as np

from numbadnn.kernels.conv.line import boxes as line_boxes
from numbadnn.kernels.conv.line import dense as line_dense
from numbadnn.kernels.conv.line import f16 as line_f16
from numbadnn.kernels.conv.line import f32x2 as line_f32x2
from numbadnn.kernels.conv.line import vectors as line_vectors
from numbadnn.kernels.conv.line.f16 import with_pieces
from numbadnn.kernels.conv.line.toeplitz import ToeplitzConfig
from numbadnn.problem import Policy
from numbadnn.problems.conv import ConvProblem
from numbadnn.validate import simulate
from numbadnn.validate.oracle import Trial

KINDS = (("float16", "integers"), ("bfloat16", "random"))
F16 = (  # taps four steps apart; odd channels; parts of channels, turns of filters; groups, a line shorter than what is behind
    ("x={t}:2x16x1x80 w={t}:16x16x1x3 pad=0,0,8,0 dilation=1,4", (16, 1, 8, 1, 1)),
    ("x={t}:1x5x1x40 w={t}:7x5x1x3 pad=0,0,2,0 flip=0", (16, 1, 8, 1, 1)),
    ("x={t}:1x40x1x40 w={t}:20x40x1x2 pad=0,0,5,0 dilation=1,5 flip=0", (16, 1, 8, 1, 1)),
    ("x={t}:1x16x1x72 w={t}:20x8x1x2 pad=0,0,99,0 dilation=1,99 groups=2", (16, 2, 8, 1, 1)),
)
VECTORS = (  # taps four steps apart, two turns of filters; groups; a line shorter than a block
    ("x={t}:1x16x1x80 w={t}:20x16x1x3 pad=0,0,8,0 dilation=1,4", (2, 1, 1, 3, 1)),
    ("x={t}:1x32x1x264 w={t}:40x16x1x2 pad=0,0,5,0 dilation=1,5 flip=0 groups=2", (2, 2, 1, 2, 1)),
    ("x={t}:1x32x1x24 w={t}:7x32x1x1 pad=0,0,0,0", (4, 1, 2, 1, 1)),
)
TOEPLITZ = (  # two channels; two filters of a channel, taps eight steps apart; a line shorter than what is behind
    "x={t}:1x2x1x1072 w={t}:2x1x1x32 pad=0,0,31,0 groups=2",
    "x={t}:2x1x1x552 w={t}:2x1x1x5 pad=0,0,32,0 dilation=1,8 flip=0",
    "x={t}:1x1x1x16 w={t}:1x1x1x20 pad=0,0,19,0 flip=0",
)
DENSE = (  # the midst of a line and its ends, frozen taps and not; steps that are shared by neighbours
    ("x={t}:1x5x1x1100 w={t}:3x5x1x3 pad=0,0,8,0 dilation=1,4", "float32", "integers"),
    ("x={t}:1x3x1x36 w={t}:2x3x1x5 pad=0,0,32,0 dilation=1,8 flip=0", "float16", "random"),
    ("x={t}:1x4x1x1036 w={t}:2x4x1x3 pad=0,0,2,0", "float64", "random"),
)
SINGLE = ("integers", "random", "not finite", "far apart")
F32X2 = (  # sets of warps and stages in turn; odd channels, filters, lengths; groups, two blocks of filters, a line's beginning
    ("x={t}:1x16x1x260 w={t}:16x16x1x3 pad=0,0,8,0 dilation=1,4", (2, 1, 1, 1, 1, 3, 1, 1, True, True)),
    ("x={t}:2x20x1x70 w={t}:20x20x1x3 pad=0,0,2,0 flip=0", (4, 1, 2, 1, 1, 3, 2, 2, False, False)),
    ("x={t}:1x98x1x36 w={t}:70x49x1x2 pad=0,0,16,0 dilation=1,16 groups=2", (8, 2, 1, 1, 1, 2, 4, 3, False, True)),
)
BOXES = (  # boxes and groups of warps in turn, a line's beginning; few channels, filters that are not there; two groups
    ("x={t}:2x64x1x180 w={t}:64x64x1x3 pad=0,0,2,0", (3, 8, 4), SINGLE[:2]),
    ("x={t}:1x50x1x60 w={t}:40x50x1x2 pad=0,0,16,0 dilation=1,16 flip=0", (2, 16, 2), SINGLE),
    ("x={t}:1x128x1x36 w={t}:256x64x1x4 pad=0,0,3,0 groups=2", (4, 8, 4), SINGLE[:2]),
    ("x={t}:1x128x1x36 w={t}:128x64x1x4 pad=0,0,3,0 groups=2", (4, 8, 4), SINGLE[2:3]),  # half as many to sum anew
)


def problem_of(text: str, dtype: str) -> ConvProblem:
    return ConvProblem.parse("causal_conv1d " + text.format(t=dtype))


#: files whose implementation has another name
NAMES = {"f16": "line_halves", "f32x2": "line_twofold", "vectors": "line_octets"}


def check(problem: ConvProblem, kind: str, config: Any, arithmetic: str = "tensor_core") -> bool:
    trial = Trial.of(problem, kind="integers" if kind == "integers" else "random")
    if kind == "not finite":
        trial.inputs[0][0, 0, 3], trial.inputs[0][-1, -1, -9] = np.nan, np.inf
    if kind == "far apart":
        x, w = trial.inputs
        x[0, 0, :8], x[:, :, 30:36], x[0, 1, 20], w[3, 1, 0] = 1e-30, 1e-38, 3e38, 1e-20
    stem = type(config).__module__.removesuffix("_config").rsplit(".", 1)[1]
    name = "numba.line" if stem == "plain" else f"numba.{NAMES.get(stem, f'line_{stem}')}"
    got = simulate.run(problem, trial.inputs, name, Policy(device=0), config)
    found = trial.compare_exactly(got) if kind == "integers" else trial.compare(got, arithmetic)
    print("ok  " if found.ok else "FAIL", problem, found, flush=True)
    return bool(found.ok)


if __name__ == "__main__":
    for family in (line_f16, line_f32x2, line_boxes):
        family.MULTIPROCESSORS = 1  # one block for several turns
    done = []
    for text, sizes in F16:
        done += [check(p, kind, with_pieces(p, *sizes)) for t, kind in KINDS for p in [problem_of(text, t)]]
    for text, sizes in VECTORS:
        done += [check(problem_of(text, t), kind, line_vectors.VectorsConfig(*sizes)) for t, kind in KINDS]
    for text in TOEPLITZ:
        kinds = (*KINDS, ("float16", "not finite"))
        done += [check(problem_of(text, t), kind, ToeplitzConfig()) for t, kind in kinds]
    for text, dtype, kind in DENSE:
        problem = problem_of(text, dtype)
        config = line_dense.heuristic(problem, "float64" if dtype == "float64" else "float32")
        done.append(check(problem, kind, config, "ieee"))
    for text, sizes in F32X2:
        p = problem_of(text, "float32")
        done += [check(p, kind, line_f32x2.F32x2Config(*sizes), "ieee") for kind in SINGLE]
    for text, sizes, kinds in BOXES:
        p = problem_of(text, "float32")
        done += [check(p, kind, line_boxes.BoxesConfig(*sizes), "ieee") for kind in kinds]
    sys.exit(not all(done))
