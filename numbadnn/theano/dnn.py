"""``theano.gpuarray.dnn`` and ``theano.sandbox.cuda.dnn`` by their own name: every name of ``numbadnn.theano``."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    from numbadnn import theano

    return theano.__getattr__(
        name
    )  # not the package's __path__, with which this would be one, of copies of its modules


def __dir__() -> list[str]:
    from numbadnn import theano

    return dir(theano)
