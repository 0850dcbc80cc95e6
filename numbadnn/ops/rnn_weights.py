"""Weights of recurrent networks from and to PyTorch's modules and ONNX's nodes.

PyTorch's matrices and biases are ours, gate for gate, in another order of the whole. ONNX has other gate orders: LSTM i
o f c, GRU z r h (with linear_before_reset = 1, where the reset gate comes after the recurrent product), one node a
layer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from numbadnn.parameters import as_int
from numbadnn.problems.rnn_network import GATES, Network

#: where ONNX's gates stand in our order, as blocks of rows
ONNX_GATES = {"rnn_relu": (0,), "rnn_tanh": (0,), "lstm": (0, 3, 1, 2), "gru": (1, 0, 2)}


def rnn_weights_from_torch(module: Any) -> Any:
    """The flat w of a ``torch.nn.RNN``, ``LSTM`` or ``GRU``, a detached tensor on its device; missing biases are zeros.

    ValueError for a module with projections (proj_size).
    """
    import torch

    names = _torch_names(module)
    parts = []
    for name in names:
        if hasattr(module, name):
            parts.append(getattr(module, name).detach().reshape(-1))
        else:
            rows = getattr(module, name.replace("bias", "weight")).shape[0]
            parts.append(torch.zeros(rows, dtype=parts[0].dtype, device=parts[0].device))
    return torch.cat(parts)


def rnn_weights_to_torch(w: Any, module: Any) -> None:
    """Copy a flat w, an array or a tensor, into the parameters of a ``torch.nn.RNN``, ``LSTM`` or ``GRU``.

    ValueError where the sizes differ, or for a module with projections or without biases; TypeError for w that is no array.
    """
    import torch

    names = _torch_names(module)
    if not module.bias:
        raise ValueError("module: expected one with biases, which w has")
    flat = _taken(torch.as_tensor, w, "an array or a tensor")
    parameters = [getattr(module, name) for name in names]
    size = sum(p.numel() for p in parameters)
    if tuple(flat.shape) != (size,):
        raise ValueError(f"w: expected {size} elements in one axis, got shape {tuple(flat.shape)}")
    with torch.no_grad():
        for parameter, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
            parameter.copy_(part.reshape(parameter.shape))


def _taken(convert: Callable[[Any], Any], w: Any, wanted: str) -> Any:
    try:
        return convert(w)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"w: expected {wanted}, got {type(w).__name__}: {error}") from None


def _torch_names(module: Any) -> list[str]:
    """The module's parameters in the order of w."""
    import torch

    if not isinstance(module, torch.nn.RNNBase):
        raise TypeError(f"module: expected a torch.nn.RNN, LSTM or GRU, got {type(module).__qualname__}")
    if getattr(module, "proj_size", 0):
        raise ValueError(f"module: expected one without projections, got proj_size={module.proj_size}")
    ends = [f"l{layer}{'_reverse' * d}" for layer in range(module.num_layers) for d in range(1 + module.bidirectional)]
    return [f"{kind}_{part}_{end}" for kind in ("weight", "bias") for end in ends for part in ("ih", "hh")]


def _onnx_layers(layers: Any) -> list[tuple[Any, Any, Any]]:
    """The layers' arrays, else TypeError or ValueError."""
    found = list(layers) if hasattr(layers, "__iter__") and not isinstance(layers, (str, bytes, np.ndarray)) else []
    if not found:
        raise ValueError(f"layers: expected one (W, R, B) a layer, and one layer at least, got {layers!r}")
    for number, layer in enumerate(found):
        if not isinstance(layer, (list, tuple)) or len(layer) != 3:
            raise ValueError(f"layers: expected (W, R, B), got {type(layer).__name__} in {number}")
        for name, array, rank in zip(("W", "R", "B"), layer, (3, 3, 2), strict=True):
            if array is None and name == "B":
                continue
            if not isinstance(array, np.ndarray) or array.dtype.kind not in "fV" or array.ndim != rank:
                raise TypeError(
                    f"layers: expected {name} to be a NumPy array of floating-point numbers of {rank} dimensions, got "
                    f"{_shown(array)} in {number}"
                )
    return [tuple(layer) for layer in found]


def _shown(value: Any) -> str:
    return f"{value.dtype} {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__


def rnn_weights_from_onnx(layers: Any, rnn_mode: str) -> np.ndarray:
    """The flat w of ONNX nodes, one ``(W, R, B)`` a layer: W (directions, gates * hidden, in), R, B (directions, 2 *
    rows).

    B None is zeros. A GRU node must have linear_before_reset = 1. ValueError for a mode that is not known or shapes
    that do not fit.

    >>> W, R, B = np.full((1, 1, 2), 5.0), np.full((1, 1, 1), 6.0), np.array([[7.0, 8.0]])
    >>> rnn_weights_from_onnx([(W, R, B)], "rnn_tanh")
    array([5., 5., 6., 7., 8.])
    """
    if not isinstance(rnn_mode, str) or rnn_mode not in GATES:
        raise ValueError(f"rnn_mode: expected one of {', '.join(GATES)}, got {rnn_mode!r}")
    matrices: list[Any] = []
    biases: list[Any] = []
    taken = _onnx_layers(layers)
    gates, first = GATES[rnn_mode], taken[0][1].shape
    for number, (W, R, B) in enumerate(taken):
        directions, rows, hidden = R.shape
        if rows != gates * hidden or W.shape[:2] != R.shape[:2] or directions not in (1, 2):
            raise ValueError(
                f"layers: expected W and R of one direction or two and {gates} gates, got {W.shape} and {R.shape} in {number}"
            )
        if R.shape != first or (number and W.shape[2] != directions * hidden):
            wanted = (*first[:2], first[0] * first[2]), first
            raise ValueError(
                f"layers: expected W and R of {wanted[0]} and {wanted[1]} after 0, got {W.shape} and {R.shape} in {number}"
            )
        if B is None:
            B = np.zeros((directions, 2 * rows), W.dtype)
        if B.shape != (directions, 2 * rows):
            raise ValueError(f"layers: expected B of shape {(directions, 2 * rows)}, got {B.shape} in {number}")
        for d in range(directions):
            matrices += [_reorder(W[d], rnn_mode, False), _reorder(R[d], rnn_mode, False)]
            biases += [_reorder(B[d, :rows], rnn_mode, False), _reorder(B[d, rows:], rnn_mode, False)]
    return np.concatenate([part.ravel() for part in (*matrices, *biases)])


def rnn_weights_to_onnx(w: Any, block: Any, input_dim: int) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """``(W, R, B)`` of each layer as ONNX orders them, from the flat w (a NumPy array) of an ``RNNBlock``.

    ValueError for w of a wrong length or a block of input_mode skip, which ONNX has not; TypeError for w that is no array.
    """
    if not isinstance(getattr(block, "network", None), Network):
        raise TypeError(f"block: expected an RNNBlock, got {type(block).__name__}")
    n: Network = block.network
    input_dim = as_int("input_dim", input_dim, 1)
    if n.input_mode == "skip":
        raise ValueError("block: expected input_mode 'linear', ONNX has no other")
    flat = _taken(np.asarray, w, "a NumPy array")
    if flat.dtype.kind not in "fV":
        raise TypeError(f"w: expected floating-point numbers, got {_shown(flat)}")
    blocks, size = n.blocks(input_dim)
    if flat.shape != (size,):
        raise ValueError(f"w: expected {size} elements in one axis, got shape {flat.shape}")
    rows, found = n.gates * n.hidden_size, []
    for layer in range(n.num_layers):
        parts: tuple[list[np.ndarray], ...] = ([], [], [])
        for at_w, at_r, at_bw, at_br in blocks[layer * n.directions : (layer + 1) * n.directions]:
            for part, at, columns in ((parts[0], at_w, n.in_dim(layer, input_dim)), (parts[1], at_r, n.hidden_size)):
                part.append(_reorder(flat[at : at + rows * columns].reshape(rows, columns), n.rnn_mode, True))
            bias = [_reorder(flat[at : at + rows], n.rnn_mode, True) for at in (at_bw, at_br)]
            parts[2].append(np.concatenate(bias))
        found.append((np.stack(parts[0]), np.stack(parts[1]), np.stack(parts[2])))
    return found


def _reorder(rows: np.ndarray, rnn_mode: str, to_onnx: bool) -> np.ndarray:
    """Blocks of rows from ONNX's gate order to ours, or back."""
    blocks = np.split(rows, GATES[rnn_mode])
    order = ONNX_GATES[rnn_mode]
    if to_onnx:
        return np.concatenate([blocks[k] for k in order])
    return np.concatenate([blocks[order.index(k)] for k in range(len(order))])
