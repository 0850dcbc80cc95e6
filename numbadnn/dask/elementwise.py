"""The operations that look at one position, or at given statistics: softmax and batch normalization for inference."""

from __future__ import annotations

from typing import Any

import dask.array as da

import numbadnn
from numbadnn.arrays.numpy_ import numpy_dtype
from numbadnn.dask import devices
from numbadnn.dask.arrays import operand
from numbadnn.dask.operations import like, problem_of
from numbadnn.dask.work import Call, in_force, run


def each(*blocks: Any, call: Call) -> Any:
    """numbadnn's function on one chunk of each array."""
    with in_force(call.options), devices.lane(call.gpus) as lane:
        here = [b if lane is None else _sent(lane, slot, b) for slot, b in enumerate(blocks)]
        return run(call, here, [], call.keywords, lane)


def _sent(lane: devices.Lane, slot: int, block: Any) -> Any:
    """A block on the lane's GPU, or a copy in its pinned memory."""
    there = lane.from_parts(slot, block.shape, block.dtype, [block], [tuple(slice(0, n) for n in block.shape)])
    if there is not None:
        return there
    copied = lane.pinned(slot, block.shape, block.dtype)
    copied[...] = block
    return copied


def _of_ones(array: da.Array) -> da.Array:
    """An axis of one element in one chunk: beside empty ones blockwise would repeat it for each of them."""
    return array.rechunk({axis: -1 for axis, n in enumerate(array.shape) if n == 1})


def chunkwise(call: Call, arrays: list[da.Array]) -> da.Array:
    """``each`` chunk of the first array with those of the others that stand beside it."""
    arrays = [_of_ones(array) for array in arrays]
    indices = [tuple(range(a.ndim)) for a in arrays]
    paired = [item for pair in zip(arrays, indices, strict=True) for item in pair]
    return da.blockwise(
        each, indices[0], *paired, call=call, dtype=call.dtypes[-1], meta=arrays[0]._meta.astype(call.dtypes[-1])
    )


def _softmax(name: str, arrays: tuple[str, ...], arguments: dict[str, Any], gpus: Any) -> da.Array:
    function = getattr(numbadnn, name)
    operands = [operand(argument, arguments[argument], None) for argument in arrays]
    problem = problem_of(function, arguments, dict(zip(arrays, operands, strict=True)))
    for argument, array in zip(arrays, operands, strict=True):
        for axis in _normalised(arguments, array.ndim):
            if len(array.chunks[axis]) > 1:
                raise ValueError(
                    f"{argument}: expected one chunk of axis {axis}, which is normalised over, got "
                    f"{len(array.chunks[axis])}: rechunk({{{axis}: -1}})"
                )
    sent = {k: arguments[k] for k in ("algo", "mode", "axis", "backend")}
    dtype = numpy_dtype(problem.output.dtype)
    return chunkwise(Call(name, sent, (dtype,), operands[0]._meta, gpus=gpus), operands)


def _normalised(arguments: dict[str, Any], rank: int) -> tuple[int, ...]:
    """The axes that softmax normalises over."""
    if arguments["axis"] is not None:
        return (arguments["axis"] % rank,)
    return (1,) if arguments["mode"] == "channel" else tuple(range(1, rank))


@like(numbadnn.softmax, "each position's channels are in one chunk.")
def softmax(arguments: dict[str, Any], gpus: Any) -> da.Array:
    return _softmax("softmax", ("x",), arguments, gpus)


@like(numbadnn.softmax_grad, "each position's channels are in one chunk.")
def softmax_grad(arguments: dict[str, Any], gpus: Any) -> da.Array:
    return _softmax("softmax_grad", ("dy", "sm"), arguments, gpus)


@like(numbadnn.batch_normalization_test, "each element by itself, with the statistics given.")
def batch_normalization_test(arguments: dict[str, Any], gpus: Any) -> da.Array:
    names = ("inputs", "gamma", "beta", "mean", "var")
    operands = [operand(name, arguments[name]) for name in names]
    problem = problem_of(numbadnn.batch_normalization_test, arguments, dict(zip(names, operands, strict=True)))
    sent = {k: arguments[k] for k in ("mode", "epsilon", "backend")}
    call = Call("batch_normalization_test", sent, (numpy_dtype(problem.output.dtype),), operands[0]._meta, gpus=gpus)
    return chunkwise(call, operands)
