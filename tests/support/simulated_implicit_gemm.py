"""Run the implicit GEMM under the CUDA simulator, with twins of Hopper's instructions; test_implicit_gemm.py starts it.

Prints one line a check and exits 1 if any fails. Needs ``NUMBA_ENABLE_CUDASIM=1`` in the environment.
"""

import sys
from dataclasses import replace
from typing import Any

import numpy as np

from numbadnn.kernels.build.simulated_block import launch
from numbadnn.kernels.conv.implicit import pixels as host
from numbadnn.kernels.conv.implicit import pixels_config as implicit_pixels_config
from numbadnn.kernels.conv.implicit import weights as implicit_weights
from numbadnn.kernels.conv.implicit.device import weights as _implicit_weights
from numbadnn.kernels.conv.implicit.walk import Boxes, Window, filter_steps, packed_steps
from numbadnn.kernels.lang import access as _access
from numbadnn.kernels.lang import hopper_twins as _hopper_twins
from numbadnn.kernels.lang.cuda import f32
from numbadnn.measuring import compare
from numbadnn.measuring.data import buffer, untouched
from numbadnn.problems.conv import ConvProblem
from numbadnn.validate.execute import targets
from numbadnn.validate.oracle import Trial

#: each with its tile, splits, and whether filters stay: tails of pixels, channels and terms; flips, padding, strides, phases
PIXELS = (
    (
        "conv2d x=float16:2x8x9x7:nhwc w=float16:16x8x2x2:nhwc pad=1,0,2,1 stride=2,1 flip=0 alpha=2 beta=-1",
        128,
        64,
        1,
        False,
    ),
    ("conv2d x=bfloat16:1x72x5x6:nhwc w=bfloat16:8x72x2x1 pad=1,1,0,1 dilation=2,1", 128, 64, 2, False),
    (
        "conv2d_grad_wrt_inputs x=float16:2x40x5x6:nhwc w=float16:8x40x3x1:nhwc pad=1,1,1,0 stride=2,1",
        128,
        64,
        1,
        False,
    ),
    ("conv2d x=float16:1x72x9x8:nhwc w=float16:16x72x1x1:nhwc", 128, 64, 1, True),
    ("conv2d x=float16:1x24x9x8:nhwc w=float16:152x24x1x1:nhwc", 128, 80, 1, False),
)
#: each with its tile, splits, and pixels a stage
WEIGHTS = (
    ("x=float16:2x72x6x7:nhwc w=float16:8x72x2x1 pad=1,0,0,1 stride=2,1 alpha=2 beta=-1", 128, 64, 2, 64),
    ("x=bfloat16:1x16x9x9:nhwc w=bfloat16:24x8x2x1:nhwc dilation=2,1 groups=2 flip=0", 128, 64, 1, 128),
    ("x=float16:1x72x6x5:nhwc w=float16:72x72x2x1:nhwc alpha=2", 128, 128, 1, 64),
)
#: the same with three axes: strides, dilation, uneven padding, odd sizes, filters along one axis or two, groups, phases
VOLUMES = (
    (
        "conv3d x=float16:2x8x4x5x3:nhwc w=float16:16x8x2x3x2:nhwc pad=1,0,2,1,0,1 stride=2,1,2 flip=0 alpha=2 beta=-1",
        128, 64, 1, False,
    ),
    ("conv3d x=float16:1x72x5x6x7:nhwc w=float16:16x72x1x1x1:nhwc stride=1,1,2", 128, 64, 1, True),
    ("conv3d_grad_wrt_inputs x=float16:1x40x5x3x6:nhwc w=float16:8x40x3x1x2 pad=1,0,0,0,1,0 stride=2,1,1", 128, 64, 1, False),
    ("conv3d x=float16:1x8x2x2x40:nhwc w=float16:8x8x1x2x2 pad=16,15,1,1,0,15 dilation=1,1,31", 128, 64, 1, False),
    ("conv3d x=bfloat16:1x72x3x5x7:nhwc w=bfloat16:8x72x1x3x3 pad=0,0,1,2,1,0 dilation=1,2,1", 128, 64, 2, False),
    ("conv3d x=float16:1x128x5x3x5:nhwc w=float16:16x64x3x1x1:nhwc pad=1,1,0,0,0,0 groups=2", 128, 64, 1, False),
    ("conv3d x=float16:1x16x4x4x5:nhwc w=float16:16x16x2x2x1:nhwc pad=1,0,0,1,0,0", 128, 64, 1, True),
    (
        "conv3d_grad_wrt_inputs x=bfloat16:2x24x3x4x5:nhwc w=bfloat16:8x24x3x2x3 pad=1,1,0,1,2,1 dilation=1,2,1 flip=0 beta=1",
        128, 64, 2, False,
    ),
    ("conv3d_grad_wrt_inputs x=float16:1x8x3x3x4 w=float16:16x8x1x1x1 y=float16:1x16x2x2x2:nhwc stride=2,2,2", 128, 64, 1, False),
    ("conv3d_grad_wrt_inputs x=float32:1x12x3x4x3:nhwc w=float32:8x12x1x3x2 pad=0,0,1,0,0,1 stride=1,2,1", 128, 64, 1, False),
)  # fmt: skip
#: gradients of images whose pixels lack taps: written by the copy engine, in lines, by the threads; along the terms, in shares
LACKING = (
    ("conv2d_grad_wrt_inputs x=float16:1x24x5x4:nhwc w=float16:72x24x3x2:nhwc pad=1,1,1,0", 128, 64, 1, False),
    ("conv2d_grad_wrt_inputs x=bfloat16:2x24x5x6:nhwc w=bfloat16:8x24x3x3:nhwc stride=2,2 flip=0", 128, 64, 1, False),
    ("conv2d_grad_wrt_inputs x=float32:1x12x4x5:nhwc w=float32:40x12x2x3 pad=1,0,1,1 dilation=1,2 beta=2", 256, 64, 1, False),
    ("conv2d_grad_wrt_inputs x=float16:1x24x4x4:nhwc w=float16:72x24x3x3 pad=1,1,1,1", 128, 64, 2, False),
    ("conv3d_grad_wrt_inputs x=float16:1x16x3x2x4:nhwc w=float16:8x16x3x1x2 pad=1,1,0,0,1,0 stride=2,1,1", 128, 64, 1, False),
)  # fmt: skip
VOLUME_WEIGHTS = (
    ("x=bfloat16:1x128x3x3x5:nhwc w=bfloat16:16x64x1x2x1:nhwc dilation=1,2,1 groups=2 flip=0", 128, 64, 1, 128),
    ("x=float16:1x72x4x5x3:nhwc w=float16:8x72x2x1x2 pad=1,0,0,0,0,1 stride=2,1,1 alpha=2 beta=-1", 128, 64, 2, 64),
    (
        "x=float16:1x8x5x4x3:nhwc w=float16:8x8x3x1x1 y=float16:1x8x5x4x3:1600,1,320,80,16 pad=2,2,0,0,0,0 dilation=2,1,1",
        128, 64, 1, 64,
    ),
)  # fmt: skip
failures = 0


def allow(*arrays: Any) -> None:
    """Only these may be touched."""
    _access.MEMORY[:] = [(v.ctypes.data, v.ctypes.data + v.nbytes) for v in arrays]


def seen(memory: np.ndarray, described: Window | Boxes) -> np.ndarray:
    """The array that a descriptor describes, slowest axis first; ``memory`` is one-dimensional."""
    strides = (memory.itemsize, *described.strides)
    return np.lib.stride_tricks.as_strided(memory, described.extents[::-1], strides[::-1])


def nbytes(described: Window | Boxes) -> int:
    """From the first byte that a descriptor describes to the last."""
    inner, *others = described.extents
    return inner * 4 + sum((n - 1) * step for n, step in zip(others, described.strides, strict=True))


def twin(memory: np.ndarray, described: Window | Boxes) -> Any:
    array = seen(memory, described)
    if isinstance(described, Window):
        return _hopper_twins.Window(array, *described[2:])
    return _hopper_twins.Map(array, described.box[:2])


def report(name: str, found: Any, inside: bool) -> None:
    global failures
    failures += not (found.ok and inside)
    print("ok  " if found.ok and inside else "FAIL", name, found, flush=True)


def flat(array: np.ndarray) -> np.ndarray:
    """The memory of an operand from its first element on."""
    return np.lib.stride_tricks.as_strided(array, (1,), (array.itemsize,))


def arranged(w: np.ndarray, spec: Any) -> np.ndarray:
    """The filters as the copy engine reads them: where they are, or as the kernel rearranges them."""
    if filter_steps(spec):
        return flat(w)
    packed = np.zeros(packed_steps(spec)[0] * spec.shape[0], w.dtype)
    allow(w.base if w.base is not None else w, packed)
    _access.MEMORY[0] = (w.ctypes.data, w.ctypes.data + w.nbytes)
    host.arrange_launch(spec, 0)(0, w.ctypes.data, packed.ctypes.data)
    return packed


def spoilt(trial: Trial) -> Trial:
    """Filters of which a tap is infinite and another NaN, each of one channel, and an infinite output."""
    dy, w = (a.copy() for a in trial.inputs)
    w[0, 3, 0, ..., 0], w[3, 5, -1, ..., -1], w[-1, -1, 0, ..., -1] = np.inf, np.nan, -np.inf
    dy[-1, 2, 0, ..., -1] = np.inf
    return Trial(trial.problem, (dy, w), trial.old)


def lacking() -> None:
    pixels(LACKING, spoilt)


def pixels(cases: Any = PIXELS, changed: Any = None) -> None:
    for line, m, n, splits, stays in cases:
        problem = ConvProblem.parse(line)
        p = host.product(problem)
        config = replace(
            implicit_pixels_config.config_of(
                p, implicit_pixels_config.Tiling(m, n, splits, resident=p.steps if stays else 0)
            ),
            stages=2,
        )
        if config.store == 8:
            config = replace(config, store=2)  # simulated_gemm.py has the wide one, which takes long
        trial = Trial.of(problem, kind="integers")
        trial = changed(trial) if changed else trial
        inputs = [buffer(spec, values).array for spec, values in zip(problem.inputs, trial.inputs, strict=True)]
        out = targets(problem, trial.old)[0]
        described = host.maps(p, config)
        memory = (flat(inputs[0]), arranged(inputs[1], p.filters), flat(out.array), flat(out.array))
        maps = [twin(m, d) for m, d in zip(memory, described, strict=False)]
        partial = np.full((splits, p.target.size), np.nan, np.float32)
        written = partial if splits > 1 else out.array
        read = [(m.ctypes.data, m.ctypes.data + nbytes(d)) for m, d in zip(memory[:2], described, strict=False)]
        _access.MEMORY[:] = [(written.ctypes.data, written.ctypes.data + written.nbytes), *read]
        *scalars, alpha, beta = host.arguments(p, config)
        chosen = host.pixels_kernel(problem.x.dtype, problem.axes, config, p.mends)
        places = (*maps, *(written.ctypes.data,) * (4 - len(maps)))
        launch(chosen.build(), (1, 1, 1), (chosen.threads, 1, 1), 0, *places, *scalars, f32(alpha), f32(beta))
        if splits > 1:
            _access.MEMORY[:] = [(v.ctypes.data, v.ctypes.data + v.nbytes) for v in (partial, out.array)]
            host.total_launch(p.target, problem, splits, 0)(0, partial.ctypes.data, out.array.ctypes.data)
        with np.errstate(invalid="ignore"):
            report(f"{problem} {config}", trial.compare_exactly(out.array), untouched(out))


def volumes() -> None:
    pixels(VOLUMES)


def volume_weights() -> None:
    weights("conv3d_grad_wrt_weights", VOLUME_WEIGHTS)


def weights(op: str = "conv2d_grad_wrt_weights", cases: Any = WEIGHTS) -> None:
    for line, m, n, splits, terms in cases:
        problem = ConvProblem.parse(f"{op} {line}")
        config = replace(implicit_weights.config_of(problem, m, n, splits, terms), stages=2)
        trial = Trial.of(problem, kind="integers")
        inputs = [buffer(spec, values).array for spec, values in zip(problem.inputs, trial.inputs, strict=True)]
        out = targets(problem, trial.old)[0]
        partial = np.full(splits * implicit_weights.partial_bytes(problem) // 4, np.nan, np.float32)
        allow(partial, out.array)
        described = implicit_weights.maps(problem, config)
        maps = [twin(flat(a), d) for a, d in zip((*inputs, out.array), described, strict=False)]
        *scalars, alpha = implicit_weights.arguments(problem, config)
        kernel = _implicit_weights.weights(problem.x.dtype, problem.axes, config)
        places = (*maps, *(partial.ctypes.data,) * (3 - len(maps)))
        launch(kernel, (1, 1, 1), (384, 1, 1), 0, *places, *scalars, f32(alpha))
        if not config.direct:
            implicit_weights.total_launch(problem, splits, 0)(0, partial.ctypes.data, out.array.ctypes.data)
        report(f"{problem} {config}", trial.compare_exactly(out.array), untouched(out))


def weight_totals() -> None:
    """The second kernel alone, with as many threads an element as splits ask for."""
    problem = ConvProblem.parse("conv2d_grad_wrt_weights x=float16:1x20x3x2:nhwc w=float16:24x20x1x2 beta=-1")
    k, c, _, taps = problem.w.shape
    for splits in (5, 37):
        out = targets(problem, Trial.of(problem, kind="integers").old)[0]
        rows = implicit_weights.rows_of(problem)
        partial = np.random.default_rng(splits).integers(-3, 4, (splits, rows, k)).astype(np.float32)
        sums = partial.sum(0).reshape(taps, -1, k)[:, :c]
        expected = (sums.transpose(2, 1, 0)[:, :, None, ::-1] - out.array.astype(np.float32)).astype(np.float64)
        allow(partial, out.array)
        implicit_weights.total_launch(problem, splits, 0)(0, partial.ctypes.data, out.array.ctypes.data)
        report(f"total of {splits}", compare.compare_exactly(out.array, expected), untouched(out))


if __name__ == "__main__":
    for part in sys.argv[1:]:
        globals()[part]()
    print("failures", failures)
    sys.exit(bool(failures))
