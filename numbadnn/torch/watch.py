"""Look at the calls that the layers of a model make: ``explain`` and ``check``."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from numbadnn import dispatch
from numbadnn.torch.convert import convert
from numbadnn.torch.library import OPERATORS
from numbadnn.torch.nn import Layer
from numbadnn.validate.calls import Check, rows_of
from numbadnn.validate.check import backends_of


class _Calls(TorchDispatchMode):
    """The calls of numbadnn's operators within, (operator, arguments) each."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[Any, tuple[Any, ...]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in OPERATORS:
            self.found.append((func, args))
        return func(*args, **(kwargs or {}))


def _layers(module: torch.nn.Module, inputs: tuple[Any, ...]) -> Iterator[tuple[str, torch.nn.Module, tuple[Any, ...]]]:
    """Each call of a layer that numbadnn computes, of a converted copy: its name, the layer and what it was called with."""
    model = copy.deepcopy(module)
    convert(model)
    calls: list[tuple[str, torch.nn.Module, tuple[Any, ...]]] = []

    def keep(name: str) -> Callable[..., None]:
        return lambda layer, args: calls.append((name, layer, args))

    ours: list[tuple[str, Any]] = [(name, layer) for name, layer in model.named_modules() if isinstance(layer, Layer)]
    hooks = [layer.register_forward_pre_hook(keep(name)) for name, layer in ours]
    with torch.no_grad():
        model(*inputs)
    for hook in hooks:
        hook.remove()
    state = copy.deepcopy(model.state_dict())  # a layer that is called again would move its running averages on
    for call in calls:
        model.load_state_dict(state)
        yield call


def explain(module: torch.nn.Module, *inputs: Any) -> dict[str, Any]:
    """``numbadnn.explain`` of each layer of a model: {name: Explanation}; of what ``convert`` would swap, for these inputs.

    The model is not changed. A layer that is called several times is explained for its first call.

    >>> import torch, numbadnn.torch
    >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU())
    >>> explained = numbadnn.torch.explain(model, torch.ones(1, 3, 8, 8))
    >>> list(explained), explained["0"].chosen.startswith("cpu.")
    (['0'], True)
    """
    found: dict[str, Any] = {}
    for name, layer, args in _layers(module, inputs):
        if name in found:
            continue
        with _Calls() as calls, torch.no_grad():
            layer(*args)
        for operator, given in calls.found[:1]:
            *values, backend, options = given
            try:
                with torch.no_grad():
                    OPERATORS[operator].kernel(*values, dispatch.Intercept("explain", backend or None), options)
            except dispatch.Intercepted as caught:
                found[name] = caught.args[0]
    return found


def check(module: torch.nn.Module, *inputs: Any, backends: str | Iterable[str] | None = None) -> Check:
    """``numbadnn.check`` of each layer of a model, on what reaches it: forward and gradients, rows named by the layer.

    Of what ``convert`` would swap; the model is not changed. The gradient that comes into each layer is random numbers.

    >>> import torch, numbadnn.torch
    >>> model = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3), torch.nn.ReLU(), torch.nn.MaxPool2d(2))
    >>> found = numbadnn.torch.check(model, torch.rand(1, 2, 6, 6), backends="cpu")
    >>> found.ok, sorted({row.case for row in found.rows})
    (True, ['0 conv', '0 conv_grad_input', '0 conv_grad_weight', '2 pool', '2 pool_grad'])
    """
    chosen, begin = backends_of(backends), time.perf_counter()
    found = Check(asked={"function": type(module).__name__, "backends": list(chosen)})
    for name, layer, args in _layers(module, inputs):
        for operator, given in _both_ways(layer, args):
            _rows(found, f"{name} {operator._opname}", operator, given, chosen)
    found.seconds = time.perf_counter() - begin
    return found


def _both_ways(layer: torch.nn.Module, args: tuple[Any, ...]) -> list[tuple[Any, tuple[Any, ...]]]:
    """The operators that a layer calls forwards and backwards."""
    leaves = torch.utils._pytree.tree_map(_leaf, args)
    with _Calls() as calls, torch.enable_grad():
        results = [r for r in torch.utils._pytree.tree_leaves(layer(*leaves)) if r.requires_grad]
        wanted = [t for t in (*torch.utils._pytree.tree_leaves(leaves), *layer.parameters()) if _tracked(t)]
        if results:
            torch.autograd.grad(results, wanted, [torch.randn_like(r) for r in results], allow_unused=True)
    return calls.found


def _tracked(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _leaf(value: Any) -> Any:
    return value.detach().clone().requires_grad_() if isinstance(value, torch.Tensor) else value


def _rows(found: Check, name: str, operator: Any, given: tuple[Any, ...], chosen: tuple[str, ...]) -> None:
    *values, _, options = given
    on_host = [v.detach().cpu() if isinstance(v, torch.Tensor) else v for v in values]

    def look(request: Any, views: Any, outs: Any, words: Any) -> Any:
        rows, _ = rows_of(name, request, views, outs, words, chosen)
        found.rows += rows
        raise dispatch.Intercepted

    try:
        with torch.no_grad():
            OPERATORS[operator].kernel(*on_host, dispatch.Watch(look), options)
    except dispatch.Intercepted:
        pass
