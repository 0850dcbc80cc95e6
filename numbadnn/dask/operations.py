"""The operations whose outputs see a window: convolutions, transposes, gradients, pooling and upsampling of Dask arrays.

Each takes what numbadnn's function of the same name takes, and ``device`` or ``devices`` beside (see ``devices.gpus_of``).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import dask.array as da

import numbadnn
from numbadnn import dispatch, pieces
from numbadnn.arrays.numpy_ import numpy_dtype
from numbadnn.dask.arrays import operand, stand_in
from numbadnn.dask.devices import gpus_of
from numbadnn.dask.graph import filters_of, pieced
from numbadnn.dask.work import Call

#: parameters that a task gets from its piece, or that are hints which were checked before
_NOT_SENT = (
    "input_shape",
    "filter_shape",
    "output_shape",
    "batch_size",
    "num_input_channels",
    "out",
    "result",
    "stream",
)
_KEYWORDS = inspect.signature(lambda *, device=None, devices=None: None).parameters.values()


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """numbadnn's own signature, with ``device`` and ``devices``."""
    own = list(inspect.signature(function).parameters.values())
    return inspect.Signature([*own[:-1], *_KEYWORDS, own[-1]])  # behind them **unknown, whose names numbadnn refuses


_DOC = """``numbadnn.{name}`` of Dask arrays, chunk by chunk: {says}

    Shapes, dtypes, parameters and errors as there, and ValueError for chunks of unknown sizes, for channels in several chunks,
    and for ``out``, ``stream`` and a beta other than 0. ``device="cuda"`` streams chunks of NumPy through a GPU,
    ``devices="all"`` through all of them.
    """


def like(function: Callable[..., Any], says: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate ``compute(arguments, gpus)``: it gets the bound arguments of numbadnn's function, and its name and signature."""
    signature = signature_of(function)
    name = function.__name__

    def decorate(compute: Callable[[dict[str, Any], Any], Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            arguments = {k: v for k, v in bound.arguments.items() if k != "unknown"} | bound.arguments["unknown"]
            gpus = gpus_of(arguments.pop("device"), arguments.pop("devices"))
            refuse(name, arguments)
            return compute(arguments, gpus)

        call.__name__ = call.__qualname__ = name
        call.__module__ = "numbadnn.dask"
        call.__signature__ = signature  # type: ignore[attr-defined]
        call.__doc__ = _DOC.format(name=name, says=says)
        return call

    return decorate


def refuse(name: str, arguments: dict[str, Any]) -> None:
    """What a lazy result cannot have."""
    destination = "result" if name == "pool_grad" else "out"
    if arguments.get(destination) is not None:
        raise ValueError(
            f"{destination}: expected None, a Dask result is an array of its own: write it with to_zarr or da.store"
        )
    if arguments.get("stream") is not None:
        raise ValueError("stream: expected None, each task runs on a stream of its worker")
    if name.startswith("conv") and arguments.get("beta", 0) != 0:
        raise ValueError(f"beta: expected 0, as there is no out, got {arguments['beta']!r}")


def problem_of(function: Callable[..., Any], arguments: dict[str, Any], arrays: dict[str, Any]) -> Any:
    """What a call asks for, after all of numbadnn's own checks; ``arrays``: name -> what has a shape and a dtype."""
    stood = {name: stand_in(tuple(a.shape), a.dtype) for name, a in arrays.items()}
    return dispatch.intercept("problem", function, (), {**arguments, **stood})


#: name -> the function, for what is another function's problem
WINDOWED: dict[str, Callable[..., da.Array]] = {}


def of_lines(problem: Any, operands: list[da.Array], arguments: dict[str, Any], gpus: Any) -> da.Array:
    """The same of images of one row, which lines (N, C, L) are to numbadnn."""
    rows = [a[:, :, None] for a in operands]
    # of unshared ones (K, L, C, R) the row of positions and that of the window
    of_rows = (
        (slice(None), 0, slice(None), slice(None), 0) if arguments.get("unshared") else (slice(None), slice(None), 0)
    )
    if "filters" in arguments:
        rows.append(arguments["filters"][tuple(None if part == 0 else part for part in of_rows)])
    how = {k: arguments[k] for k in ("algo", "precision", "accuracy", "backend") if k in arguments}
    found = WINDOWED[problem.op](*rows, **problem.keywords, **how, devices=gpus)
    return found[of_rows if problem.op.endswith("weights") else (slice(None), slice(None), 0)]


def windowed(
    name: str, arrays: tuple[str, ...], says: str, shape_argument: str = "input_shape"
) -> Callable[..., da.Array]:
    """A function of this module: numbadnn's ``name``, whose arguments ``arrays`` are cut, and ``filters`` are sent whole."""
    function = getattr(numbadnn, name)

    @like(function, says)
    def compute(arguments: dict[str, Any], gpus: Any) -> da.Array:
        operands = [operand(argument, arguments[argument]) for argument in arrays]
        filters = filters_of("filters", arguments["filters"]) if "filters" in arguments else None
        named: dict[str, Any] = dict(zip(arrays, operands, strict=True))
        problem = problem_of(function, arguments, {**named, **({"filters": filters} if filters else {})})
        if operands[0].ndim == 3 and name != "causal_conv1d":
            given = arguments if filters is None else {**arguments, "filters": filters.value}
            return of_lines(problem, operands, given, gpus)
        unshared = bool(arguments.get("unshared"))
        if unshared and name == "causal_conv1d":
            raise ValueError("unshared: expected False, pieces of causal_conv1d have shared filters")
        sent = {k: v for k, v in arguments.items() if k not in (*arrays, "filters", *_NOT_SENT)}
        dtype = numpy_dtype(problem.output.dtype)
        dtypes = (*(a.dtype for a in operands), dtype)
        call = Call(name, sent, dtypes, operands[0]._meta, shape_argument, unshared, gpus)
        chunks = operands[0].chunks if name == "pool_grad" else pieces.follow(problem, operands[0].chunks)
        return pieced(problem, call, operands, filters, chunks)

    WINDOWED[name] = compute
    return compute


_SEES = "each chunk of the result is computed from the part of the image that it sees."
_GATHERS = "each chunk of the result is gathered from the outputs that see it."
conv1d = windowed("conv1d", ("input",), _SEES)
conv2d = windowed("conv2d", ("input",), _SEES)
conv3d = windowed("conv3d", ("input",), _SEES)
causal_conv1d = windowed("causal_conv1d", ("input",), _SEES)
conv2d_transpose = windowed("conv2d_transpose", ("input",), _GATHERS, "output_shape")
conv3d_transpose = windowed("conv3d_transpose", ("input",), _GATHERS, "output_shape")
conv1d_grad_wrt_inputs = windowed("conv1d_grad_wrt_inputs", ("output_grad",), _GATHERS)
causal_conv1d_grad_wrt_inputs = windowed("causal_conv1d_grad_wrt_inputs", ("output_grad",), _GATHERS)
conv2d_grad_wrt_inputs = windowed("conv2d_grad_wrt_inputs", ("output_grad",), _GATHERS)
conv3d_grad_wrt_inputs = windowed("conv3d_grad_wrt_inputs", ("output_grad",), _GATHERS)
pool = windowed("pool", ("img",), _SEES)
pool_grad = windowed("pool_grad", ("inp", "out", "out_grad"), _GATHERS)
bilinear_upsampling = windowed("bilinear_upsampling", ("input",), _SEES)
frac_bilinear_upsampling = windowed("frac_bilinear_upsampling", ("input",), _SEES)
bilinear_upsampling_grad = windowed("bilinear_upsampling_grad", ("output_grad",), _GATHERS)
