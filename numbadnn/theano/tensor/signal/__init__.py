"""``theano.tensor.signal``: pooling of any rank, and its older name ``downsample``."""

from numbadnn.theano import downsample, pool
from numbadnn.theano._paths import place

__all__ = ["downsample", "pool"]

place(__name__, downsample=downsample, pool=pool)
