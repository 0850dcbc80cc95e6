"""numbadnn under the convolutions of a model that nobody changes: ``batch_invariant`` and ``deterministic``.

While one is in force, ``aten::convolution``, ``aten::_convolution`` and their backward are numbadnn's for tensors on the CPU and
on CUDA, in every thread. Integers go to PyTorch's kernel, and are counted; complex numbers come as real ones. A graph that was
compiled keeps its calls of ``aten::convolution``, but a compiler may have put others in their place: convert such a model.
"""

from __future__ import annotations

import functools
import os
import threading
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from numbadnn.arrays import torch_
from numbadnn.errors import warn
from numbadnn.torch.arguments import DTYPES
from numbadnn.torch.conv import CONV, CONV_GRAD_INPUT, CONV_GRAD_WEIGHT
from numbadnn.torch.layout import channels_last
from numbadnn.torch.library import outside

ENVIRONMENT = "NUMBADNN_TORCH"
LEVELS = {"batch_invariant": "batch_invariant", "deterministic": "run_to_run"}
_FORWARD, _BACKWARD = torch.ops.aten.convolution.default, torch.ops.aten.convolution_backward.default
#: what PyTorch's own kernel of the first calls, with four of its options; graphs of torch.jit have it alone
_INNER = torch.ops.aten._convolution.default
_THERE = torch._C.DispatchKey.CompositeExplicitAutograd


@dataclass
class Counts:
    """Convolutions and their gradients that numbadnn ``computed``, and those that went ``elsewhere``, by the reason."""

    computed: int = 0
    elsewhere: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        others = ", ".join(f"{count} by PyTorch ({reason})" for reason, count in self.elsewhere.items())
        return f"{self.computed} by numbadnn" + (f", {others}" if others else "")


class _Under:
    """The kernels while a level is in force; blocks nest, and the last one that began decides."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.blocks: list[tuple[str, Counts]] = []
        self.library: Any = None

    def begin(self, level: str) -> tuple[str, Counts]:
        block = (f"determinism={level}", Counts())
        with self.lock:
            self.blocks.append(block)
            if self.library is None:
                self.library = torch.library.Library("aten", "IMPL")
                with warnings.catch_warnings():
                    warnings.filterwarnings("ignore", "Warning only once for all operators")
                    for key in ("CPU", "CUDA"):  # PyTorch warns of what is meant here
                        self.library.impl("convolution", functools.partial(outside, _convolution), key)
                        self.library.impl("_convolution", functools.partial(outside, _inner), key)
                        self.library.impl("convolution_backward", functools.partial(outside, _backward), key)
        return block

    def end(self, block: tuple[str, Counts]) -> None:
        with self.lock:
            self.blocks = [b for b in self.blocks if b is not block]
            if not self.blocks and self.library is not None:
                self.library._destroy()
                self.library = None


_under = _Under()


def _uncovered(*tensors: Any) -> str:
    for tensor in tensors:
        if tensor is not None and tensor.dtype not in DTYPES:
            return str(tensor.dtype).removeprefix("torch.")
    first = tensors[0]
    return "" if all(t is None or t.dtype is first.dtype for t in tensors) else "mixed dtypes"


@functools.lru_cache(512)
def _how(count: int, stride: Any, padding: Any, dilation: Any, groups: int, options: str) -> tuple[Any, ...]:
    """The parameters of an operator; a single number stands for every axis."""
    ends = tuple(p for pad in _axes(padding, count) for p in (pad, pad))
    return ends, _axes(stride, count), _axes(dilation, count), groups, "", options


def _same_layout(x: Any, w: Any) -> Any:
    """PyTorch's result is channels last if the filters are."""
    if x.ndim < 4 or channels_last(x) or not channels_last(w):
        return x
    return x.contiguous(memory_format=torch.channels_last if x.ndim == 4 else torch.channels_last_3d)


def _axes(values: Sequence[int], count: int) -> tuple[int, ...]:
    return tuple(values) if len(values) == count else tuple(values) * count


def _convolution(
    x: Any,
    w: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> Any:
    given = x, w, bias, stride, padding, dilation, transposed, output_padding, groups
    if torch_._tracing():  # by torch.jit, which looks at what this calls
        return _FORWARD._op_dk(_THERE, *given)
    return _inner(*given)


def _inner(
    x: Any, w: Any, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool, output_padding: Any, groups: int,
    *flags: bool,
) -> Any:  # fmt: skip
    options, counts = _under.blocks[-1]
    if reason := _uncovered(x, w, bias):
        counts.elsewhere[reason] += 1
        given = x, w, bias, stride, padding, dilation, transposed, output_padding, groups
        on = torch.backends.cudnn
        return _INNER._op_dk(_THERE, *given, *(flags or (on.benchmark, on.deterministic, on.enabled, on.allow_tf32)))
    counts.computed += 1
    n = x.ndim - 2
    how = _how(n, tuple(stride), tuple(padding), tuple(dilation), groups, options)
    before = torch.is_grad_enabled()
    torch._C._set_grad_enabled(False)  # as no_grad does, which takes several microseconds
    try:
        x = _same_layout(x, w)
        if transposed:
            ends, stride, dilation, *_ = how
            more = _axes(output_padding, n)
            sizes = [
                (x.shape[2 + i] - 1) * stride[i] - 2 * ends[2 * i] + (w.shape[2 + i] - 1) * dilation[i] + 1 + more[i]
                for i in range(n)
            ]
            return CONV_GRAD_INPUT.kernel(x, w, bias, (x.shape[0], w.shape[1] * groups, *sizes), *how)
        return CONV.kernel(x, w, bias, *how)
    finally:
        torch._C._set_grad_enabled(before)


def _backward(
    g: Any, x: Any, w: Any, bias_sizes: Any, stride: Any, padding: Any, dilation: Any, transposed: bool, output_padding: Any,
    groups: int, mask: Sequence[bool],
) -> Any:  # fmt: skip
    options, counts = _under.blocks[-1]
    if reason := _uncovered(g, x, w):
        counts.elsewhere[reason] += 1
        given = g, x, w, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, mask
        return _BACKWARD._op_dk(_THERE, *given)
    counts.computed += 1
    n = x.ndim - 2
    how = _how(n, tuple(stride), tuple(padding), tuple(dilation), groups, options)
    gx = gw = gb = None
    with torch.no_grad():
        if mask[0]:
            if transposed:
                gx = CONV.kernel(g, w, None, *how)
            else:
                gx = CONV_GRAD_INPUT.kernel(g, w, None, tuple(x.shape), *how)
        if mask[1]:
            image, top = (g, x) if transposed else (x, g)
            gw = CONV_GRAD_WEIGHT.kernel(image, top, tuple(w.shape), *how)
        if mask[2]:
            gb = g.sum([0, *range(2, g.ndim)])
    return gx, gw, gb


@contextmanager
def _block(name: str) -> Iterator[Counts]:
    block = _under.begin(LEVELS[name])
    try:
        yield block[1]
    finally:
        _under.end(block)
        if block[1].elsewhere:
            warn(f"numbadnn.torch.{name}: convolutions were computed {block[1]}, which numbadnn guarantees nothing of")


def batch_invariant() -> Any:
    """Within, convolutions of any model give a sample the same bits whatever batch it is in; yields ``Counts``.

    In every thread, forwards; and gradients that are the same from run to run. On exit PyTorch's own kernels are back. A warning
    says how many convolutions went elsewhere. The level is ``batch_invariant`` of ``numbadnn.using(determinism=...)``. Other
    operations (matrix products, batch normalization in training) stay PyTorch's. ``NUMBADNN_TORCH=batch_invariant`` in the
    environment does the same from the import of ``numbadnn.torch`` on.

    >>> import torch, numbadnn.torch
    >>> model, x = torch.nn.Conv1d(8, 16, 1), torch.randn(7, 8, 33)
    >>> with numbadnn.torch.batch_invariant() as counts:
    ...     torch.equal(model(x)[:1], model(x[:1])), str(counts)
    (True, '2 by numbadnn')
    """
    return _block("batch_invariant")


def deterministic() -> Any:
    """Within, convolutions of any model and their gradients are the same from run to run; as ``batch_invariant``.

    >>> import torch, numbadnn.torch
    >>> with numbadnn.torch.deterministic() as counts:
    ...     _ = torch.nn.functional.conv2d(torch.ones(1, 1, 4, 4), torch.ones(1, 1, 3, 3))
    >>> counts.computed
    1
    """
    return _block("deterministic")


def counts() -> Counts | None:
    """Of the block in force, or of the environment's; None where PyTorch computes its own convolutions."""
    return _under.blocks[-1][1] if _under.blocks else None


def from_environment() -> None:
    """Begin what ``NUMBADNN_TORCH`` asks for; ValueError for what it does not know."""
    name = os.environ.get(ENVIRONMENT, "")
    if name and name not in LEVELS:
        raise ValueError(f"{ENVIRONMENT}: expected one of {', '.join(LEVELS)}, got {name!r}")
    if name:
        _under.begin(LEVELS[name])
