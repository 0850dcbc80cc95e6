"""``theano.gpuarray.dnn`` and ``theano.sandbox.cuda.dnn`` by their own name: every name of ``numbadnn.theano``."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    from numbadnn import theano

    # getattr would find the package's __path__, with which this would be a package too, of copies of its modules
    return theano.__getattr__(name)


def __dir__() -> list[str]:
    from numbadnn import theano

    return dir(theano)
