"""What the functions share: which arrays they take, and the views of channels last with the channels first."""

from __future__ import annotations

from typing import Any, TypeVar

from numbadnn.arrays import library_of
from numbadnn.cupyx_cudnn.constants import CUDNN_TENSOR_NCHW, CUDNN_TENSOR_NHWC

Word = TypeVar("Word", bound=str)


def check(**arrays: Any) -> None:
    """TypeError for what is no array of CuPy or NumPy; None is an array that may be left out."""
    for name, array in arrays.items():
        if array is not None and library_of(array, name).name not in ("cupy", "numpy"):
            raise TypeError(f"{name}: expected an array of CuPy or NumPy, got {type(array).__qualname__}; numbadnn's own "
                            "functions take other libraries'")  # fmt: skip


def check_shape(name: str, array: Any, shape: tuple[int | None, ...]) -> None:
    """ValueError for an array of another shape."""
    if tuple(array.shape) != tuple(shape):
        raise ValueError(f"{name}: expected shape {tuple(shape)}, got {tuple(array.shape)}")


def channels_first(name: str, array: Any, layout: int, argument: str = "d_layout") -> Any:
    """A view (N, C, ...) of an array in this layout."""
    if layout == CUDNN_TENSOR_NCHW:
        return array
    if layout != CUDNN_TENSOR_NHWC:
        raise ValueError(f"{argument}: expected CUDNN_TENSOR_NCHW (0) or CUDNN_TENSOR_NHWC (1), got {layout!r}")
    if array.ndim != 4:
        raise ValueError(f"{name}: expected four dimensions in the layout CUDNN_TENSOR_NHWC, got shape {array.shape}")
    return array.transpose(0, 3, 1, 2)


def channels_last(array: Any, layout: int) -> Any:
    """The view back."""
    return array if layout == CUDNN_TENSOR_NCHW else array.transpose(0, 2, 3, 1)


def choice(name: str, value: Any, values: tuple[Word, ...]) -> Word:
    """The word for a number of an enumeration; ValueError for another number."""
    if isinstance(value, bool) or value not in range(len(values)):
        raise ValueError(
            f"{name}: expected an integer from 0 to {len(values) - 1} ({', '.join(values)}), got {value!r}"
        )
    return values[value]
