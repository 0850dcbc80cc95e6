"""``theano.tensor``: its packages ``nnet`` and ``signal``. Symbolic variables and their operations are arrays' own here."""

from __future__ import annotations

from typing import Any

from numbadnn.theano import nnet
from numbadnn.theano._paths import place
from numbadnn.theano.tensor import signal

__all__ = ["nnet", "signal"]

place(__name__, nnet=nnet)


def __getattr__(name: str) -> Any:
    hint = "" if name.startswith("_") else "; tensors are arrays here, whose own library has such functions"
    raise AttributeError(f"module 'numbadnn.theano.tensor' has no attribute {name!r}{hint}")
