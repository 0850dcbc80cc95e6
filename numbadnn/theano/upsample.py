"""``theano.tensor.nnet``'s bilinear upsampling, on any backend. Source: spec/semantics.md 1.3."""

from numbadnn.ops.upsample import bilinear_upsampling, frac_bilinear_upsampling
from numbadnn.reference.upsample import bilinear_kernel_1D, bilinear_kernel_2D

__all__ = ["bilinear_kernel_1D", "bilinear_kernel_2D", "bilinear_upsampling", "frac_bilinear_upsampling"]
