"""Arguments as other libraries call them: every public function refuses them with the name that they have here.

A public function takes ``**unknown: Never``: type checkers refuse whatever comes there, and a call that has none pays nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

#: their argument -> what it may be called here: the first that the function has
OURS: dict[str, tuple[str, ...]] = {
    "stride": ("subsample", "input_dilation", "stride"),
    "strides": ("subsample", "input_dilation", "stride"),
    "padding": ("border_mode", "pad"),
    "pad": ("border_mode", "pad"),
    "mode": ("border_mode",),
    "dilation": ("filter_dilation",),
    "dilations": ("filter_dilation",),
    "groups": ("num_groups", "num_channels"),
    "axis": ("axis",),
    "dim": ("axis",),
    "x": ("input", "inputs", "img", "signals"),
    "input": ("inputs", "x", "img", "signals"),
    "weight": ("filters", "kern", "gamma", "w"),
    "weights": ("filters", "kern", "gamma", "w"),
    "kernel": ("filters", "kern"),
    "kernel_size": ("ws", "filter_shape"),
    "window": ("ws",),
    "ds": ("ws",),
    "eps": ("epsilon",),
    "momentum": ("running_average_factor",),
    "p": ("dropout",),
    "rate": ("dropout",),
    "scale_factor": ("ratio",),
    "output_size": ("output_shape", "out_dims"),
    "output_padding": ("output_shape",),
    "input_size": ("input_shape",),
    "weight_size": ("filter_shape",),
    "grad_output": ("output_grad", "out_grad", "dy", "topgrad"),
}
#: of those that mean something else here: no value of theirs is repeated
OTHERWISE = ("output_padding", "momentum")
_ORDER = "the axes are (N, C, sizes...) in any layout of memory: moveaxis(x, -1, 1) copies nothing"
#: what a function has no argument for -> what to do instead
INSTEAD = {
    "bias": "add it to the result, y + bias.reshape(1, -1, 1, ...)",
    "axis": _ORDER,
    "dim": _ORDER,
    "data_format": _ORDER,
    "dtype": "the result has the arrays' dtype, so cast them",
    "training": "leave dropout out in inference; batch normalization has a function for each",
    "inplace": "name a destination with out=",
    "device": "arrays are computed where they are",
    "batch_first": "sequences are (time, batch, channels)",
    "ceil_mode": "sizes are rounded down; numbadnn.theano.pool_2d with ignore_border=False rounds up",
    "ignore_border": "sizes are rounded down; numbadnn.theano.pool_2d has ignore_border",
    "count_include_pad": "say mode='average_inc_pad' or mode='average_exc_pad'",
    "padding_mode": "padding is zeros; pad the array before the call for anything else",
}


_CONVOLUTION = "conv1d or conv2d; border_mode is 'full', 'valid' or, for 'same', 'half'; filter_flip=False correlates"
_FRAMEWORK = "numbadnn.torch has the names of torch.nn.functional"
#: functions of other libraries -> ours
FUNCTIONS = {
    **{f"conv_transpose{n}d": f"conv{n}d_transpose" for n in (2, 3)},
    **{f"max_pool{n}d": "pool(x, ws, stride)" for n in (1, 2, 3)},
    **{f"avg_pool{n}d": "pool(x, ws, stride, 'average_inc_pad')" for n in (1, 2, 3)},
    **dict.fromkeys(("convolve", "convolve2d", "correlate", "correlate2d", "fftconvolve", "oaconvolve"), _CONVOLUTION),
    **dict.fromkeys(("LSTM", "GRU", "RNN", "lstm", "gru"), "RNNBlock"),
    **dict.fromkeys(("relu", "sigmoid", "tanh", "linear", "matmul", "dot"), "the array library has it"),
    **dict.fromkeys(("nn", "functional", "autograd"), _FRAMEWORK),
    **{name: f"import numbadnn.{name}" for name in ("torch", "jax", "dask", "cupyx_cudnn")},
    "log_softmax": "softmax(x, 'log')",
    "batch_norm": "batch_normalization_train and batch_normalization_test",
    "batch_normalization": "batch_normalization_train and batch_normalization_test",
    "interpolate": "bilinear_upsampling",
    "upsample": "bilinear_upsampling",
    "grid_sample": "spatialtf_sampler",
    "affine_grid": "spatialtf_grid",
    "depthwise_conv2d": "conv2d with num_groups, or separable_conv2d",
    "set_backend": "set_options(backend=...)",
    "info": "the command 'numbadnn info'",
    "cuda": "the command 'numbadnn info'",
    "is_available": "cudnn.available(), and the command 'numbadnn info'",
}


def function(name: str, known: Sequence[str]) -> str:
    """What to add to the error for a name that ``numbadnn`` does not have ("" = nothing is near).

    >>> function("grid_sample", []), function("dnn_conv", [])
    (': spatialtf_sampler', ': numbadnn.theano has it')
    """
    if name in FUNCTIONS:
        return f": {FUNCTIONS[name]}"
    if name.startswith(("dnn_", "GpuDnn", "GpuCorr", "pool_", "signal", "tensor")):
        return ": numbadnn.theano has it"
    import difflib

    near = difflib.get_close_matches(name, known, 1)
    return f": is {near[0]!r} meant?" if near else ""


def absent(module: str, name: str, known: Sequence[str], elsewhere: Sequence[Any]) -> AttributeError:
    """The error for a name that a module with functions of another library does not have: which of ``elsewhere`` has it.

    >>> absent("numbadnn.dask", "conv2D", ["conv2d"], [])
    AttributeError("module 'numbadnn.dask' has no attribute 'conv2D': is 'conv2d' meant?")
    """
    import difflib

    hint = ""
    if not name.startswith("_"):
        there = next((other.__name__ for other in elsewhere if hasattr(other, name)), "")
        near = [] if there else difflib.get_close_matches(name, known, 1, 0.75)
        hint = f": {there} has it" if there else f": is {near[0]!r} meant?" if near else ""
    return AttributeError(f"module {module!r} has no attribute {name!r}{hint}")


def refuse(unknown: Mapping[str, Any]) -> NoReturn:
    """TypeError for arguments that the calling function does not have, with what the first of them is called here."""
    code = sys._getframe(1).f_code
    own = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    name, value = next(iter(unknown.items()))
    function = code.co_qualname.removesuffix(".__init__")
    raise TypeError(f"{function}() has no argument {name!r}: {advice(name, value, own)}")


def advice(name: str, value: Any, own: Sequence[str]) -> str:
    """What to write instead of an argument of another library, for a function whose arguments are ``own``.

    >>> advice("stride", 2, ("input", "subsample"))
    'here it is subsample=2'
    >>> advice("padding", "same", ("input", "border_mode"))
    "here it is border_mode='half'"
    """
    ours = next((n for n in OURS.get(name, ()) if n in own), "")
    if ours:
        return f"here it is {ours}" if name in OTHERWISE else f"here it is {_written(ours, value)}"
    if name in ("axis", "dim") and "epsilon" in own:
        return "mode='spatial' averages over all axes but 1, mode='per-activation' over axis 0"
    if name in INSTEAD:
        return INSTEAD[name]
    import difflib

    near = difflib.get_close_matches(name, own, 1) if name not in OURS else []
    return f"is {near[0]!r} meant?" if near else f"its arguments are {', '.join(n for n in own if n != 'self')}"


def _written(ours: str, value: Any) -> str:
    """``ours=value`` as it would be written, for values that are short."""
    if ours == "border_mode" and isinstance(value, str):
        value = {"same": "half"}.get(value.lower(), value.lower())
    plain = isinstance(value, (str, bool, int, float)) or (
        isinstance(value, (tuple, list)) and all(isinstance(v, (int, float)) for v in value)
    )
    return f"{ours}={value!r}" if plain else ours
