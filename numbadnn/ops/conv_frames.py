"""``conv3d`` of signals whose axis of time comes before the channels."""

from __future__ import annotations

from typing import Any, Never

from numbadnn import dispatch
from numbadnn.ops import conv_arranged as arranged
from numbadnn.ops.habits import refuse
from numbadnn.option_types import Accuracy, Algo, Backend, Precision


def conv3d2d(
    signals: Any,
    filters: Any,
    signals_shape: Any = None,
    filters_shape: Any = None,
    border_mode: Any = "valid",
    *,
    algo: Algo | None = None,
    precision: Precision | None = None,
    accuracy: Accuracy | None = None,
    backend: Backend | None = None,
    out: Any = None,
    stream: Any = None,
    **unknown: Never,
) -> Any:
    """``conv3d`` of signals whose axis of time comes before the channels; all three axes of the filters are flipped.

    signals: (N, T, C, H, W); filters: (K, S, C, R, S'); result (N, T', K, H', W') as conv3d gives it on the same
    memory seen as (N, C, T, H, W). ``border_mode`` is 'valid', 'full' or 'half', or a tuple of three of them (time, rows,
    columns; Theano took two that agree for rows and columns). The shapes are hints. Dtypes and errors as conv3d.
    Source: docs/explanation/semantics.md#convolutions-of-frames.

    >>> import numpy as np, numbadnn
    >>> x, w = np.ones((1, 3, 2, 2, 2), "float32"), np.ones((1, 2, 2, 2, 2), "float32")
    >>> numbadnn.conv3d2d(x, w)[0, :, 0, 0, 0]
    array([16., 16.], dtype=float32)
    """
    if unknown:
        refuse(unknown)
    params = (
        signals_shape, filters_shape, border_mode, None, True, None, 1, False, 1.0, 0.0, algo, precision, accuracy
    )  # fmt: skip
    return dispatch.call2(arranged.frames, signals, filters, params, backend, out, stream)
