"""``theano.sandbox``: ``cuda``, the first GPU backend, with ``dnn`` and ``blas``; and ``neighbours``."""

from numbadnn.theano import gpuarray as cuda
from numbadnn.theano import neighbours
from numbadnn.theano._paths import place

__all__ = ["cuda", "neighbours"]

place(__name__, cuda=cuda, neighbours=neighbours)
