"""The operators ``torch.ops.numbadnn.*``: what PyTorch's dispatcher, compiler and transforms see of numbadnn.

Each has an ``autograd.Function`` under the dispatcher's key for gradients, for one level of ``torch.func`` at a time, as
PyTorch's own operators have theirs. Where nothing of PyTorch's looks on, ``compute`` leaves the dispatcher out.
``backend`` and ``options`` are arguments of each operator, so that a graph and a gradient keep what was in force.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._functorch.autograd_function import enable_single_level_autograd_function
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction

from numbadnn import config
from numbadnn.arrays import torch_
from numbadnn.call.launch import thread
from numbadnn.torch.arguments import plain
from numbadnn.torch.ready import Launch, Seen, keep, last_launch, note, room

_using = config._using.get
#: what the dispatcher calls -> the operator
OPERATORS: dict[Any, Operator] = {}
#: of the process: the operators live as long as this does
LIBRARY = torch.library.Library("numbadnn", "DEF")
#: the compiler hands arrays over with the strides that it saw, as those of a result follow from them
TAGS = (torch.Tag.pt2_compliant_tag, getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order))


class Function(_SingleLevelFunction):
    """An ``autograd.Function`` of one level of ``torch.func``: that for all levels looks its signature up in each call."""

    _compiled_autograd_key = staticmethod(torch.autograd.Function._compiled_autograd_key)


class Operator:
    """``op`` is what the dispatcher knows, ``kernel`` what that would call, ``tracked`` the call that records gradients."""

    __slots__ = ("after", "kernel", "op", "remembers", "tensors", "tracked")

    def __init__(self, op: Any, kernel: Callable[..., Any], tensors: int, after: Any, remembers: bool) -> None:
        self.op, self.kernel, self.tracked, self.after, self.remembers = op, kernel, op, after, remembers
        #: so many of the arguments are tensors, the first ones
        self.tensors = tensors

    def __call__(self, tensors: tuple[Any, ...], how: tuple[Any, ...], launch: Launch | None = None) -> Any:
        """What an ``autograd.Function`` of these arguments runs: without gradients of its own level, with those of outer ones.

        ``launch``: of a call that ``seen`` knows.
        """
        given = tensors if tensors[-1] is not None else present(tensors)
        if launch is not None and (result := launch(given)) is not None:
            return result if self.after is None else self.after(result, *tensors)
        if torch_._transform() is not None:
            with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True), torch._C._AutoDispatchBelowAutograd():
                return self.op(*tensors, *how)
        if not self.remembers or torch_._modes() or forward_ad._current_level >= 0:
            return (self.kernel if _alone(tensors) else self.op)(*tensors, *how)
        key = self._key(given, how)
        for alike, known in thread.ready.get(key, ()):
            if alike(*given):
                if known is not None and (result := known(given)) is not None:
                    return result if self.after is None else self.after(result, *tensors)
                return (self.kernel if _alone(tensors) else self.op)(*tensors, *how)  # nothing new to keep
        if not _alone(tensors):
            return self.op(*tensors, *how)
        result = self.kernel(*tensors, *how)
        keep(key, given, lambda: last_launch(given))
        return result

    def _key(self, given: tuple[torch.Tensor, ...], how: tuple[Any, ...]) -> tuple[Any, ...]:
        return self, how, len(given), given[0].shape, _using() or config.of_process()

    def launch_of(self, given: tuple[torch.Tensor, ...], how: tuple[Any, ...]) -> Launch | None:
        """That of the call on tensors like these, none of which is None; None where there is none."""
        return next((known for alike, known in thread.ready.get(self._key(given, how), ()) if alike(*given)), None)

    def differentiated(self, function: Any) -> Any:
        """Declare the ``Function`` of the tensors and of all other arguments as one tuple, which costs less.

        For all callers of the operator.
        """
        self.tracked = function.apply

        def autograd(keyset: Any, *given: Any) -> Any:
            tensors = given[: self.tensors]
            grad = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
            if grad or (forward_ad._current_level >= 0 and torch._C._is_fwd_grad_enabled()):  # which is refused
                how = tuple([tuple(g) if isinstance(g, list) else g for g in given[self.tensors :]])
                with enable_single_level_autograd_function():
                    return self.tracked(*tensors, how)
            return self.op.redispatch(keyset & torch._C._after_autograd_keyset, *given)

        LIBRARY.impl(self.op._opname, autograd, "Autograd", with_keyset=True)
        return function


def define(
    name: str,
    arguments: str,
    returns: str,
    kernel: Callable[..., Any],
    fake: Callable[..., Any],
    vmap: Callable[..., Any],
    after: Callable[..., Any] | None = None,
    remembers: bool = False,
) -> Operator:
    """An operator of these arguments, ``backend`` and ``options``.

    ``kernel`` gets the arguments and ``backend``. ``fake`` gets the arguments and returns results without memory. ``vmap`` gets
    the operator, the size of the mapped axis, where each argument has it, and all arguments; its results have it in front.
    ``after`` gets the kernel's results and all tensors, and gives the operator's. If the operator ``remembers``, its kernel is
    one call of numbadnn on the first tensors in their order, and no more: on tensors like those of a call before that is
    launched at once.
    """
    LIBRARY.define(f"{name}({arguments}, str backend, str options) -> {returns}", tags=TAGS)
    tensors = arguments.count("Tensor")

    def run(*given: Any) -> Any:
        if torch_._autocast():  # what it asks for was done in front of the operator
            with torch._C._DisableAutocast():
                return run(*given)
        options = given[-1]
        before = config._using.set(_options(options)) if options else None
        try:
            result = kernel(*given[:-2], given[-2] or None)
        finally:
            if before is not None:
                config._using.reset(before)
        return result if after is None else after(result, *given[:tensors])

    for key in ("CPU", "CUDA"):
        LIBRARY.impl(name, lambda *given: outside(run, *given), key)
    torch.library.register_fake(f"numbadnn::{name}", lambda *given: fake(*given[:-2]), lib=LIBRARY)
    op = getattr(torch.ops.numbadnn, name).default

    def mapped(info: Any, axes: Any, *given: Any) -> Any:
        found = vmap(op, info.batch_size, axes, *given)
        return found, ((0,) * len(found) if isinstance(found, tuple) else 0)

    torch.library.register_vmap(f"numbadnn::{name}", mapped, lib=LIBRARY)
    OPERATORS[op] = Operator(op, run, tensors, after, remembers)
    return OPERATORS[op]


# ---- which way a call goes -------------------------------------------------------------------------------------------

_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter, type(None)))
#: whether the vmap of ``torch.autograd`` is at work, which maps gradients: of jacobian(vectorize=True), is_grads_batched
_mapped: Callable[[Any], bool] = torch._C._dispatch_tls_is_dispatch_key_included
_VMAP = torch._C._dispatch_key_parse("VmapMode")


def present(tensors: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
    """Those that are given, of tensors some of which may be left out."""
    return tensors[:-1] if tensors[-2] is not None else tuple([t for t in tensors if t is not None])


def _alone(tensors: Sequence[Any]) -> bool:
    """Whether nothing of PyTorch's looks on, of what ``compute`` has not asked for already."""
    if torch_._modes() or tensors[0].is_meta:
        return False
    return _PLAIN.issuperset(map(type, tensors))


def outside(function: Callable[..., Any], *given: Any) -> Any:
    """What PyTorch's dispatcher calls of ours, on plain tensors: whatever follows its operators has seen this one.

    So forward mode has; of a subclass only the memory is left to be asked for.
    """
    given = tuple(
        g.as_subclass(torch.Tensor) if isinstance(g, torch.Tensor) and type(g) not in _PLAIN else g for g in given
    )
    if forward_ad._current_level < 0:
        return function(*given)
    with forward_ad._set_fwd_grad_enabled(False):
        return function(*given)


def _followed() -> bool:
    """Whether a compiler, a transform or forward mode is at work, which the dispatcher has to tell of a call."""
    return (
        torch.compiler.is_compiling()
        or torch_._transform() is not None
        or forward_ad._current_level >= 0
        or torch_._before_dispatch != torch_._NOTHING
        or _mapped(_VMAP)
    )


def compute(operator: Operator, tensors: tuple[Any, ...], how: tuple[Any, ...]) -> Any:
    """The operator's results for its tensors and other arguments, with gradients where one is needed."""
    if _followed():
        return operator.op(*tensors, *how)
    if torch.is_grad_enabled():
        for tensor in tensors:
            if tensor is not None and tensor.requires_grad:
                return operator.tracked(*tensors, how)
    return operator(tensors, how)


def called(operator: Operator, tensors: tuple[Any, ...], found: Seen) -> Any:
    """The results of a call that ``seen`` knows."""
    how, launch, recorded = found
    return operator.tracked(*tensors, how, launch) if recorded else operator(tensors, how, launch)


def noted(operator: Operator, who: Any, given: tuple[Any, ...], tensors: tuple[Any, ...], how: tuple[Any, ...]) -> None:
    """``note`` a call just made of the operator on these tensors, where nothing of PyTorch's looked on."""
    if not _followed() and _alone(tensors) and room(who, given, tensors) and plain(given) is given:
        note(who, given, tensors, how, operator.launch_of(tensors, how))


def saved(ctx: Any) -> list[Any]:
    """What a Function has kept; what ``torch.func.vjp`` returned may be called when its transform is over."""
    return [None if t is None else _unwrap_if_dead(t) for t in ctx.saved_tensors]


_unwrap_if_dead: Callable[[torch.Tensor], torch.Tensor] = torch._C._functorch.unwrap_if_dead


# ---- options ---------------------------------------------------------------------------------------------------------

#: what is of a machine and a run, and no part of a graph
_OF_THE_RUN = (
    "plan_file",
    "plan_strict",
    "cache_dir",
    "cudnn_library",
    "errata_file",
    "verbose",
    "tune",
    "nvtx",
    "threads",
)
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
        return ",".join(value)
    return f"{value}B" if name == "workspace_limit" else str(value)


def _options(text: str) -> config.Options:
    """The options that a text asks for, over those in force now."""
    base = config.current()
    found = _OPTIONS.get((text, base))
    if found is None:
        words = dict(word.split("=", 1) for word in text.split(" "))
        values = {n: config.parse(n, v, "options") if v else config.OPTIONS[n].default for n, v in words.items()}
        found = _OPTIONS[text, base] = base.replace(values, dict.fromkeys(values, "using"))
    return found
