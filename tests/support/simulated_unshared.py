"""Run unshared convolutions, those of 16-bit types as tensor cores do them, under the CUDA simulator; test_unshared.py starts it.

Prints one line a check and exits 1 if any fails. Needs ``NUMBA_ENABLE_CUDASIM=1`` in the environment.
"""

import sys
from dataclasses import replace
from typing import Any

import numpy as np
from large_problems import first_config

from numbadnn.kernels.conv.unshared import unshared
from numbadnn.kernels.conv.unshared.forward import f32x2 as unshared_f32x2
from numbadnn.kernels.conv.unshared.forward import places_stream as unshared_places_stream
from numbadnn.kernels.conv.unshared.forward.box_config import BoxConfig
from numbadnn.kernels.conv.unshared.forward.f16_config import F16Config
from numbadnn.kernels.conv.unshared.forward.f32x2_config import F32x2Config
from numbadnn.kernels.conv.unshared.forward.places_stream_config import StreamConfig
from numbadnn.kernels.conv.unshared.inputs import f32x2 as unshared_inputs_f32x2
from numbadnn.kernels.conv.unshared.inputs import f32x2_boxes as unshared_inputs_f32x2_boxes
from numbadnn.kernels.conv.unshared.inputs.boxes_config import BoxesConfig
from numbadnn.kernels.conv.unshared.inputs.rows_config import configured, laid_out
from numbadnn.kernels.conv.unshared.weights.f16_config import WeightsF16Config
from numbadnn.kernels.conv.unshared.weights.many_config import WeightsManyConfig
from numbadnn.problem import Policy
from numbadnn.problems.conv import ConvProblem
from numbadnn.validate import simulate
from numbadnn.validate.oracle import Trial

KINDS = ("extremes", "integers", "random")
FORWARD, INPUTS, WEIGHTS = "conv2d", "conv2d_grad_wrt_inputs", "conv2d_grad_wrt_weights"
SMALL = "x={t}:2x4x4x5 w={t}:4x3x4x4x2x2"
STRIDED = "x={t}:9x12x5x6 w={t}:20x3x2x12x3x3 pad=1,1,0,0 stride=2,2 flip=0"
GROUPED = "x={t}:17x4x4x5 w={t}:6x3x3x2x2x2 dilation=1,2 groups=2 alpha=2 beta=-3"
THIRDS = "x={t}:17x3x4x5 w={t}:6x3x3x1x3x2 pad=0,1,0,0 dilation=1,2 groups=3 alpha=2 beta=-3"
NARROW = "x={t}:3x16x4x5 w={t}:18x4x5x16x1x2 pad=0,0,0,1 flip=0"

#: a position a block
CASES: tuple[tuple[str, str, Any], ...] = (
    # whole words; odd filters: no tensor cores; strides; groups; turns of filters; idle warps; rooms; many images
    (FORWARD, "x={t}:2x3x5x6 w={t}:4x3x5x3x3x2", None),
    (FORWARD, "x={t}:2x3x3x3 w={t}:4x1x1x3x3x3 flip=0", None),
    (FORWARD, "x={t}:9x4x4x5 w={t}:20x2x3x4x2x2 pad=0,0,1,1 stride=2,2 flip=0", None),
    (FORWARD, "x={t}:3x12x4x4 w={t}:8x2x2x6x3x3 groups=2 pad=1,1,1,1 stride=2,2 alpha=2 beta=-3", None),
    (FORWARD, "x={t}:3x8x3x3 w={t}:36x1x1x8x3x3 ", F16Config(4, 8, 2, 1, 1, 32, False, False, 4, 1)),
    (FORWARD, "x={t}:2x8x3x3 w={t}:5x1x1x8x3x3 flip=0", F16Config(2, 8, 1, 5, 1, 96, True, True, 2, 1)),
    (
        FORWARD,
        "x={t}:2x16x4x3 w={t}:5x2x3x16x3x2 dilation=1,2 pad=0,0,1,1",
        F16Config(2, 8, 1, 2, 2, 64, False, True, 1, 1),
    ),
    (FORWARD, "x={t}:35x2x2x2:nhwc w={t}:4x1x1x2x2x2", None),
)
#: several positions a block: as many images as a product has, and more; some channels at a time; turns of filters
SEVERAL: tuple[tuple[str, str, Any], ...] = (
    # tile after tile: boxes of all channels and of some, more places than boxes; fewer terms than half a slot, some of the last;
    # a warp's sixteen filters that another has as well; tiles past the last row and column; rows written at once
    (FORWARD, "x={t}:7x16x5x6 w={t}:16x5x6x16x1x1", StreamConfig(8, 2, 2, 1, 1, 2, 1, 16)),
    (FORWARD, "x={t}:9x24x5x6 w={t}:18x3x3x24x3x3 pad=1,1,0,1 stride=2,2", StreamConfig(16, 1, 2, 2, 1, 3, 2, 12)),
    (
        FORWARD,
        "x={t}:20x16x4x5 w={t}:40x2x4x8x3x2 groups=2 alpha=2 beta=-3 flip=0",
        StreamConfig(32, 2, 1, 2, 1, 2, 3, 4),
    ),
    (FORWARD, "x={t}:7x16x3x25 w={t}:18x2x24x16x2x2 alpha=2 beta=-3", StreamConfig(8, 1, 8, 2, 8, 2, 2, 8)),
    # terms that end in the second half of a slot that begins before them; more boxes than places, positions with something
    # between them; pixels that are no neighbours
    (FORWARD, "x={t}:3x23x4x6 w={t}:16x3x3x23x2x4", StreamConfig(8, 2, 2, 1, 1, 2, 1, 23)),
    (FORWARD, "x={t}:3x16x4x6 w={t}:16x3x5x16x2x2:1080,360,72,4,2,1", StreamConfig(8, 2, 2, 1, 1, 2, 1, 16)),
    (
        FORWARD,
        "x={t}:3x40x4x5 w={t}:16x3x4x40x2x2:4000,800,200,4,2,1 alpha=2 beta=-3",
        StreamConfig(8, 1, 2, 1, 1, 2, 3, 10),
    ),
    (
        FORWARD,
        "x={t}:9x16x6x7:1,9,144,1008 w={t}:32x4x3x8x3x3 dilation=1,2 groups=2 alpha=2 beta=-3 flip=0",
        StreamConfig(16, 2, 1, 1, 1, 3, 2, 4),
    ),
    (FORWARD, "x={t}:9x16x4x9 w={t}:16x3x8x16x2x2 alpha=2 beta=-3", StreamConfig(16, 1, 8, 1, 8, 2, 3, 8)),
    (WEIGHTS, SMALL, WeightsF16Config(8, 16, 2, 1, 8, 2, 4)),
    (WEIGHTS, STRIDED, WeightsF16Config(16, 32, 2, 1, 2, 2, 2)),
    (WEIGHTS, GROUPED, WeightsF16Config(32, 16, 2, 2, 8, 1, 2)),
    (WEIGHTS, STRIDED, WeightsManyConfig(16, 2, 2, 1, 2, True, 2, 5, 32)),
    (WEIGHTS, GROUPED, WeightsManyConfig(32, 1, 2, 1, 8, True, 1, 2, 32)),
    (WEIGHTS, NARROW, None),
)
#: sums in float32
SINGLE: tuple[tuple[str, str, Any], ...] = (
    (FORWARD, SMALL, BoxConfig(8, 4, 2, 2, 4, 1, 1, True, 4)),
    (FORWARD, STRIDED, BoxConfig(16, 4, 2, 4, 2, 2, 1, False, 8)),
    (FORWARD, THIRDS, BoxConfig(32, 2, 2, 2, 2, 2, 1, True, 1)),
    (WEIGHTS, SMALL, BoxConfig(8, 4, 2, 2, 4, 1, 1, True, 4)),
    (WEIGHTS, STRIDED, BoxConfig(16, 4, 2, 4, 2, 1, 1, False, 8)),
    (WEIGHTS, THIRDS, BoxConfig(32, 8, 2, 3, 2, 1, 1, True, 1)),
    # filters that are no whole turns of loads, several passes of them; several turns of terms
    (INPUTS, STRIDED, BoxesConfig(8, 1, 2, 2, 128, 128, 16, True, (2, 1), 3, 2)),
    (INPUTS, "x={t}:3x16x4x4 w={t}:11x3x3x16x2x2", BoxesConfig(4, 4, 4, 1, 256, 128, 32, False, (2, 2), 16, 16)),
    (INPUTS, "x={t}:2x5x5x4 w={t}:4x3x2x5x3x3 flip=0", BoxesConfig(2, 1, 4, 2, 64, 128, 32, True, (2, 2), 3, 2)),
)


#: the same of float32, whose images are transposed before
TRANSPOSED: tuple[tuple[str, str, Any], ...] = (
    (WEIGHTS, STRIDED, WeightsManyConfig(16, 2, 2, 1, 2, True, 1, 8, 64)),
    (WEIGHTS, THIRDS, WeightsManyConfig(32, 1, 2, 1, 2, True, 2, 1, 16)),
)


#: rows of pixels with their sums in registers: sizes, tile, channels, depth, images of a thread of float32, rows of positions at
#: a time, who prefetches filters and whether y is transposed. The last tile has fewer rows and columns, a group of rows
#: fewer; two slices of channels; the last piece has fewer filters, or is the only one; groups; pixels that no position
#: reaches; filters copied at once, of neighbours in neighbouring lanes; one image; filters that begin anywhere within 32
#: and 128 bytes
ROWS: tuple[tuple[str, tuple[int, int], int, int, int, int, str], ...] = (
    ("x={t}:2x8x4x5 w={t}:4x3x4x8x2x2", (2, 3), 8, 3, 2, 1, ""),
    ("x={t}:9x16x5x6 w={t}:20x3x2x16x3x3 pad=1,1,0,0 stride=2,2 flip=0", (3, 1), 8, 2, 8, 2, ""),
    ("x={t}:9x16x5x6 w={t}:20x3x2x16x3x3 pad=1,1,0,0 stride=2,2 flip=0", (3, 1), 8, 2, 8, 2, "prefetched"),
    ("x={t}:17x16x4x5 w={t}:6x3x4x8x2x2 groups=2 alpha=2 beta=-3", (2, 2), 8, 2, 4, 1, ""),
    ("x={t}:3x8x10x10 w={t}:18x2x2x8x9x9 flip=0", (2, 2), 8, 2, 1, 2, ""),
    ("x={t}:17x16x7x7 w={t}:32x3x3x8x3x3 groups=2 stride=2,2", (2, 2), 8, 3, 4, 1, "transposed"),
    ("x={t}:9x8x6x7 w={t}:32x4x5x8x3x3", (4, 2), 8, 5, 16, 2, "transposed"),
    ("x={t}:1x8x6x4 w={t}:17x4x2x8x3x3 flip=0", (4, 2), 8, 2, 1, 3, ""),
    ("x={t}:3x16x10x10 w={t}:18x2x2x16x9x9 flip=0", (2, 2), 8, 2, 1, 2, "prefetched"),
    ("x={t}:9x8x7x6 w={t}:20x5x4x8x3x3", (4, 2), 8, 2, 1, 2, "prefetched"),
    ("x={t}:17x8x7x6 w={t}:32x5x4x8x3x3 flip=0", (4, 2), 8, 5, 16, 3, "transposed"),
    ("x={t}:3x16x11x7 w={t}:18x5x3x8x3x3 stride=2,2 groups=2 alpha=2 beta=-3", (3, 2), 8, 3, 1, 2, "prefetched"),
)


def check_rows(row: tuple[str, tuple[int, int], int, int, int, int, str], dtype: str, kind: str) -> bool:
    sizes, tile, channels, depth, own, deep, how = row
    problem, own = ConvProblem.parse(f"{INPUTS} {sizes.format(t=dtype)}"), own if dtype == "float32" else 0
    config = configured(problem, tile, channels, depth, 1, own, deep)
    if how in ("prefetched", "transposed"):
        config = replace(config, turns=3, many=True, transposed=how == "transposed")
        config = config if own else laid_out(problem, config)
    return check(INPUTS, sizes, config, dtype, kind, "ieee" if own else "tensor_core")


#: the same of float32 as two float16: sizes, tile, channels, vectors of eight channels of a warp. Rows of y copied 16
#: bytes at a time and one by one;
#: filters of a slot missing; tiles past the last row; some channels of a block; strides, groups; pixels nobody reaches
HALVED: tuple[tuple[str, tuple[int, int], int, int], ...] = (
    ("x={t}:17x8x4x4 w={t}:18x3x4x8x3x3 pad=1,0,1,1 flip=0", (2, 4), 8, 1),
    ("x={t}:9x16x6x10 w={t}:48x2x3x8x5x5 pad=1,0,0,0 stride=2,2 groups=2 alpha=2 beta=-3", (1, 3), 4, 1),
    ("x={t}:9x12x5x4 w={t}:20x3x2x12x3x3", (2, 2), 12, 2),
)


def check_halved(row: tuple[str, tuple[int, int], int, int], kind: str) -> bool:
    problem = ConvProblem.parse(f"{INPUTS} {row[0].format(t='float32')}")
    config = unshared_inputs_f32x2.configured(problem, *row[1:], depth=3)
    assert config is not None
    return check(INPUTS, row[0], config, "float32", kind, "ieee")


#: forward in float32 on tensor cores: boxes of some channels, and of all; more tiles than blocks stay; two warps that share
#: terms, or filters; two launches of filters; the last tile past the last position; groups; a channel of fewer terms than a slot
F32X2: tuple[tuple[str, F32x2Config], ...] = (
    ("x={t}:17x24x3x6 w={t}:16x4x7x24x2x2 flip=0 pad=1,1,1,1", F32x2Config(1, 2, 1, 2, 2, 1, 24)),
    ("x={t}:9x12x5x6 w={t}:34x3x3x12x3x3 pad=1,1,0,1 stride=2,2 alpha=2 beta=-3", F32x2Config(1, 2, 2, 1, 2, 2, 3)),
    ("x={t}:20x36x4x5 w={t}:32x2x4x18x3x2 groups=2 alpha=2 beta=-3", F32x2Config(2, 1, 1, 2, 3, 1, 18)),
)


def with_extremes(problem: ConvProblem) -> Trial:
    """Numbers that cannot be cut in 16-bit ones, or not by others' scale, and products that overflow: some results see each."""
    trial = Trial.of(problem)
    y, w = trial.inputs
    y[4, 1, 1, 1] = 1e5
    y[0, 0, 0, 0], y[1, 1, 1, 1], y[2, 3, 0, 0] = np.inf, 1.2345678e-38, 1e25
    y[3, 0, 0, 1], w[0, 0, 1] = 3e38, w[0, 0, 1] * np.float32(1.2345678e-38)
    w[1, 1, 1], w[2, 0, 1, 0, 0, 0], w[3, 0, 0] = w[1, 1, 1] * np.float32(1e30), np.nan, w[3, 0, 0] * np.float32(1e20)
    w[2, 0, 0, 0, 0, 0] = np.inf  # at padding, where there is some
    return trial


def with_infinities(problem: ConvProblem) -> Trial:
    """Of filters, at padding too, and of pixels: only results that see them may be none; and NaN."""
    trial = Trial.of(problem)
    x, w = trial.inputs
    w[0, 0, 0, 0], w[7, 0, 1, 0], w[4, 2, 2, 5, 1, 1], w[17, 3, 4, 3, 0, 0] = np.inf, np.inf, np.inf, np.nan
    x[1, 2, 1, 1], x[2, 0, 0, 0] = np.inf, -np.inf
    return trial


#: files whose implementation has another name
NAMES = {
    ("forward", "f16"): "unshared_halves",
    ("forward", "f32x2"): "unshared_twofold",
    ("inputs", "f32x2"): "unshared_inputs_twofold",
    ("weights", "f16"): "unshared_weights_halves",
}


def name_of(config: Any) -> str:
    """The implementation that a configuration belongs to: named after the file and, unless that is forward, its folder."""
    folder, stem = type(config).__module__.removesuffix("_config").removesuffix("_sizes").rsplit(".", 2)[1:]
    if stem in ("plain", "boxes"):
        return "numba.unshared"
    usual = f"unshared_{'' if folder == 'forward' else folder + '_'}{stem}"
    return f"numba.{NAMES.get((folder, stem), usual)}"


def check(op: str, text: str, config: Any, dtype: str, kind: str, arithmetic: str) -> bool:
    problem, policy = ConvProblem.parse(f"{op} {text.format(t=dtype)}"), Policy(device=0)
    odd = {"extremes": with_extremes, "infinities": with_infinities}.get(kind)
    trial = odd(problem) if odd else Trial.of(problem, kind=kind)
    arrays = (*trial.inputs, *(() if trial.old is None else (trial.old,)))
    config = config or first_config(unshared.MEMBERS, problem, policy)
    got = simulate.run(problem, arrays, name_of(config), policy, config)
    found = trial.compare_exactly(got) if kind == "integers" else trial.compare(got, arithmetic)
    print("ok  " if found.ok else "FAIL", problem, found, flush=True)
    return bool(found.ok)


if __name__ == "__main__":
    unshared_f32x2.MULTIPROCESSORS = unshared_places_stream.MULTIPROCESSORS = 2
    unshared_inputs_f32x2_boxes.REDUCERS, unshared_inputs_f32x2_boxes.LARGE = 64, 0
    kinds = (("float16", "integers"), ("bfloat16", "random"), ("float32", "integers"))
    done = [check(*c, *kind, "tensor_core") for c in CASES for kind in kinds[:2]]
    done += [check(*c, *kinds[i % 2], "tensor_core") for i, c in enumerate(SEVERAL)]
    done += [check(*c, *kinds[1 + i % 2], "ieee") for i, c in enumerate(SINGLE)]
    done += [check(*c, *kinds[2], "ieee") for c in TRANSPOSED]
    done += [check_rows(row, *kinds[i % 2]) for i, row in enumerate(ROWS)]
    done += [check_rows(row, *kinds[2]) for row in ROWS]
    done += [check_halved(row, kind) for row, kind in zip(HALVED, KINDS, strict=True)]
    done += [check(FORWARD, *c, "float32", kind, "ieee") for c, kind in zip(F32X2, KINDS, strict=True)]
    infinite = "x={t}:5x16x4x5 w={t}:18x4x5x16x3x3 pad=1,1,1,1", StreamConfig(8, 1, 4, 2, 1, 2, 2, 8)
    done += [check(FORWARD, *infinite, "float16", "infinities", "tensor_core")]
    sys.exit(not all(done))
