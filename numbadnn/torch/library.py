"""The operators ``torch.ops.numbadnn.*``: what PyTorch's dispatcher, compiler and transforms see of numbadnn.

An operator computes at once, without gradients: those are of the ``autograd.Function`` in front of it, which ``compute`` takes
where one is needed. Where nothing of PyTorch's looks on, ``compute`` leaves the dispatcher out too: 1 us instead of 5.
``backend`` and ``options`` are arguments of each operator, so that a graph and a gradient keep what was in force.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad

from numbadnn import config
from numbadnn.arrays import torch_

#: of the process: the operators live as long as this does
LIBRARY = torch.library.Library("numbadnn", "DEF")
#: the compiler hands arrays over with the strides that it saw, as those of a result follow from them
TAGS = (torch.Tag.pt2_compliant_tag, getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order))


class Operator(NamedTuple):
    """``op`` for the dispatcher, ``kernel`` for what it would call."""

    op: Any
    kernel: Callable[..., Any]


def define(
    name: str,
    arguments: str,
    returns: str,
    kernel: Callable[..., Any],
    fake: Callable[..., Any],
    vmap: Callable[..., Any],
) -> Operator:
    """An operator of these arguments, ``backend`` and ``options``.

    ``kernel`` gets the arguments and ``backend``. ``fake`` gets the arguments and returns results without memory. ``vmap`` gets
    the operator, the size of the mapped axis, where each argument has it, and all arguments; its results have it in front.
    """
    LIBRARY.define(f"{name}({arguments}, str backend, str options) -> {returns}", tags=TAGS)

    def run(*given: Any) -> Any:
        *values, backend, options = given
        if not options:
            return kernel(*values, backend or None)
        before = config._using.set(_options(options))
        try:
            return kernel(*values, backend or None)
        finally:
            config._using.reset(before)

    for key in ("CPU", "CUDA"):
        LIBRARY.impl(name, run, key)
    torch.library.register_fake(f"numbadnn::{name}", lambda *given: fake(*given[:-2]), lib=LIBRARY)

    op = getattr(torch.ops.numbadnn, name).default

    def mapped(info: Any, axes: Any, *given: Any) -> Any:
        found = vmap(op, info.batch_size, axes, *given)
        return found, ((0,) * len(found) if isinstance(found, tuple) else 0)

    torch.library.register_vmap(f"numbadnn::{name}", mapped, lib=LIBRARY)
    return Operator(op, run)


# ---- which way a call goes -------------------------------------------------------------------------------------------

_PLAIN = (torch.Tensor, torch.nn.Parameter)


def compute(operator: Operator, function: Any, tensors: tuple[Any, ...], *arguments: Any) -> Any:
    """The operator's results for ``arguments``, through ``function`` where a gradient or a transform asks for it.

    ``tensors`` are those of the arguments.
    """
    if torch.compiler.is_compiling():
        return function.apply(*arguments)
    if torch_._transform() is not None or forward_ad._current_level >= 0:
        return function.apply(*arguments)
    if torch.is_grad_enabled():
        for tensor in tensors:
            if tensor.requires_grad:
                return function.apply(*arguments)
    if torch_._modes() or torch_._tracing():
        return operator.op(*arguments)
    for tensor in tensors:
        if type(tensor) not in _PLAIN:
            return operator.op(*arguments)
    return operator.kernel(*arguments)


# ---- options ---------------------------------------------------------------------------------------------------------

#: what is of a machine and a run, and no part of a graph
_OF_THE_RUN = ("plan_file", "plan_strict", "cache_dir", "cudnn_library", "errata_file", "verbose", "tune", "nvtx")
_TEXTS: dict[tuple[Any, str | None], str] = {}
_OPTIONS: dict[tuple[str, Any], config.Options] = {}


@torch.compiler.assume_constant_result
def in_force(backend: str | None, determinism: str | None) -> tuple[str, str]:
    """``backend`` and ``determinism`` of a call with all else that ``numbadnn.using`` has set, as an operator's words."""
    if backend is not None and backend not in config.BACKENDS:
        raise ValueError(f"backend: expected one of {', '.join(config.BACKENDS)} or None, got {backend!r}")
    key = config._using.get(), determinism
    text = _TEXTS.get(key)
    if text is None:
        text = _TEXTS[key] = _text(*key)
    return backend or "", text


def _text(using: config.Options | None, determinism: str | None) -> str:
    values = {} if using is None else vars(using)
    set_ones = {n: v for n, v in values.items() if using.origin[n] == "using" and n not in _OF_THE_RUN}  # type: ignore
    if determinism is not None:
        set_ones["determinism"] = config.parse("determinism", determinism, "determinism")
    return " ".join(f"{name}={_shown(name, value)}" for name, value in sorted(set_ones.items()))


def _shown(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(value) or "auto"
    return f"{value}B" if name == "workspace_limit" else str(value)


def _options(text: str) -> config.Options:
    """The options that a text asks for, over those in force now."""
    base = config.current()
    found = _OPTIONS.get((text, base))
    if found is None:
        words = dict(word.split("=", 1) for word in text.split(" "))
        values = {name: config.parse(name, value, "options") for name, value in words.items()}
        found = _OPTIONS[text, base] = base.replace(values, dict.fromkeys(values, "using"))
    return found
