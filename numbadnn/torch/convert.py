"""Put numbadnn under the layers of a model that exists: ``convert``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.utils import parametrize

from numbadnn.torch import nn
from numbadnn.torch.library import in_force

#: a class of torch.nn -> the one here that computes the same
LAYERS: dict[type, type] = {
    getattr(torch.nn, name): getattr(nn, name) for name in nn.__all__ if hasattr(torch.nn, name) and name != "Layer"
}


@dataclass
class Conversion:
    """What ``convert`` did: ``swapped``, the layers by name, and ``left``, those that it knows with the reason."""

    swapped: dict[str, torch.nn.Module] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)

    def undo(self) -> None:
        """Give the layers their own classes back."""
        back = {ours: theirs for theirs, ours in LAYERS.items()}
        for layer in self.swapped.values():
            layer.__class__ = _other(layer, back) or type(layer)
            for name in ("backend", "determinism"):
                layer.__dict__.pop(name, None)


def _other(layer: Any, classes: dict[type, type]) -> Any:
    """The class for a layer instead of its own, under its parametrizations too; None where there is none.

    ``torch.nn.utils.parametrizations`` put a class of their own over a layer's, which copies of the layer share.
    """
    kind = type(layer)
    if kind in classes or not parametrize.is_parametrized(layer):
        return classes.get(kind)
    base = classes.get(kind.__bases__[0])
    own = {name: value for name, value in vars(kind).items() if name not in ("__dict__", "__weakref__")}
    return base and type(kind.__name__, (base,), own)


def _reason(layer: Any) -> str:
    """Why a layer that has no other class stays; "" for one that numbadnn does not know."""
    known = isinstance(layer, tuple(LAYERS)) and not isinstance(layer, nn.Layer)
    return (
        f"expected a class of torch.nn, got {type(layer).__name__}, which may compute something else" if known else ""
    )


def convert(module: torch.nn.Module, *, backend: str | None = None, determinism: str | None = None) -> Conversion:
    """Let numbadnn compute the layers of a model, in place: parameters, buffers, hooks and names stay what they are.

    A layer of exactly a class of ``torch.nn`` that ``numbadnn.torch.nn`` has becomes that one, with its parametrizations
    (``weight_norm`` ...). Layers of a subclass, and those with settings that numbadnn has not, stay, and are in ``left``.
    ``backend`` and ``determinism`` are the layers' own.

    >>> import torch, numbadnn.torch
    >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.MaxPool2d(2, dilation=2))
    >>> found = numbadnn.torch.convert(model)
    >>> list(found.swapped), found.left
    (['0'], {'2': 'dilation: expected 1, got 2'})
    """
    in_force(backend, determinism)  # both are checked
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"module: expected a torch.nn.Module, got {type(module).__name__}")
    found = Conversion()
    for name, layer in module.named_modules():
        ours = _other(layer, LAYERS)
        if reason := ours.refusal(layer) if ours else _reason(layer):
            found.left[name] = reason
        if reason or ours is None:
            continue
        layer.__class__ = ours
        layer.backend, layer.determinism = backend, determinism
        found.swapped[name] = layer
    return found
