"""Pooling and its gradient over the last two or three axes: the problem, and the public functions.

A window of ``window`` elements slides by ``stride`` over the image with ``pad`` elements around it that hold nothing: output
o of an axis sees the elements o*stride - pad ... o*stride - pad + window - 1 that are inside. As pad < window and the
window fits the padded image, every window holds at least one element of the image.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

import numpy as np

from numbadnn import dispatch
from numbadnn.arrays import View
from numbadnn.dispatch import Request
from numbadnn.errors import warn
from numbadnn.call.operands import output_spec
from numbadnn.parameters import whole
from numbadnn.problem import Spec, integers, operand

MODES = ("max", "max_deterministic", "average_inc_pad", "average_exc_pad", "sum")
_OPERANDS = {"pool": ("x", "y"), "pool_grad": ("x", "y", "dy", "dx")}


@dataclass(frozen=True, slots=True)
class PoolProblem:
    """pool: ``x`` -> ``y``; pool_grad: ``x``, ``y`` (the forward output), ``dy`` -> ``dx``. One dtype for all.

    x and dx are (N, C, spatial...), y and dy (N, C, output spatial...); ``window``, ``stride`` and ``pad`` have one number
    a spatial axis.
    """

    op: str
    x: Spec
    y: Spec
    dy: Spec | None
    dx: Spec | None
    window: tuple[int, ...]
    stride: tuple[int, ...]
    pad: tuple[int, ...]
    mode: str = "max"

    #: name of the destination keyword of the public function
    @property
    def out_argument(self) -> str:
        return "out" if self.op == "pool" else "result"

    @property
    def inputs(self) -> tuple[Spec, ...]:
        return (self.x,) if self.op == "pool" else (self.x, self.y, self.dy)  # type: ignore[return-value]

    @property
    def output(self) -> Spec:
        return self.y if self.op == "pool" else self.dx  # type: ignore[return-value]

    @property
    def outputs(self) -> tuple[Spec, ...]:
        return (self.output,)

    @property
    def is_max(self) -> bool:
        return self.mode in ("max", "max_deterministic")

    @property
    def flops(self) -> int:
        return self.y.size * math.prod(self.window)

    @property
    def bytes(self) -> int:
        """What must move: the gradient of an average needs dy and dx, that of a maximum x too, neither y."""
        if self.op == "pool":
            return (self.x.size + self.y.size) * self.x.itemsize
        return (self.x.size * (2 if self.is_max else 1) + self.y.size) * self.x.itemsize

    @property
    def keywords(self) -> dict[str, Any]:
        """The parameters as keyword arguments of the public function, and of the reference."""
        return {"ws": self.window, "stride": self.stride, "mode": self.mode, "pad": self.pad}

    def __str__(self) -> str:
        operands = " ".join(f"{n}={getattr(self, n)}" for n in _OPERANDS[self.op])
        axes = " ".join(f"{n}={'x'.join(map(str, getattr(self, n)))}" for n in ("window", "stride", "pad"))
        return f"{self.op} {operands} {axes} mode={self.mode}"

    @staticmethod
    def parse(text: str) -> PoolProblem:
        """The inverse of ``str``; operands left out are packed like x, stride is the window, pad zero, mode max.

        >>> str(PoolProblem.parse("pool x=float32:2x3x8x8 window=2x2"))
        'pool x=float32:2x3x8x8 y=float32:2x3x4x4 window=2x2 stride=2x2 pad=0x0 mode=max'
        """
        op, *words = text.split()
        fields = dict(word.split("=", 1) for word in words if "=" in word)
        known = {*_OPERANDS.get(op, ()), "window", "stride", "pad", "mode"}
        if op not in _OPERANDS or len(fields) != len(words) or not {"x", "window"} <= set(fields) <= known:
            raise ValueError(f"expected '{op} x=SPEC window=2x2' and stride=.. pad=.. mode=.., got {text!r}")
        x = operand(fields["x"])
        window = integers("window", fields["window"], "x")
        stride = integers("stride", fields["stride"], "x") if "stride" in fields else window
        pad = integers("pad", fields["pad"], "x") if "pad" in fields else (0,) * len(window)
        mode = fields.get("mode", "max")
        spatial = _output_sizes("x", x.shape, window, stride, pad, mode)
        shapes = {"y": (*x.shape[:2], *spatial), "dx": x.shape}
        shapes["dy"] = shapes["y"]
        specs: dict[str, Spec | None] = dict.fromkeys(("y", "dy", "dx"))
        for name in _OPERANDS[op][1:]:
            shape = shapes[name]
            given = fields.get(name) or str(Spec.of(x.dtype, shape, x.layout))
            spec = operand(given, result=name == _OPERANDS[op][-1])
            if (spec.dtype, spec.shape) != (x.dtype, shape):
                raise ValueError(f"{name}: expected {x.dtype} {shape}, got {spec}")
            specs[name] = spec
        assert specs["y"] is not None
        return PoolProblem(op, x, specs["y"], specs["dy"], specs["dx"], window, stride, pad, mode)


PROBLEM = PoolProblem


#: what holds numbers in no order that its caller has given: no axes
UNORDERED = Set | Mapping


def _axes(name: str, value: Any, rank: int) -> tuple[int, ...]:
    """A tuple of ``rank`` integers, else TypeError or ValueError."""
    if not hasattr(value, "__iter__") or isinstance(value, UNORDERED):
        raise TypeError(f"{name}: expected {rank} integers, got {value!r}")
    try:
        numbers = [whole(v) for v in value]
    except TypeError:
        raise TypeError(f"{name}: expected integers, got {value!r}") from None
    if len(numbers) != rank:
        raise ValueError(f"{name}: expected {rank} integers, got {value!r}")
    return tuple(numbers)


def check_windows(window: tuple[int, ...], stride: tuple[int, ...], pad: tuple[int, ...]) -> None:
    """Windows, their steps and the padding fit each other, else ValueError."""
    if len(window) not in (2, 3):
        raise ValueError(f"ws: expected 2 or 3 integers, got {window}")
    for what, values, least in (("ws", window, 1), ("stride", stride, 1), ("pad", pad, 0)):
        if len(values) != len(window):
            raise ValueError(f"{what}: expected {len(window)} integers, as ws has, got {values}")
        if min(values) < least:
            raise ValueError(f"{what}: expected integers of at least {least}, got {values}")
    if any(p >= w for p, w in zip(pad, window, strict=True)):
        raise ValueError(f"pad: expected less than the window {window} on every axis, got {pad}")


def _output_sizes(
    name: str,
    shape: tuple[int, ...],
    window: tuple[int, ...],
    stride: tuple[int, ...],
    pad: tuple[int, ...],
    mode: Any,
) -> tuple[int, ...]:
    """The output's spatial sizes, after every check that the parameters and the image's shape admit."""
    if mode not in MODES:
        raise ValueError(f"mode: expected one of {', '.join(MODES)}, got {mode!r}")
    check_windows(window, stride, pad)
    if len(shape) != len(window) + 2:
        raise ValueError(f"{name}: expected {len(window) + 2} dimensions for a window {window}, got shape {shape}")
    spatial = shape[2:]
    if min(spatial) < 1:
        raise ValueError(f"{name}: expected spatial axes of at least one element, got shape {shape}")
    if any(w > n + 2 * p for n, w, p in zip(spatial, window, pad, strict=True)):
        raise ValueError(f"ws: expected no more than the padded image of {name}, {shape} with pad {pad}, got {window}")
    return tuple((n + 2 * p - w) // s + 1 for n, w, s, p in zip(spatial, window, stride, pad, strict=True))


def parameters(params: tuple[Any, ...]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], str]:
    """Window, stride, pad and mode with the defaults filled in."""
    ws, stride, mode, pad = params
    if not hasattr(ws, "__len__") or isinstance(ws, str | UNORDERED):
        raise TypeError(f"ws: expected 2 or 3 integers, got {ws!r}")
    window = _axes("ws", ws, len(ws))
    rank = len(window)
    return (
        window,
        (1,) * rank if stride is None else _axes("stride", stride, rank),
        (0,) * rank if pad is None else _axes("pad", pad, rank),
        mode,
    )


def _strides(shape: tuple[int, ...], stride: tuple[int, ...], pad: tuple[int, ...]) -> tuple[int, ...]:
    """Strides no longer than the padded image: longer ones mean the same single window, and would be lengths of tables."""
    return tuple(min(s, n + 2 * p) for s, n, p in zip(stride, shape[2:], pad, strict=True))


def _one(out_views: list[View], name: str) -> View | None:
    if len(out_views) > 1:
        raise ValueError(f"{name}: expected one array, got a tuple of {len(out_views)}")
    return out_views[0] if out_views else None


@dispatch.operation("img")
def _build_pool(views: list[View], out_views: list[View], params: tuple[Any, ...]) -> Request:
    (img,) = views
    window, stride, pad, mode = parameters(params)
    spatial = _output_sizes("img", img.shape, window, stride, pad, mode)
    stride = _strides(img.shape, stride, pad)
    y = output_spec((*img.shape[:2], *spatial), img.dtype, img, _one(out_views, "out"))
    return Request(PoolProblem("pool", img.spec(), y, None, None, window, stride, pad, mode))


@dispatch.operation("inp", "out", "out_grad", destination="result")
def _build_pool_grad(views: list[View], out_views: list[View], params: tuple[Any, ...]) -> Request:
    inp, out, out_grad = views
    window, stride, pad, mode = parameters(params)
    shape = (*inp.shape[:2], *_output_sizes("inp", inp.shape, window, stride, pad, mode))
    for name, view in (("out", out), ("out_grad", out_grad)):
        if view.shape != shape:
            raise ValueError(f"{name}: expected shape {shape}, got {view.shape}")
        if view.dtype != inp.dtype:
            raise TypeError(f"{name}: expected inp's dtype {inp.dtype}, got {view.dtype}")
    stride = _strides(inp.shape, stride, pad)
    dx = output_spec(inp.shape, inp.dtype, inp, _one(out_views, "result"), "result")
    return Request(PoolProblem("pool_grad", inp.spec(), out.spec(), out_grad.spec(), dx, window, stride, pad, mode))


def mode_of(mode: Any) -> Any:
    """The mode, with a warning where it has its deprecated name."""
    if isinstance(mode, str) and mode == "average":
        warn("mode='average': say 'average_inc_pad'", DeprecationWarning)
        return "average_inc_pad"
    return mode


def _cold_parameters(ws: Any, stride: Any, mode: Any, pad: Any) -> tuple[Any, ...]:
    """What is iterated over as tuples, so that it can be part of a key; the warning that "average" asks for."""
    mode = mode_of(mode)
    kept = str | np.ndarray | UNORDERED
    axes = [tuple(v) if hasattr(v, "__iter__") and not isinstance(v, kept) else v for v in (ws, stride, pad)]
    return axes[0], axes[1], mode, axes[2]


#: types of parameters that go into a key as they are
_PLAIN = (tuple, type(None))


def pool(
    img: Any,
    ws: Any,
    stride: Any = None,
    mode: str = "max",
    pad: Any = None,
    *,
    backend: str | None = None,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """The maximum, average or sum of each window of an image (N, C, rows, columns) or (N, C, depth, rows, columns).

    ``ws``, ``stride`` (default: ones) and ``pad`` (default: zeros) have one number a spatial axis; output size of an axis:
    ``(n + 2*pad - ws) // stride + 1``. Padding counts as -inf for max and max_deterministic, as 0 else;
    ``average_inc_pad`` divides by prod(ws), ``average_exc_pad`` by the number of elements inside the image; "average" is
    average_inc_pad, with a DeprecationWarning. A window that holds NaN gives NaN. Result: img's dtype (float16, bfloat16,
    float32, float64; 16-bit sums are kept in float32) and library. Source: spec/semantics.md 1.5.

    Raises ValueError for an unknown mode, a window, stride or pad of the wrong length or out of range (window and stride
    < 1, pad < 0, pad >= ws), a window larger than the padded image and an image of the wrong rank or with a spatial axis
    of size zero, TypeError for other dtypes and what are not integers. An empty batch gives an empty result.

    >>> import numpy as np, numbadnn
    >>> x = np.arange(16, dtype="float32").reshape(1, 1, 4, 4)
    >>> numbadnn.pool(x, (2, 2), (2, 2))[0, 0]
    array([[ 5.,  7.],
           [13., 15.]], dtype=float32)
    """
    params = (ws, stride, mode, pad)
    plain = type(ws) is tuple and type(stride) in _PLAIN and type(pad) in _PLAIN and type(mode) is str
    if not plain or mode == "average":
        params = _cold_parameters(*params)
    return dispatch.call1(_build_pool, img, params, backend, out, stream)


def pool_grad(
    inp: Any,
    out: Any,
    out_grad: Any,
    ws: Any,
    stride: Any = None,
    mode: str = "max",
    pad: Any = None,
    *,
    backend: str | None = None,
    result: Any = None,
    stream: Any = None,
) -> Any:
    """The gradient of ``pool`` in its input: each window's out_grad, to its maximum or shared among its elements.

    ``inp`` is the image, ``out`` what ``pool`` gave for it, ``out_grad`` the gradient in that. For max the whole of it goes
    to the first maximum in the window (row-major; the first NaN, where there is one); for sum each element gets all of it,
    for the averages out_grad divided as in ``pool``. ``out`` must have its shape and dtype, its values are read by cuDNN
    alone. ``result`` is the destination. Result: inp's shape, dtype and library. Source: spec/semantics.md 1.5.

    Raises what ``pool`` raises, and ValueError or TypeError where out or out_grad do not have the output's shape and
    inp's dtype. An empty batch gives an empty gradient.

    >>> import numpy as np, numbadnn
    >>> x = np.ones((1, 1, 2, 4), "float32")
    >>> y = numbadnn.pool(x, (2, 2), (2, 2))
    >>> numbadnn.pool_grad(x, y, np.full_like(y, 3), (2, 2), (2, 2))[0, 0]
    array([[3., 0., 3., 0.],
           [0., 0., 0., 0.]], dtype=float32)
    """
    params = (ws, stride, mode, pad)
    plain = type(ws) is tuple and type(stride) in _PLAIN and type(pad) in _PLAIN and type(mode) is str
    if not plain or mode == "average":
        params = _cold_parameters(*params)
    return dispatch.call_any(_build_pool_grad, (inp, out, out_grad), params, backend, result, stream)
