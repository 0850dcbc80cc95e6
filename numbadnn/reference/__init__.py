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
    conv_magnitude,
)
from numbadnn.reference.conv_derived import (
    conv2d_transpose,
    conv3d,
    conv3d2d,
    conv3d_grad_wrt_inputs,
    conv3d_grad_wrt_weights,
    conv3d_transpose,
    separable_conv2d,
    separable_conv3d,
)
from numbadnn.reference.conv_gradients import (
    conv2d_transpose_grad_wrt_inputs,
    conv2d_transpose_grad_wrt_weights,
    conv3d_transpose_grad_wrt_inputs,
    conv3d_transpose_grad_wrt_weights,
    separable_conv2d_grad_wrt_inputs,
    separable_conv2d_grad_wrt_weights,
    separable_conv3d_grad_wrt_inputs,
    separable_conv3d_grad_wrt_weights,
)
from numbadnn.reference.conv_line import (
    causal_conv1d,
    causal_conv1d_grad_wrt_inputs,
    causal_conv1d_grad_wrt_weights,
    conv1d,
    conv1d_grad_wrt_inputs,
    conv1d_grad_wrt_weights,
)
from numbadnn.reference.corrmm import (
    corr3d_mm,
    corr3d_mm_grad_inputs,
    corr3d_mm_grad_weights,
    corr_mm,
    corr_mm_grad_inputs,
    corr_mm_grad_weights,
)
from numbadnn.reference.dropout import dropout, dropout_grad, dropout_words, philox4x32
from numbadnn.reference.norm import (
    batch_normalization_test,
    batch_normalization_test_grad,
    batch_normalization_train,
    batch_normalization_train_grad,
)
from numbadnn.reference.pool import pool, pool_grad, pool_grad_magnitude, pool_magnitude, pool_output_shape
from numbadnn.reference.rnn import rnn_backward, rnn_forward
from numbadnn.reference.rnn_bounds import rnn_backward_bound, rnn_forward_bound
from numbadnn.reference.softmax import softmax, softmax_bound, softmax_grad, softmax_grad_bound
from numbadnn.reference.spatial import (
    spatialtf,
    spatialtf_grid,
    spatialtf_grid_grad,
    spatialtf_sampler,
    spatialtf_sampler_grad,
)
from numbadnn.reference.spatial_bounds import (
    spatialtf_grid_bound,
    spatialtf_grid_grad_bound,
    spatialtf_sampler_bound,
    spatialtf_sampler_grad_bound,
)
from numbadnn.reference.upsample import (
    bilinear_kernel_1D,
    bilinear_kernel_2D,
    bilinear_upsampling,
    bilinear_upsampling_bound,
    bilinear_upsampling_grad,
    frac_bilinear_upsampling,
)

__all__ = [
    "batch_normalization_test",
    "batch_normalization_test_grad",
    "batch_normalization_train",
    "batch_normalization_train_grad",
    "bilinear_kernel_1D",
    "bilinear_kernel_2D",
    "bilinear_upsampling",
    "bilinear_upsampling_bound",
    "bilinear_upsampling_grad",
    "causal_conv1d",
    "causal_conv1d_grad_wrt_inputs",
    "causal_conv1d_grad_wrt_weights",
    "conv1d",
    "conv1d_grad_wrt_inputs",
    "conv1d_grad_wrt_weights",
    "conv2d",
    "conv2d_grad_wrt_inputs",
    "conv2d_grad_wrt_inputs_magnitude",
    "conv2d_grad_wrt_weights",
    "conv2d_grad_wrt_weights_magnitude",
    "conv2d_magnitude",
    "conv2d_reduction_length",
    "conv2d_transpose",
    "conv2d_transpose_grad_wrt_inputs",
    "conv2d_transpose_grad_wrt_weights",
    "conv3d",
    "conv3d2d",
    "conv3d_grad_wrt_inputs",
    "conv3d_grad_wrt_weights",
    "conv3d_transpose",
    "conv3d_transpose_grad_wrt_inputs",
    "conv3d_transpose_grad_wrt_weights",
    "conv_magnitude",
    "corr3d_mm",
    "corr3d_mm_grad_inputs",
    "corr3d_mm_grad_weights",
    "corr_mm",
    "corr_mm_grad_inputs",
    "corr_mm_grad_weights",
    "dropout",
    "dropout_grad",
    "dropout_words",
    "frac_bilinear_upsampling",
    "philox4x32",
    "pool",
    "pool_grad",
    "pool_grad_magnitude",
    "pool_magnitude",
    "pool_output_shape",
    "rnn_backward",
    "rnn_backward_bound",
    "rnn_forward",
    "rnn_forward_bound",
    "separable_conv2d",
    "separable_conv2d_grad_wrt_inputs",
    "separable_conv2d_grad_wrt_weights",
    "separable_conv3d",
    "separable_conv3d_grad_wrt_inputs",
    "separable_conv3d_grad_wrt_weights",
    "softmax",
    "softmax_bound",
    "softmax_grad",
    "softmax_grad_bound",
    "spatialtf",
    "spatialtf_grid",
    "spatialtf_grid_bound",
    "spatialtf_grid_grad",
    "spatialtf_grid_grad_bound",
    "spatialtf_sampler",
    "spatialtf_sampler_bound",
    "spatialtf_sampler_grad",
    "spatialtf_sampler_grad_bound",
]
