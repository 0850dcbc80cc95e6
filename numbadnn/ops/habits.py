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
    "training": "training and inference are functions of their own",
    "inplace": "name a destination with out=",
    "ceil_mode": "sizes are rounded down; numbadnn.theano.pool_2d with ignore_border=False rounds up",
    "ignore_border": "sizes are rounded down; numbadnn.theano.pool_2d has ignore_border",
    "count_include_pad": "say mode='average_inc_pad' or mode='average_exc_pad'",
    "padding_mode": "padding is zeros; pad the array before the call for anything else",
}


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
