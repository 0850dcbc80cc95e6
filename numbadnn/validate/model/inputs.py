"""What a model is fed: the user's arrays by name, else random numbers of the types and sizes that the graph declares."""

from __future__ import annotations

from typing import Any

import numpy as np

from numbadnn.validate.model.files import onnx_module
from numbadnn.validate.model.graph import Graph, ModelError, is_real


def inputs_for(graph: Graph, file: str | None, dims: dict[str, int], seed: int = 0) -> dict[str, np.ndarray]:
    """An array for each input of the graph; ModelError says which size or array is missing."""
    given = _read(file) if file else {}
    for name in given:
        if name not in graph.inputs:
            raise ModelError(
                f"--input: the model has no input {name!r}, its inputs are {', '.join(graph.inputs) or 'none'}"
            )
    rng, unused = np.random.default_rng(seed), set(dims)
    found = {}
    for name in graph.inputs:
        dtype, shape = _declared(graph.input_types[name], name)
        if name in given:
            found[name] = _fitting(name, given[name], dtype, shape)
        else:
            found[name] = _random(_sizes(name, shape, dims, unused), dtype, rng)
    if unused:
        shapes = (_declared(graph.input_types[name], name)[1] for name in graph.inputs if name not in given)
        sizes = sorted({size for shape in shapes for size in shape or () if isinstance(size, str) and size})
        raise ModelError(
            f"--dim: the inputs that are made up have no open size {min(unused)!r}; "
            f"those with a name are {', '.join(sizes) or 'none'}"
        )
    return found


def dims_of(words: list[str] | None) -> dict[str, int]:
    """``N=1`` words as numbers by name."""
    found = {}
    for word in words or ():
        name, _, text = word.rpartition("=")
        if not name or not text.isdecimal() or int(text) < 1:
            raise ModelError(f"--dim: expected NAME=SIZE, as N=1, got {word!r}")
        found[name] = int(text)
    return found


def _read(file: str) -> dict[str, np.ndarray]:
    from numbadnn.validate.data_files import read

    try:
        return {given.name: given.array for given in read([file])}
    except ValueError as error:
        raise ModelError(str(error).replace("--data:", "--input:")) from None


def _declared(kind: Any, name: str) -> tuple[Any, list[Any] | None]:
    onnx = onnx_module()
    tensor = kind.tensor_type
    if not kind.HasField("tensor_type") or not tensor.elem_type or tensor.elem_type == onnx.TensorProto.STRING:
        raise ModelError(f"input {name}: expected an array of numbers, got {kind.WhichOneof('value') or 'no type'}")
    shape = (
        [d.dim_value if d.dim_value > 0 else d.dim_param for d in tensor.shape.dim]
        if tensor.HasField("shape")
        else None
    )
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)), shape


def _sizes(name: str, shape: list[Any] | None, dims: dict[str, int], unused: set[str]) -> tuple[int, ...]:
    """The shape with every open size decided: by ``INPUT.AXIS``, by its name, and the first axis by 1."""
    if shape is None:
        raise ModelError(f"input {name}: the model does not say its shape: give it by --input FILE.npz")
    sizes = []
    for axis, size in enumerate(shape):
        if isinstance(size, str):
            key = next((key for key in (f"{name}.{axis}", size) if key in dims), None)
            if key is None and axis:
                called = f"{size!r}" if size.isidentifier() else f"{name}.{axis}"
                raise ModelError(
                    f"input {name}: axis {axis} has no size: give it by --dim {called.strip(chr(39))}=SIZE"
                )
            unused.discard(key or "")
            size = dims[key] if key else 1
        sizes.append(size)
    return tuple(sizes)


def _fitting(name: str, array: np.ndarray, dtype: Any, shape: list[Any] | None) -> np.ndarray:
    if array.dtype != dtype:
        raise ModelError(f"--input: {name}: expected {dtype.name}, as the model declares it, got {array.dtype.name}")
    if shape is not None and (
        len(shape) != array.ndim or any(isinstance(s, int) and s != n for s, n in zip(shape, array.shape, strict=True))
    ):
        raise ModelError(f"--input: {name}: expected shape {tuple(shape)}, got {array.shape}")
    return array


def _random(shape: tuple[int, ...], dtype: Any, rng: np.random.Generator) -> np.ndarray:
    """Normal numbers; integers and truth values 0 or 1."""
    if is_real(dtype):
        return np.asarray(rng.standard_normal(shape)).astype(dtype)
    return np.asarray(rng.integers(0, 2, shape)).astype(dtype)
