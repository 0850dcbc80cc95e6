"""What is a sum over all chunks: gradients of the weights, and the statistics of a batch.

Each chunk gives its share; shares are added two by two in a tree that the numbers of the chunks fix. So the result has the
same bits for any number of workers, in whatever order they finish.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
from dask.array.utils import meta_from_array
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph

import numbadnn
from numbadnn.arrays.numpy_ import numpy_dtype
from numbadnn.dask.arrays import operand
from numbadnn.dask.elementwise import chunkwise
from numbadnn.dask.graph import Tasks, slices_of, token
from numbadnn.dask.operations import WINDOWED, like, of_lines, problem_of
from numbadnn.dask.work import Call, in_force
from numbadnn.problems.norm import axes_of


def tree(layer: dict[Any, Any], name: str, keys: list[Any], add: Callable[[Any, Any], Any]) -> Any:
    """Add tasks that merge what is under ``keys`` two by two; the key of the whole."""
    level = 0
    while len(keys) > 1:
        merged = [*keys]
        for i in range(0, len(keys) - 1, 2):
            key = (f"merge-{name}", level, i)
            layer[key] = (add, keys[i], keys[i + 1])
            merged[i] = key
        keys, level = merged[::2], level + 1
    return keys[0]


# ---- gradients of the weights ----------------------------------------------------------------------------------------


def _sum(a: Any, b: Any) -> Any:
    with np.errstate(all="ignore"):  # as the undivided call, which says nothing of infinities
        return a + b


def _as(dtype: Any, array: Any) -> Any:
    with np.errstate(all="ignore"):
        return array.astype(dtype, copy=False)


def _grad_wrt_weights(name: str, arguments: dict[str, Any], gpus: Any) -> da.Array:
    function = getattr(numbadnn, name)
    names = ("input", "output_grad")
    image, top = operands = [operand(argument, arguments[argument]) for argument in names]
    unshared = bool(arguments.get("unshared"))
    if unshared and name.startswith("causal"):
        raise ValueError("unshared: expected False, pieces of causal_conv1d have shared filters")
    problem = problem_of(function, arguments, {"input": image, "output_grad": top})
    if image.ndim == 3:
        return of_lines(problem, operands, arguments, gpus)
    dtype, shape = numpy_dtype(problem.output.dtype), problem.w.shape
    # shares of 16 bits would be rounded before they are added
    wide = np.dtype(np.float32) if dtype.itemsize == 2 else dtype
    left_out = (*names, "input_shape", "out", "stream")
    sent = {k: v for k, v in arguments.items() if k not in left_out} | {"filter_shape": shape}
    dtypes, before = (image.dtype, top.dtype, wide), wide if wide != dtype else None
    call = Call(name, sent, dtypes, image._meta, unshared=unshared, gpus=gpus, wide=before)
    result = token(call, operands, None, top.chunks)
    tasks = Tasks(result, problem, call, operands, None)
    shares: dict[tuple[int, ...], list[Any]] = {}
    for index, part in slices_of(top.chunks):
        key = (f"share-{result}", *index)
        tasks.add(key, part)
        shares.setdefault(index[2:] if unshared else (), []).append(key)
    for place, keys in shares.items():
        whole = tree(tasks.layer, "-".join((result, *map(str, place))), keys, _sum)
        tasks.layer[(result, 0, *place, *(0,) * (len(shape) - 1 - len(place)))] = (partial(_as, dtype), whole)
    places = top.chunks[2:] if unshared else ()
    chunks = ((shape[0],), *places, *((n,) for n in shape[1 + len(places) :]))
    meta = meta_from_array(image._meta, ndim=len(shape), dtype=dtype)
    return da.Array(tasks.graph(), result, chunks, dtype=dtype, meta=meta)


_ADDS = "each chunk of ``output_grad`` gives a share, added in a fixed tree: the same bits for any number of workers."


@like(numbadnn.conv1d_grad_wrt_weights, _ADDS)
def conv1d_grad_wrt_weights(arguments: dict[str, Any], gpus: Any) -> da.Array:
    return _grad_wrt_weights("conv1d_grad_wrt_weights", arguments, gpus)


@like(numbadnn.causal_conv1d_grad_wrt_weights, _ADDS)
def causal_conv1d_grad_wrt_weights(arguments: dict[str, Any], gpus: Any) -> da.Array:
    return _grad_wrt_weights("causal_conv1d_grad_wrt_weights", arguments, gpus)


@like(numbadnn.conv2d_grad_wrt_weights, _ADDS)
def conv2d_grad_wrt_weights(arguments: dict[str, Any], gpus: Any) -> da.Array:
    return _grad_wrt_weights("conv2d_grad_wrt_weights", arguments, gpus)


@like(numbadnn.conv3d_grad_wrt_weights, _ADDS)
def conv3d_grad_wrt_weights(arguments: dict[str, Any], gpus: Any) -> da.Array:
    return _grad_wrt_weights("conv3d_grad_wrt_weights", arguments, gpus)


WINDOWED["conv2d_grad_wrt_weights"] = conv2d_grad_wrt_weights


# ---- statistics of a batch -------------------------------------------------------------------------------------------


def moments(chunk: Any, call: Call) -> tuple[int, Any, Any]:
    """(count, mean, M2) of a chunk's channels in float64, M2 the sum of squares around the mean."""
    axes = axes_of(call.keywords["mode"], chunk.ndim)
    shape = tuple(1 if axis in axes else n for axis, n in enumerate(chunk.shape))
    count = chunk.size // max(1, int(np.prod(shape)))
    one, none = np.ones_like(chunk, np.float64, shape=shape), np.zeros_like(chunk, np.float64, shape=shape)
    if not chunk.size:
        return 0, none, none
    with in_force(call.options):
        _, mean, invstd = numbadnn.batch_normalization_train(
            chunk, one, none, call.keywords["mode"], 0.0, backend=call.keywords["backend"]
        )
    with np.errstate(all="ignore"):
        return count, mean, count / invstd**2


def merge(a: tuple[int, Any, Any], b: tuple[int, Any, Any]) -> tuple[int, Any, Any]:
    """The moments of both together. Source: Chan, Golub and LeVeque 1979."""
    (n, mean, squares), (m, other, others) = a, b
    if not n or not m:
        return a if n else b
    with np.errstate(all="ignore"):
        apart, share = other - mean, m / (n + m)
        merged = mean + apart * share
        weighted = mean * (n / (n + m)) + other * share  # where two infinities apart are NaN
        merged = np.where(np.isfinite(merged), merged, weighted)
        return n + m, merged, squares + others + apart * apart * (n * m / (n + m))


def _statistic(which: str, dtype: Any, call: Call, found: tuple[int, Any, Any], *old: Any) -> Any:
    """One of the results but the first, from the moments of the whole."""
    count, mean, squares = found
    if not count:
        return np.full_like(mean, np.nan, dtype)
    factor, var = call.keywords["running_average_factor"], squares / count
    with np.errstate(all="ignore"):
        value = {
            "mean": lambda: mean,
            "var": lambda: var,
            "invstd": lambda: 1 / np.sqrt(var + call.keywords["epsilon"]),
            "running_mean": lambda: old[0] * (1 - factor) + mean * factor,
            "running_var": lambda: old[0] * (1 - factor) + squares / (count - 1) * factor,
        }[which]()
        return value.astype(dtype)


@like(
    numbadnn.batch_normalization_train,
    "(count, mean, M2) of each chunk are merged in a fixed tree, then each is normalised.",
)
def batch_normalization_train(arguments: dict[str, Any], gpus: Any) -> tuple[da.Array, ...]:
    names = ["inputs", "gamma", "beta", "running_mean", "running_var"]
    if arguments["running_mean"] is None and arguments["running_var"] is None:
        names = names[:3]
    operands = {n: operand(n, arguments[n]) for n in names if arguments[n] is not None}
    problem = problem_of(numbadnn.batch_normalization_train, arguments, operands)
    x, dtype = operands["inputs"], numpy_dtype(problem.outputs[1].dtype)
    sent = {k: arguments[k] for k in ("mode", "epsilon", "running_average_factor", "backend")}
    call = Call("batch_normalization_train", sent, (dtype,), x._meta)
    whole = _moments_of(x, call)
    # in float64 until the end: the normalised values do not lose what the statistics are rounded to
    mean, var = (_of(which, np.dtype(np.float64), call, whole) for which in ("mean", "var"))
    inference = {k: sent[k] for k in ("mode", "epsilon", "backend")}
    apply = Call("batch_normalization_test", inference, (x.dtype,), x._meta, gpus=gpus)
    out = chunkwise(apply, [x, operands["gamma"], operands["beta"], mean, var])
    running = [_of(n, dtype, call, whole, operands[n].rechunk(mean.chunks)) for n in names[3:]]
    return (out, *(_of(which, dtype, call, whole) for which in ("mean", "invstd")), *running)


class _Whole:
    """The moments of a whole array: in its graph one key for each chunk of the channels' positions."""

    def __init__(self, name: str, chunks: Any, graph: Any, like: Any) -> None:
        self.name, self.chunks, self.graph, self.like = name, chunks, graph, like


def _moments_of(x: da.Array, call: Call) -> _Whole:
    axes = axes_of(call.keywords["mode"], x.ndim)
    name = f"moments-{tokenize(x.name, call)}"
    layer: dict[Any, Any] = {}
    groups: dict[tuple[int, ...], list[Any]] = {}
    for index in np.ndindex(*x.numblocks):
        layer[(f"chunk-{name}", *index)] = (partial(moments, call=call), (x.name, *index))
        kept = tuple(0 if axis in axes else i for axis, i in enumerate(index))
        groups.setdefault(kept, []).append((f"chunk-{name}", *index))
    for kept, keys in groups.items():
        merged: Any = tree(layer, f"{name}-{'-'.join(map(str, kept))}", keys, merge)
        layer[(name, *kept)] = merged
    chunks = tuple((1,) if axis in axes else sizes for axis, sizes in enumerate(x.chunks))
    return _Whole(name, chunks, HighLevelGraph.from_collections(name, layer, dependencies=[x]), x._meta)


def _of(which: str, dtype: Any, call: Call, whole: _Whole, *old: da.Array) -> da.Array:
    """A statistic as a Dask array."""
    name = f"{which}-{tokenize(whole.name, dtype, [o.name for o in old])}"
    layer = {}
    for index in np.ndindex(*map(len, whole.chunks)):
        keys = ((array.name, *index) for array in (whole, *old))
        layer[(name, *index)] = (partial(_statistic, which, dtype, call), *keys)
    graph = HighLevelGraph.merge(whole.graph, *(array.dask for array in old))
    dependencies = {**graph.dependencies, name: {array.name for array in (whole, *old)}}
    graph = HighLevelGraph({**graph.layers, name: layer}, dependencies)
    meta = meta_from_array(whole.like, ndim=len(whole.chunks), dtype=dtype)
    return da.Array(graph, name, whole.chunks, dtype=dtype, meta=meta)
