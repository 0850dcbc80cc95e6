"""``RNNBlock``: a recurrent network as the specification has it, with parameters in one flat array.

The block holds no arrays. ``apply`` computes; ``forward`` also returns a ``Reserve``, which keeps the arrays of the
call and what the implementation wrote for ``backward``. A reserve serves once: cuDNN changes it.
"""

from __future__ import annotations

import operator
from typing import Any, Never

import numpy as np

from numbadnn import dispatch
from numbadnn.call.launch import thread
from numbadnn.call.operands import named_view
from numbadnn.call.select import check_backend
from numbadnn.errors import (
    BackendUnavailableError,
    CaptureError,
    DeterminismError,
    NotSupportedError,
    PlanMissError,
)
from numbadnn.ops.habits import refuse
from numbadnn.ops.rnn_functions import builder, plain_lengths
from numbadnn.option_types import Backend
from numbadnn.problems.rnn import DTYPES, INPUTS
from numbadnn.problems.rnn_network import Network

#: what is raised before an implementation runs: by the checks of the arguments, and by the choice
_REFUSED = (
    ValueError, TypeError, NotSupportedError, BackendUnavailableError, DeterminismError, PlanMissError, CaptureError,
)  # fmt: skip


def _is_integer(value: Any) -> bool:
    """Whether a value counts something: no truth value, no array of several."""
    try:
        operator.index(value)
    except TypeError:
        return False
    return not isinstance(value, bool)


class Reserve:
    """What ``RNNBlock.backward`` needs of ``forward``: its arrays and the implementation's own notes. Used once."""

    __slots__ = ("arrays", "block", "lengths", "made_by", "spent")

    def __init__(self, block: RNNBlock, arrays: dict[str, Any], lengths: Any, made_by: str) -> None:
        self.block, self.arrays, self.lengths, self.made_by = block, arrays, lengths, made_by
        self.spent = False

    def __repr__(self) -> str:
        return f"<Reserve of {self.block!r}{', used' if self.spent else ''}>"


class RNNBlock:
    """A network of recurrent layers: rnn_relu, rnn_tanh, lstm or gru, one or both directions, any number of layers.

    ``input_mode="skip"`` leaves the first layer's input product out (input and hidden size must be equal). Gates as in
    PyTorch: lstm i, f, c, o without peepholes; gru r, i (update, which keeps the old state), newmem with the reset
    after the recurrent product and its bias. dtype is float16, float32 or float64. Raises ValueError or TypeError
    naming the argument. Source: docs/explanation/semantics.md#recurrent-networks, theano.gpuarray.dnn.RNNBlock.

    >>> import numpy as np
    >>> block = RNNBlock("float64", hidden_size=2, num_layers=1, rnn_mode="gru")
    >>> w = np.zeros(block.get_param_size([4, 3]))
    >>> y, hy = block.apply(w, np.ones((5, 4, 3)), np.ones((1, 4, 2)))
    >>> y.shape, hy[0, 0, 0]                       # the update gate is a half: half of the state stays at each step
    ((5, 4, 2), np.float64(0.03125))
    """

    def __init__(
        self, dtype: Any, hidden_size: int, num_layers: int, rnn_mode: str, input_mode: str = "linear",
        direction_mode: str = "unidirectional", *, backend: Backend | None = None, **unknown: Never,
    ) -> None:  # fmt: skip
        if unknown:
            refuse(unknown)
        try:
            name = np.dtype(dtype).name
        except (TypeError, ValueError, SyntaxError):  # what NumPy raises for things and texts that name no type
            name = ""
        if name not in DTYPES or dtype is None:
            shown = dtype if isinstance(dtype, str) else name if name and dtype is not None else repr(dtype)
            raise TypeError(f"dtype: expected one of {', '.join(DTYPES)}, got {shown}")
        if backend is not None:
            check_backend(backend)
        self.dtype = name
        self.network = Network(hidden_size, num_layers, rnn_mode, input_mode, direction_mode).check()
        self.backend = backend

    def __repr__(self) -> str:
        n = self.network
        return (
            f"RNNBlock({self.dtype!r}, {n.hidden_size}, {n.num_layers}, {n.rnn_mode!r}, {n.input_mode!r}, "
            f"{n.direction_mode!r})"
        )

    # ---- parameters

    def get_param_size(self, input_size: Any) -> int:
        """The number of elements of w for inputs of size [batch, input_dim]; the batch does not matter.

        >>> RNNBlock("float32", 16, 2, "lstm").get_param_size([64, 32])
        5376
        """
        return self.network.blocks(self._input_dim(input_size))[1]

    def split_params(self, w: Any, layer: int, input_size: Any) -> list[Any]:
        """The matrices (in, hidden) and biases (hidden,) of a layer as writable views of w: W0, b0, W1, b1, ...

        First those that meet the input, then those that meet the state, each in gate order (lstm i f c o, gru r i
        newmem). When bidirectional, ``layer`` is 2 * layer + direction. A matrix that skip leaves out is of shape (0,
        hidden). ValueError for w of a wrong length, read-only or with gaps, and for a layer that is not there.

        >>> w = np.arange(8.0)
        >>> RNNBlock("float64", 1, 1, "rnn_tanh").split_params(w, 0, [1, 5])
        [array([[0.],
               [1.],
               [2.],
               [3.],
               [4.]]), array([6.]), array([[5.]]), array([7.])]
        """
        n, input_dim = self.network, self._input_dim(input_size)
        blocks, size = n.blocks(input_dim)
        if not _is_integer(layer) or not 0 <= layer < len(blocks):
            raise ValueError(f"layer: expected an integer from 0 to {len(blocks) - 1}, got {layer!r}")
        view = named_view(w, "w")
        if view.shape != (size,):
            raise ValueError(f"w: expected {size} elements (get_param_size) in one axis, got shape {view.shape}")
        if view.dtype != self.dtype:
            raise TypeError(f"w: expected the block's dtype {self.dtype}, got {view.dtype}")
        if not view.library.takes_out or view.readonly:
            raise ValueError("w: expected a writable array, got a read-only one")
        if view.strides != (1,) and size > 1:
            raise ValueError(f"w: expected an array without gaps, got element stride {view.strides[0]}")
        H, found = n.hidden_size, []
        at_w, at_r, at_bw, at_br = blocks[layer]
        in_dim = n.in_dim(layer // n.directions, input_dim)
        for matrix, bias, columns in ((at_w, at_bw, in_dim if at_w >= 0 else 0), (at_r, at_br, H)):
            for k in range(n.gates):
                start, count = max(matrix, 0) + k * H * columns, H * columns
                found += [w[start : start + count].reshape(H, columns).T, w[bias + k * H : bias + (k + 1) * H]]
        return found

    def _input_dim(self, input_size: Any) -> int:
        try:
            _, input_dim = input_size
        except (TypeError, ValueError):
            raise ValueError(f"input_size: expected [batch, input_dim], got {input_size!r}") from None
        if not _is_integer(input_dim) or input_dim < 1:
            raise ValueError(f"input_size: expected an integer input_dim of at least 1, got {input_dim!r}")
        if self.network.input_mode == "skip" and input_dim != self.network.hidden_size:
            raise ValueError(
                f"input_size: expected input_dim {self.network.hidden_size} (hidden_size) for input_mode 'skip', "
                f"got {input_dim}"
            )
        return int(input_dim)

    # ---- computing

    def _backend(self, named: Any) -> Any:
        """The backend of a call, else the block's."""
        return self.backend if named is None else named

    def apply(
        self, w: Any, x: Any, hx: Any, cx: Any = None, *, lengths: Any = None, backend: Any = None, stream: Any = None
    ) -> list[Any]:
        """[y, hy] or, for lstm, [y, hy, cy] for w flat, x (time, batch, in) and hx, cx (layers * directions, batch,
        hidden).

        y is (time, batch, hidden * directions), forward then backward; cx None is zeros. ``lengths``, integers on the
        host, one a batch entry, ends each sequence there: y is 0 beyond, hy and cy are those of its last step, and the
        backward direction begins there. All arrays have the block's dtype. ValueError or TypeError names the argument
        that does not fit.
        """
        return list(self._call(w, x, hx, cx, lengths, False, backend, stream))

    def forward(
        self, w: Any, x: Any, hx: Any, cx: Any = None, *, lengths: Any = None, backend: Any = None, stream: Any = None
    ) -> tuple[list[Any], Reserve]:
        """(outputs, reserve): what ``apply`` returns, and what ``backward`` needs of it, once.

        The reserve holds the arrays of the call; they must not change until ``backward`` has been called.
        """
        lengths = plain_lengths(lengths)
        *outputs, kept = self._call(w, x, hx, cx, lengths, True, backend, stream)
        plan = thread.last[0]
        assert plan is not None
        arrays = {"w": w, "x": x, "hx": hx, "cx": cx, "y": outputs[0], "reserve": kept}
        made_by = plan.executable.facts.get("reserve", plan.impl.name)
        return outputs, Reserve(self, arrays, lengths, made_by)

    def _call(
        self, w: Any, x: Any, hx: Any, cx: Any, lengths: Any, keep: bool, backend: Any, stream: Any
    ) -> tuple[Any, ...]:
        arrays = (w, x, hx) if cx is None else (w, x, hx, cx)
        build = builder("rnn_forward", INPUTS["rnn_forward"][: len(arrays)])
        params = (self.network, self.dtype, plain_lengths(lengths), keep, "")
        result: tuple[Any, ...] = dispatch.call_any(build, arrays, params, self._backend(backend), None, stream)
        return result

    def backward(
        self, reserve: Reserve, dy: Any, dhy: Any = None, dcy: Any = None, *, backend: Any = None, stream: Any = None
    ) -> tuple[Any, ...]:
        """(dw, dx, dhx) or, for lstm, (dw, dx, dhx, dcx): the gradients of sum(dy y) + sum(dhy hy) + sum(dcy cy).

        None is zeros, for dy too. dw is flat as w; ``split_params`` reads it. ValueError for a reserve that is not of
        this block's ``forward``, or that was used before.

        >>> block = RNNBlock("float64", 1, 1, "rnn_relu")
        >>> one, w = np.ones((1, 1, 1)), np.array([2.0, 3.0, 0.0, 1.0])
        >>> (y, hy), reserve = block.forward(w, one, one)
        >>> block.backward(reserve, one)[0]
        array([1., 1., 1., 1.])
        """
        if not isinstance(reserve, Reserve):
            raise ValueError(f"reserve: expected what forward returned, got {type(reserve).__name__}")
        if reserve.block is not self:
            raise ValueError(
                f"reserve: expected one of this block's forward, got one of another RNNBlock, {reserve.block!r}"
            )
        if reserve.spent:
            raise ValueError("reserve: expected one that was not used before; call forward again")
        arrays = {**reserve.arrays, "dy": dy, "dhy": dhy, "dcy": dcy}
        names = tuple(name for name in INPUTS["rnn_backward"] if arrays[name] is not None)
        params = (self.network, self.dtype, reserve.lengths, False, reserve.made_by)
        build = builder("rnn_backward", names)
        try:
            gradients: tuple[Any, ...] = dispatch.call_any(
                build, tuple(arrays[n] for n in names), params, self._backend(backend), None, stream
            )
        except _REFUSED:
            raise  # before anything ran
        except Exception:
            reserve.spent = True
            raise
        reserve.spent, reserve.arrays = True, {}
        return gradients
