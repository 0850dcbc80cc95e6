"""The oracle: every operation from its definition, in plain NumPy and float64, under its public name.

Nothing in this folder imports the rest of numbadnn, so that a wrong formula cannot stand on both sides of a comparison.
"""

from numbadnn.reference.conv import (
    conv2d,
    conv2d_grad_wrt_inputs,
    conv2d_grad_wrt_inputs_magnitude,
    conv2d_grad_wrt_weights,
    conv2d_grad_wrt_weights_magnitude,
    conv2d_magnitude,
    conv2d_reduction_length,
)
from numbadnn.reference.softmax import softmax, softmax_bound, softmax_grad, softmax_grad_bound

__all__ = [
    "conv2d",
    "conv2d_grad_wrt_inputs",
    "conv2d_grad_wrt_inputs_magnitude",
    "conv2d_grad_wrt_weights",
    "conv2d_grad_wrt_weights_magnitude",
    "conv2d_magnitude",
    "conv2d_reduction_length",
    "softmax",
    "softmax_bound",
    "softmax_grad",
    "softmax_grad_bound",
]
