"""``theano.gpuarray.dnn`` and ``theano.sandbox.cuda.dnn`` by their own name: every name of ``numbadnn.theano``."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    from numbadnn import theano

    if (
        name.startswith("__") and name != "__all__"
    ):  # with the package's __path__ this would be one, of copies of its modules
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(theano, name)


def __dir__() -> list[str]:
    from numbadnn import theano

    return dir(theano)
