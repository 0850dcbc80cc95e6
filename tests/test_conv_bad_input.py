"""Every wrong argument of a convolution is a clear error that names it, what was expected and what came, before it runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import numbadnn

X, W, G = np.ones((2, 4, 6, 5), "f4"), np.ones((6, 4, 4, 4, 3, 3), "f4"), np.ones((2, 6, 4, 3), "f4")
D, P, D3 = np.ones((8, 1, 2, 2), "f4"), np.ones((3, 8, 1, 1), "f4"), np.ones((8, 1, 2, 2, 2), "f4")
X3, W3, G3 = np.ones((2, 4, 6, 5, 4), "f4"), np.ones((6, 4, 3, 3, 3), "f4"), np.ones((2, 6, 4, 3, 2), "f4")
BAD: list[tuple[type[Exception], str, str, tuple[Any, ...], dict[str, Any]]] = [
    (TypeError, r"filters: expected 6 dimensions because unshared=True", "conv2d", (X, W[:, 0, 0]), {"unshared": True}),
    (
        ValueError,
        r"filters: expected one filter for each output position \(4, 3\), got \(4, 4\)",
        "conv2d",
        (X, W),
        {"unshared": True},
    ),
    (
        ValueError,
        r"filters: expected one filter for each output position",
        "conv2d",
        (X, W[:, :, :3]),
        {"unshared": True, "subsample": (2, 1)},
    ),
    (ValueError, r"filters: expected 4 channels", "conv2d", (X, W[:, :, :3, :2]), {"unshared": True}),
    (ValueError, r"filters: expected 4 dimensions, got 6", "conv2d", (X, W), {}),
    (
        ValueError,
        r"filter_shape: expected \(filters, rows, columns of the output, channels",
        "conv2d_grad_wrt_weights",
        (X, G, (6, 4, 3, 3)),
        {"unshared": True},
    ),
    (
        ValueError,
        r"filter_shape: expected the array's own shape",
        "conv2d_grad_wrt_weights",
        (X, G, (6, 4, 4, 4, 3, 3)),
        {"unshared": True},
    ),
    (ValueError, r"input: expected 5 dimensions, got 4", "conv3d", (X, W3), {}),
    (ValueError, r"filters: expected 5 dimensions, got 4", "conv3d", (X3, X), {}),
    (ValueError, r"must be a tuple of length 3", "conv3d", (X3, W3), {"border_mode": (1, 1)}),
    (ValueError, r"subsample: expected a tuple of 3", "conv3d", (X3, W3), {"subsample": (1, 1)}),
    (ValueError, r"filter_dilation: expected a tuple of 3", "conv3d", (X3, W3), {"filter_dilation": 2}),
    (
        ValueError,
        r"filters: expected 4 channels \(4 channels of input in 1 groups\), got 3",
        "conv3d",
        (X3, W3[:, :3]),
        {},
    ),
    (
        ValueError,
        r"num_groups: expected a divisor of the 4 channels of input, got 3",
        "conv3d",
        (X3, W3),
        {"num_groups": 3},
    ),
    (ValueError, r"num_groups must have value greater than zero", "conv3d", (X3, W3), {"num_groups": 0}),
    (ValueError, r"filters: expected a \(dilated\) window", "conv3d", (X3[:, :, :2], W3), {}),
    (ValueError, r"input_shape: expected the array's own shape", "conv3d", (X3, W3), {"input_shape": (2, 4, 6, 5, 5)}),
    (ValueError, r"filter_shape: expected", "conv3d", (X3, W3), {"filter_shape": (6, 4, 3)}),
    (ValueError, r"algo: expected one of auto, none, small", "conv3d", (X3, W3), {"algo": "fastest"}),
    (
        ValueError,
        r"algo: expected one of auto, none, deterministic, fft",
        "conv3d_grad_wrt_inputs",
        (G3, W3, X3.shape),
        {"algo": "small"},
    ),
    (
        ValueError,
        r"algo: expected one of auto, none, deterministic, small",
        "conv3d_grad_wrt_weights",
        (X3, G3, W3.shape),
        {"algo": "winograd"},
    ),
    (
        ValueError,
        r"input_shape: expected \(batch, channels, depth, rows, columns\)",
        "conv3d_grad_wrt_inputs",
        (G3, W3, (2, 4, 6, 5)),
        {},
    ),
    (
        ValueError,
        r"output_grad: expected 6 channels \(one a filter\), got 5",
        "conv3d_grad_wrt_inputs",
        (G3[:, :5], W3, X3.shape),
        {},
    ),
    (
        ValueError,
        r"invalid input_shape for gradInputs: .* output of shape \(2, 6, 5, 3, 2\), but .* \(2, 6, 4, 3, 2\)",
        "conv3d_grad_wrt_inputs",
        (G3, W3, (2, 4, 7, 5, 4)),
        {},
    ),
    (
        ValueError,
        r"output_grad: expected shape \(2, 6, 3, 3, 2\), got \(2, 6, 4, 3, 2\)",
        "conv3d_grad_wrt_weights",
        (X3, G3, (6, 4, 4, 3, 3)),
        {},
    ),
    (ValueError, r"filter_shape: expected", "conv3d_grad_wrt_weights", (X3, G3, (6, 4, 3, None, 3)), {}),
    (
        ValueError,
        r"output_shape: expected \(batch, channels, rows, columns\)",
        "conv2d_transpose",
        (G, W[:, 0, 0], None),
        {},
    ),
    (ValueError, r"invalid output_shape for gradInputs", "conv2d_transpose", (G, W[:, 0, 0], (2, 4, 7, 5)), {}),
    (
        ValueError,
        r"input: expected 6 channels \(one a filter\), got 4",
        "conv2d_transpose",
        (X, W[:, 0, 0], (2, 4, 8, 7)),
        {},
    ),
    (
        ValueError,
        r"input_dilation: expected a tuple of 2",
        "conv2d_transpose",
        (G, W[:, 0, 0], X.shape),
        {"input_dilation": (0,)},
    ),
    (ValueError, r"output_shape: expected .*4, 6, 5", "conv3d_transpose", (G3, W3, (2, 5, 6, 5, 4)), {}),
    (ValueError, r"input: expected 3 dimensions, got 4", "causal_conv1d", (X, W3[:, :, 0, 0]), {}),
    (ValueError, r"filters: expected 3 dimensions, got 4", "causal_conv1d", (X[:, :, 0], W3[:, :, 0]), {}),
    (
        TypeError,
        r"filters: expected 4 dimensions because unshared=True",
        "causal_conv1d",
        (X[:, :, 0], W3[:, :, 0, 0]),
        {"unshared": True},
    ),
    (
        ValueError,
        r"filters: expected one filter for each output position \(5,\), got \(4,\)",
        "causal_conv1d",
        (X[:, :, 0], W[:, :, 0, :, 0]),
        {"unshared": True},
    ),
    (
        ValueError,
        r"subsample: expected an integer",
        "causal_conv1d",
        (X[:, :, 0], W3[:, :, 0, 0]),
        {"subsample": (1, 1)},
    ),
    (
        ValueError,
        r"filter_dilation: expected an integer >= 1",
        "causal_conv1d",
        (X[:, :, 0], W3[:, :, 0, 0]),
        {"filter_dilation": 0},
    ),
    (ValueError, r"filter_shape: expected", "causal_conv1d", (X[:, :, 0], W3[:, :, 0, 0]), {"filter_shape": (6, 4, 2)}),
    (ValueError, r"num_groups: expected a divisor", "causal_conv1d", (X[:, :, 0], W3[:, :, 0, 0]), {"num_groups": 3}),
    (ValueError, r"input: expected at least one step", "causal_conv1d", (X[:, :, 0, :0], W3[:, :, 0, 0]), {}),
    (
        ValueError,
        r"num_channels: expected input's 4 channels, got 3",
        "separable_conv2d",
        (X, X[:4, :1], X[:, :, :1, :1], 3),
        {},
    ),
    (
        ValueError,
        r"pointwise_filters: expected sizes \(1, 1\), got \(6, 5\)",
        "separable_conv2d",
        (X, np.ones((8, 1, 2, 2), "f4"), np.ones((3, 8, 6, 5), "f4"), 4),
        {},
    ),
    (
        ValueError,
        r"num_channels: expected a divisor of the 6 filters of depthwise_filters, got 4",
        "separable_conv2d",
        (X, np.ones((6, 1, 2, 2), "f4"), np.ones((3, 6, 1, 1), "f4"), 4),
        {},
    ),
    (ValueError, r"^depthwise_filters: expected 1 channels", "separable_conv2d", (X, D[:, [0, 0]], P, 4), {}),
    (ValueError, r"^depthwise_filters: expected 4 dimensions", "separable_conv2d", (X, D[0], P, 4), {}),
    (ValueError, r"^depthwise_filters: expected a \(dilated\) window", "separable_conv2d", (X[..., :1], D, P, 4), {}),
    (TypeError, r"^depthwise_filters: expected dtype", "separable_conv2d", (X, D.astype(int), P, 4), {}),
    (TypeError, r"^pointwise_filters: expected dtype", "separable_conv2d", (X, D, P.astype(int), 4), {}),
    (
        ValueError,
        r"^pointwise_filters: expected 8 channels, as many as depthwise_filters has filters, got 7",
        "separable_conv2d",
        (X, D, P[:, :7], 4),
        {},
    ),
    (
        ValueError,
        r"^depthwise_filter_shape: expected the array's own shape \(8, 1, 2, 2\)",
        "separable_conv2d",
        (X, D, P, 4),
        {"depthwise_filter_shape": (8, 1, 2, 3)},
    ),
    (
        ValueError,
        r"^pointwise_filter_shape: expected the array's own shape \(3, 8, 1, 1\)",
        "separable_conv2d",
        (X, D, P, 4),
        {"pointwise_filter_shape": (3, 8, 1, 3)},
    ),
    (
        ValueError,
        r"^pointwise_filter_shape: expected the array's own shape \(3, 8, 1, 1, 1\)",
        "separable_conv3d",
        (X3, D3, P[..., None], 4),
        {"pointwise_filter_shape": (3, 8, 1, 1, 3)},
    ),
    (ValueError, r"^depthwise_filters: expected a \(dil", "separable_conv3d", (X3[..., :1], D3, P[..., None], 4), {}),
    (ValueError, r"^kern: expected a \(dilated\) window", "corr_mm", (X[..., :1], X), {}),
    (ValueError, r"^kern: expected a \(dilated\) window", "corr3d_mm", (X3[..., :1], X3), {}),
    (ValueError, r"^shape: expected a \(dilated\) window", "corr_mm_grad_weights", (X, X, (7, 7)), {}),
    (ValueError, r"^shape: expected a \(dilated\) window", "corr3d_mm_grad_weights", (X3, X3, (9, 9, 9)), {}),
    (ValueError, r"^topgrad: expected sizes that some filters give", "corr_mm_grad_weights", (X[..., :1], X), {}),
    (ValueError, r"^topgrad: expected sizes that some filters", "corr3d_mm_grad_weights", (X3[..., :1], X3), {}),
    (
        ValueError,
        r"^topgrad: expected sizes that some images give",
        "corr3d_mm_grad_inputs",
        (D3, X3[:, :1]),
        {"border_mode": 9},
    ),
    (ValueError, r"^filter_shape: expected a \(dilated\) window", "conv2d_grad_wrt_weights", (X, X, (4, 4, 9, 9)), {}),
    (
        ValueError,
        r"pointwise_filters: expected 5 dimensions",
        "separable_conv3d",
        (X3, np.ones((4, 1, 2, 2, 2), "f4"), np.ones((3, 4, 1, 1), "f4"), 4),
        {},
    ),
    (ValueError, r"signals: expected 5 dimensions", "conv3d2d", (X, W3), {}),
    (ValueError, r"filters: expected 6 channels as signals has, got 3", "conv3d2d", (X3, W3), {}),
    (ValueError, r"border_mode: expected one of valid, full, half", "conv3d2d", (X3, X3), {"border_mode": "same"}),
    (ValueError, r"border_mode: expected one of valid, full, half", "conv3d2d", (X3, X3), {"border_mode": (1, 1, 1)}),
    (ValueError, r"signals_shape: expected", "conv3d2d", (X3, X3), {"signals_shape": (2, 4, 6, 5, 5)}),
    (ValueError, r"filters: expected sizes no larger", "conv3d2d", (X3[:, :2], X3), {}),
]


@pytest.mark.parametrize(("error", "message", "name", "args", "options"), BAD, ids=[f"{b[2]}-{b[1][:30]}" for b in BAD])
def test_bad_input(
    error: type[Exception], message: str, name: str, args: tuple[Any, ...], options: dict[str, Any]
) -> None:
    for _ in range(2):  # the second time from whatever was remembered
        with pytest.raises(error, match=message):
            getattr(numbadnn, name)(*args, **options)
