"""``theano.gpuarray``: ``dnn`` and ``blas``."""

from numbadnn.theano import corrmm as blas
from numbadnn.theano import dnn
from numbadnn.theano._paths import place

__all__ = ["blas", "dnn"]

place(__name__, blas=blas, dnn=dnn)
