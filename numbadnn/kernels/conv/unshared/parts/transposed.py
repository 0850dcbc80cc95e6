"""Images transposed to [channel, row, column][image] in the workspace; device code: ``device/transposed.py``.

The boxes of blocks overlap, so a pixel is read several times. As it lies in memory its images are far apart, and each is a read
of its own; transposed once, 16 bytes of them are one asynchronous copy. In cells, [eight images][channel, row, column][image], a
row of pixels is one of 16-bit types.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from numbadnn.kernels.build import tensormap as _tensormap
from numbadnn.kernels.build.launch import Kernel, sequence
from numbadnn.kernels.build.plans import around
from numbadnn.kernels.build.support import LIMIT32
from numbadnn.kernels.conv.unshared.parts.transposed_config import PIXELS, THREADS
from numbadnn.problem import Policy, Spec
from numbadnn.problems.conv import ConvProblem
from numbadnn.registry import SEQUENCE, Executable

#: images of a cell of 16-bit types, its bytes
EIGHT, CELL = 8, 16
#: bytes that come to the L2 cache together for copies of tiles: the other half of 256 would be given up before it is read
FETCH = 128
#: bytes, at most, that the L2 cache is asked to give up last: what was transposed is read soon and written anew by the next call,
#: while filters pass through, and memory is not to be bothered with it. Filters' gradients of 32 float16 images of 64x64 took
#: 4 % longer without (H200). The cache has 50 MB, and others want it too: behind calls that kept 34 MB so, 36 MB were added in
#: it in 10.9 us for 9.0
LASTING = 17 * 10**6


def transposed_arrays(problem: ConvProblem) -> tuple[Spec, ...]:
    """x, and y as well for the gradient of the filters."""
    return (problem.x, problem.y) if problem.direction == "grad_weights" else (problem.x,)


def space_bytes(problem: ConvProblem, images: int) -> int:
    return sum(math.prod(array.shape[1:]) for array in transposed_arrays(problem)) * images * problem.x.itemsize


def fits(problem: ConvProblem, policy: Policy, images: int) -> bool:
    """Whether the workspace may hold them, and 32 bits their offsets."""
    space = space_bytes(problem, images)
    return 0 < space < LIMIT32 and space <= policy.workspace_limit


def cells_map(problem: ConvProblem, images: int, box: tuple[int, int, int], device: int) -> Any:
    """Of images in cells: pixels of a row, rows, channels, vectors of eight images; a copy has a box of channels, rows and
    columns."""
    _, C, H, W = problem.x.shape
    deep, tall, wide = box
    extents, strides = (EIGHT * W, H, C, images // EIGHT), (W * CELL, H * W * CELL, C * H * W * CELL)
    how = extents, strides, (EIGHT * wide, tall, deep, images // EIGHT)
    return _tensormap.described(device, problem.x.dtype, how, swizzled=False, fetch=FETCH)


def strides(shape: tuple[int, ...], images: int) -> tuple[int, int, int, int]:
    """Of transposed images."""
    _, _, H, W = shape
    return 1, H * W * images, W * images, images


def vector(arrays: tuple[Spec, ...]) -> int:
    """Pixels of an access: 16 bytes of them where each image is one row, else one."""
    vec = 16 // arrays[0].itemsize
    whole = all(
        array.aligned
        and _as_one_row(array)[0] == 1
        and array.strides[3] == 1
        and not array.strides[0] % vec
        and not math.prod(array.shape[1:]) % vec
        for array in arrays
    )
    return vec if whole else 1


def lasts(nbytes: int) -> bool:
    """Whether the L2 cache is asked to give up so much last."""
    return nbytes <= LASTING


def kernel(itemsize: int, images: int, vec: int, cells: bool = False, lasting: bool = False) -> Kernel:
    def build() -> Callable[..., None]:
        from numbadnn.kernels.conv.unshared.parts.device import transposed

        return transposed.transpose(itemsize, images, vec, cells, lasting)

    return Kernel(
        f"unshared transpose {itemsize} {images} {vec}{' cells' if cells else ''}{' lasting' if lasting else ''}",
        "ptr ptr ptr i32 i32 i32 i32 i32*2 i32*2 i64*4 i64*4",
        build,
        THREADS,
        4,
    )


def transposing(arrays: tuple[Spec, ...], device: int, images: int, cells: bool = False) -> Any:
    """The launch that transposes one array or two; one, if in cells."""
    pixels = [math.prod(array.shape[1:]) for array in arrays]
    blocks = [-(-number // PIXELS) for number in pixels]
    shapes = [_as_one_row(array) for array in arrays]
    scalars = (
        *(arrays[0].shape[0], blocks[0], pixels[0], pixels[-1], shapes[0], shapes[-1]),
        *(arrays[0].strides, arrays[-1].strides),
    )
    lasting = lasts(sum(pixels) * images * arrays[0].itemsize)
    transpose = kernel(arrays[0].itemsize, images, vector(arrays), cells, lasting)
    return transpose.prepare(device, (sum(blocks), 1, 1), (THREADS, 1, 1), scalars)


def executable(
    problem: ConvProblem,
    policy: Policy,
    images: int,
    launch: Any,
    arithmetic: str,
    facts: dict[str, Any],
    cells: bool = False,
) -> Executable:
    """Transposes in one launch, then ``launch``, which takes both inputs, transposed or not, and the output."""
    arrays, size = transposed_arrays(problem), problem.x.itemsize
    transpose, first = transposing(arrays, policy.device, images, cells), math.prod(arrays[0].shape[1:])
    taken = f"space space+{first * images * size} result" if len(arrays) > 1 else "space other result"
    direct = sequence("x other result space", [(transpose, "x other space"), (launch, taken)])

    return around(direct, facts, space_bytes(problem, images), arithmetic, "run_to_run", SEQUENCE)


def _as_one_row(array: Spec) -> tuple[int, int]:
    """Rows and columns; one row where rows and channels follow each other as pixels do."""
    _, C, H, W = array.shape
    _, planes, rows, columns = array.strides
    return (1, C * H * W) if rows == W * columns and planes == H * rows else (H, W)


def kernels() -> Iterator[Kernel]:
    """Both sizes of elements."""
    yield kernel(2, 32, 8, lasting=True)
    yield kernel(4, 16, 1)


def hopper_kernels() -> Iterator[Kernel]:
    """In cells."""
    yield kernel(2, 32, 8, True)
    yield kernel(2, 8, 1, True)
