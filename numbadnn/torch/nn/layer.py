"""What every layer here has beside ``torch.nn``'s: a backend and a level of determinism of its own, and what it refuses."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from numbadnn.torch.library import in_force


def held(among: dict[str, Any], layer: Any, name: str) -> Any:
    """One of the parameters or buffers of a layer, without the search that ``layer.name`` is.

    A parametrization takes its own out of them, and computes it when it is asked for.
    """
    try:
        return among[name]
    except KeyError:
        return getattr(layer, name)


class Layer:
    """Before a class of ``torch.nn``: its arguments, and ``backend`` and ``determinism`` as of numbadnn.torch's functions."""

    #: None: the options in force decide
    backend: str | None = None
    determinism: str | None = None

    def __init_subclass__(cls) -> None:
        """The signature of the layer of ``torch.nn``, with both arguments: ``torch.nn.utils.skip_init`` looks at it."""
        super().__init_subclass__()
        theirs = cls.__mro__[cls.__mro__.index(Layer) + 1]
        if issubclass(theirs, torch.nn.Module):
            known = inspect.signature(theirs)
            own = [
                inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=None) for n in ("backend", "determinism")
            ]
            given = [p for p in known.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
            cls.__signature__ = known.replace(parameters=[*given, *own])  # type: ignore[attr-defined]

    def __init__(self, *args: Any, backend: str | None = None, determinism: str | None = None, **kwargs: Any) -> None:
        in_force(backend, determinism)  # both are checked
        super().__init__(*args, **kwargs)
        self.backend, self.determinism = backend, determinism
        if reason := self.refusal(self):
            raise NotImplementedError(reason)

    @staticmethod
    def refusal(module: Any) -> str:
        """Why numbadnn cannot compute a layer of these settings, by the argument's name; "" if it can."""
        for name, value in module.named_parameters(recurse=False):
            if value.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
                return f"{name}: expected dtype float16, bfloat16, float32 or float64, got {value.dtype}"
        return ""

    @property
    def how(self) -> Any:
        return {"backend": self.backend, "determinism": self.determinism}

    def extra_repr(self) -> str:
        own = [f"{name}={value!r}" for name, value in self.how.items() if value is not None]
        return ", ".join(part for part in (super().extra_repr(), *own) if part)  # type: ignore[misc]
