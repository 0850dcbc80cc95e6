"""``theano.tensor``: its packages ``nnet`` and ``signal``. Symbolic variables and their operations are arrays' own here."""

from numbadnn.theano import nnet
from numbadnn.theano._paths import place
from numbadnn.theano.tensor import signal

__all__ = ["nnet", "signal"]

place(__name__, nnet=nnet)
