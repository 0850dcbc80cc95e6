"""Problems that reach kernels for which those of the contract are too small, by the kind of configuration that shows it."""

from typing import Any

from numbadnn.problem import Policy
from numbadnn.registry import Impl, implementations

IMAGES, FILTERS = "conv2d_grad_wrt_inputs", "conv2d_grad_wrt_weights"
#: of numba.unshared: (kind of configuration, problem)
UNSHARED = (
    ("F32x2Config", "conv2d x=float32:32x16x31x31 w=float32:16x23x23x16x9x9"),
    ("F32x2Config", "conv2d x=float32:24x32x37x33 w=float32:48x37x33x16x3x3 pad=1,1,1,1 groups=2 alpha=-0.5 beta=2"),
    ("F32x2Config", "conv2d x=float32:19x16x57x57 w=float32:20x27x27x16x5x5 stride=2,2 flip=0"),
    ("F32x2Config", "conv2d x=float32:9x16x31x31 w=float32:72x23x23x16x9x9 alpha=-0.5 beta=2"),
    (
        "BoxConfig",
        "conv2d x=float32:24x16x53x55 w=float32:24x26x27x8x5x5 pad=1,1,1,1 stride=2,2 groups=2 alpha=-0.5 beta=2",
    ),
    ("BoxConfig", "conv2d x=float32:32x8x42x42 w=float32:4x34x34x8x9x9 flip=0"),
    ("BoxConfig", "conv2d x=float32:8x8x42x42 w=float32:16x34x34x8x9x9"),
    ("StreamConfig", "conv2d x=float16:32x16x36x36 w=float16:16x28x28x16x9x9"),
    ("StreamConfig", "conv2d x=bfloat16:19x16x36x36 w=bfloat16:20x28x28x16x9x9 alpha=2 beta=-1"),
    ("StreamConfig", "conv2d x=float16:32x32x32x32 w=float16:32x32x32x32x3x3 pad=1,1,1,1 flip=0"),
    (
        "StreamConfig",
        "conv2d x=bfloat16:19x16x16x26 w=bfloat16:60x16x26x8x5x5 pad=2,2,2,2 groups=2 alpha=2 beta=-1",
    ),
    ("StreamConfig", "conv2d x=float16:3x32x32x32 w=float16:24x32x32x32x3x3 pad=1,1,1,1"),
    ("StreamConfig", "conv2d x=float16:12x32x29x31 w=float16:32x29x31x32x3x3 pad=1,1,1,1 alpha=2 beta=-1"),
    ("StreamConfig", "conv2d x=float16:32x32x48x48 w=float16:32x48x48x32x3x3 pad=1,1,1,1 flip=0"),
    ("StreamConfig", "conv2d x=bfloat16:19x16x37x33 w=bfloat16:48x37x33x8x5x5 pad=2,2,2,2 groups=2 alpha=2 beta=-1"),
    ("StreamConfig", "conv2d x=float16:3x32x71x73 w=float16:20x36x37x32x3x3 pad=1,1,1,1 stride=2,2"),
    ("StreamConfig", "conv2d x=float16:12x56x46x44 w=float16:24x46x44x56x3x3 pad=1,1,1,1"),
    ("StreamConfig", "conv2d x=float16:16x16x64x60 w=float16:16x64x60x16x3x3 pad=1,1,1,1"),
    ("F16Config", "conv2d x=float16:16x32x36x36 w=float16:40x36x36x32x3x3 pad=1,1,1,1"),
    ("RowsConfig", f"{IMAGES} x=float32:8x16x25x21 w=float32:8x13x11x16x3x3 pad=1,1,1,1 stride=2,2"),
    ("RowsConfig", f"{IMAGES} x=float32:32x16x31x31 w=float32:16x23x23x16x9x9"),
    ("RowsConfig", f"{IMAGES} x=float32:17x16x36x36 w=float32:12x28x28x16x9x9 flip=0 alpha=2 beta=-1"),
    ("RowsConfig", f"{IMAGES} x=float32:32x16x31x31 w=float32:16x20x20x16x12x12"),
    ("RowsConfig", f"{IMAGES} x=float32:32x64x20x21 w=float32:40x20x21x32x3x3 pad=1,1,1,1 groups=2"),
    ("RowsConfig", f"{IMAGES} x=float32:10x24x61x57 w=float32:16x29x27x24x5x5 stride=2,2"),
    ("InputsF32x2Config", f"{IMAGES} x=float32:32x32x40x44 w=float32:32x40x44x32x3x3 pad=1,1,1,1 flip=0"),
    (
        "InputsF32x2Config",
        f"{IMAGES} x=float32:19x64x24x24 w=float32:40x24x24x32x3x3 pad=1,1,1,1 groups=2 alpha=2 beta=-1",
    ),
    ("InputsF32x2Config", f"{IMAGES} x=float32:16x16x36x36 w=float32:16x32x32x16x5x5"),
    ("RowsConfig", f"{IMAGES} x=float16:32x16x31x31 w=float16:16x23x23x16x9x9"),
    ("RowsConfig", f"{IMAGES} x=bfloat16:8x32x32x32 w=bfloat16:20x32x32x32x3x3 pad=1,1,1,1 alpha=2 beta=-1"),
    ("RowsConfig", f"{IMAGES} x=float16:1x32x32x32 w=float16:32x32x32x32x3x3 pad=1,1,1,1"),
    ("RowsConfig", f"{IMAGES} x=float16:32x32x32x32 w=float16:32x32x32x32x3x3 pad=1,1,1,1 flip=0"),
    ("RowsConfig", f"{IMAGES} x=float16:24x32x20x20 w=float16:64x20x20x16x3x3 pad=1,1,1,1 groups=2"),
    ("RowsConfig", f"{IMAGES} x=float16:32x32x64x64 w=float16:32x64x64x32x3x3 pad=1,1,1,1 flip=0"),
    (
        "RowsConfig",
        f"{IMAGES} x=bfloat16:13x32x57x64 w=bfloat16:32x55x64x16x4x3 pad=1,0,1,1 groups=2 alpha=2 beta=-1",
    ),
    ("RowsConfig", f"{IMAGES} x=float16:24x16x62x80 w=float16:16x60x78x16x3x3"),
    ("WeightsManyConfig", f"{FILTERS} x=float32:32x16x31x31 w=float32:16x23x23x16x9x9"),
    ("WeightsManyConfig", f"{FILTERS} x=float16:32x32x32x32 w=float16:32x32x32x32x3x3 pad=1,1,1,1"),
)
#: the same of others, by name
OTHERS = (
    ("numba.unshared", "F16Config", "conv2d x=float16:8x16x40x40 w=float16:96x38x38x16x3x3"),
    ("numba.line", "BoxesConfig", "causal_conv1d x=float32:8x64x1x8000 w=float32:64x64x1x3 pad=0,0,2,0"),
    (
        "numba.grouped_halves",
        "GroupedWeightsConfig",
        f"{FILTERS} x=float16:32x128x56x56:nhwc w=float16:128x4x3x3:nhwc pad=1,1,1,1 groups=32",
    ),
)


def first(family: str, problem: Any, policy: Policy) -> Impl:
    """The implementation whose name begins with ``family`` that would be chosen for a problem."""
    found = sorted((i for i in implementations(problem.op) if i.name.startswith(family)), key=lambda i: i.rank(problem))
    return next(i for i in found if not i.supports(problem, policy))


def first_config(members: Any, problem: Any, policy: Policy) -> Any:
    """The configuration of the first kernel of a wing that takes a problem."""
    taking = (m for m in members if problem.op in m.ops)
    return next(c for m in taking if (c := m.heuristic(problem, policy)) is not None)
