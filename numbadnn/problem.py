"""What is asked of an implementation: operands (``Spec``) and the rules in force (``Policy``).

A ``Spec`` is an array without its data: dtype, shape, element strides. Each family of operations adds its own frozen
``Problem`` of specs and parameters in ``ops/``; ``str(problem)`` is one line and parses back, so that the same text is
cache key, log line, command-line argument, test id and bench row. A spec is written ``float32:2x3x8x8`` (C order),
``float32:2x3x8x8:nhwc`` (channels last) or ``float32:2x3x8x8:192,64,8,1`` (any other strides, in elements).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from numbadnn.parameters import LARGEST

ITEMSIZE = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Element strides of a C-ordered array of this shape."""
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))


def channels_last_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Element strides of an array of logical shape (N, C, spatial...) stored N, spatial..., C."""
    n, c, *spatial = shape
    sn, *ss, sc = contiguous_strides((n, *spatial, c))
    return (sn, sc, *ss)


def normalised_strides(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    """The same memory, with strides that no element depends on (axes of size 0 or 1) made canonical.

    A canonical free stride is that of the tightest layout the other axes already fit: C order if they fit it, else
    channels last if they fit that, else the C-order value.
    """
    if 0 in shape:
        return contiguous_strides(shape)
    layouts = [contiguous_strides(shape)]
    if len(shape) >= 3:
        layouts.append(channels_last_strides(shape))
    for layout in layouts:
        if all(n == 1 or s == t for n, s, t in zip(shape, strides, layout, strict=True)):
            return layout
    return tuple(t if n == 1 else s for n, s, t in zip(shape, strides, layouts[0], strict=True))


@dataclass(frozen=True, slots=True)
class Spec:
    """Dtype name, shape and element strides of one operand; ``aligned``: its address is a multiple of 16 bytes."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    aligned: bool = True

    @staticmethod
    def of(dtype: str, shape: tuple[int, ...], layout: str = "") -> Spec:
        """A packed operand: C order, or ``layout="nhwc"`` for channels last.

        >>> str(Spec.of("float32", (2, 3, 8, 8), "nhwc"))
        'float32:2x3x8x8:nhwc'
        """
        return Spec(dtype, tuple(shape), (channels_last_strides if layout else contiguous_strides)(tuple(shape)))

    @property
    def itemsize(self) -> int:
        return ITEMSIZE[self.dtype]

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def is_contiguous(self) -> bool:
        return self.strides == contiguous_strides(self.shape)

    @property
    def is_channels_last(self) -> bool:
        return len(self.shape) >= 3 and self.strides == channels_last_strides(self.shape)

    @property
    def layout(self) -> str:
        """How a result is packed that follows this operand, for ``of``: channels last only where C order is not the same.

        Only the strides within an image count, so that a batch that is cut or reversed gives results like the whole one. The
        order of sums follows the layout, and the bits of an image must not depend on its batch.

        >>> Spec.parse("float32:4x3x8x8:384,1,24,3").layout
        'nhwc'
        """
        if len(self.shape) < 3:
            return ""
        image = (1, *self.shape[1:])
        alone = normalised_strides(image, (math.prod(image), *self.strides[1:]))
        return "nhwc" if alone != contiguous_strides(image) and alone == channels_last_strides(image) else ""

    @property
    def span(self) -> tuple[int, int]:
        """Lowest and highest element offset that any index reaches, from the array's own address."""
        if self.size == 0:
            return 0, 0
        reach = [(n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)]
        return sum(min(r, 0) for r in reach), sum(max(r, 0) for r in reach)

    def __str__(self) -> str:
        text = f"{self.dtype}:{'x'.join(map(str, self.shape))}"
        if not self.is_contiguous:
            text += ":nhwc" if self.is_channels_last else ":" + ",".join(map(str, self.strides))
        return text if self.aligned else text + ":unaligned"

    @staticmethod
    def parse(text: str) -> Spec:
        """The inverse of ``str``.

        >>> Spec.parse("float16:4x1x2x2").strides
        (4, 4, 2, 1)
        """
        dtype, shape_text, *rest = text.split(":") if ":" in text else ("", "")
        aligned = "unaligned" not in rest
        rest = [r for r in rest if r != "unaligned"]
        if dtype not in ITEMSIZE or len(rest) > 1:
            raise ValueError(
                f"expected DTYPE:AxBxC[:nhwc|:strides] with a dtype of {', '.join(ITEMSIZE)}, got {text!r}"
            )
        shape = integers("shape", shape_text, "x")
        if any(not 0 <= n <= LARGEST for n in shape):
            raise ValueError(f"expected sizes from 0 to 2**40, got {text!r}")
        if not rest:
            strides = contiguous_strides(shape)
        elif rest[0] == "nhwc":
            strides = channels_last_strides(shape)
        else:
            strides = integers("strides", rest[0])
        if len(strides) != len(shape):
            raise ValueError(f"expected one stride an axis, got {text!r}")
        return Spec(dtype, shape, strides, aligned)


def integers(name: str, text: str, between: str = ",") -> tuple[int, ...]:
    """The integers of a word of a problem's line; ValueError with its name otherwise.

    >>> integers("pad", "1,0")
    (1, 0)
    """
    try:
        return tuple(int(n) for n in text.split(between))
    except ValueError:
        raise ValueError(f"{name}: expected integers with {between!r} between them, got {text!r}") from None


def integer(name: str, text: str) -> int:
    """The one integer of such a word."""
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{name}: expected an integer, got {text!r}") from None


def number(name: str, text: str) -> float:
    """The number of a word of a problem's line; ValueError with its name otherwise."""
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{name}: expected a number, got {text!r}") from None


def is_dense(spec: Spec) -> bool:
    """Whether a new array may have these strides: its elements follow each other in some order of its axes.

    >>> is_dense(Spec.of("float32", (2, 3, 4), "nhwc")), is_dense(Spec("float32", (2, 3), (6, 2)))
    (True, False)
    """
    follows = 1
    for stride, n in sorted((s, n) for s, n in zip(spec.strides, spec.shape, strict=True) if n != 1):
        if stride != follows:
            return spec.size == 0
        follows *= n
    return True


def shown(number: float) -> str:
    """A number in a problem's line: as short as may be, but no other number when it is read back.

    >>> shown(1.0), shown(0.1), shown(0.12345678)
    ('1', '0.1', '0.12345678')
    """
    return short if float(short := f"{number:g}") == number else repr(number)


def operand(text: str, result: bool = False) -> Spec:
    """An operand of a problem's line, as the call has it: an input as the view of its array, a result as it is allocated.

    >>> str(operand("float16:64x64x1x1:nhwc")), str(operand("float16:64x64x1x1:nhwc", result=True))
    ('float16:64x64x1x1', 'float16:64x64x1x1:nhwc')
    """
    spec = Spec.parse(text)
    return spec if result else replace(spec, strides=normalised_strides(spec.shape, spec.strides))


#: under these levels a choice may depend neither on the size of the batch nor on the machine: nothing measured decides
FIXED_LEVELS = ("batch_invariant", "gpu_to_gpu")


@dataclass(frozen=True, slots=True)
class Policy:
    """The options that may change which implementation is admitted, or what it may do; part of every key.

    ``device`` is the CUDA ordinal, -1 for the CPU. ``algo`` is the option of the operation's direction.
    """

    device: int = -1
    determinism: str = "run_to_run"
    fp32_precision: str = "ieee"
    precision: str = "as_input_f32"
    algo: str = "auto"
    workspace_limit: int = 1 << 30
    accuracy: str = "normwise"
