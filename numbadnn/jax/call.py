"""How a function of numbadnn runs inside a computation of XLA: on XLA's own buffers and stream, results written in place.

``Work`` is one call: the function, its arguments that are no arrays, and the options in force when it was traced. XLA gives it
buffers: on the CPU they become NumPy arrays of the same memory, on the GPU ``buffers.Buffer``. Nothing is copied either way.
A version of JAX without ``buffer_callback`` has ``pure_callback``, which copies; that is said once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

import numbadnn
from numbadnn import config, dispatch
from numbadnn.errors import warn
from numbadnn.jax import buffers

try:
    from jax.experimental.buffer_callback import buffer_callback
except ImportError:  # an older JAX
    buffer_callback = None

#: for each axis of numbadnn's array that of the buffer, None for one of size 1 that the buffer lacks; None: all as they are
Axes = tuple[int | None, ...] | None

#: whether XLA may record what a call enqueues on a GPU, and replay that without Python
COMMAND_BUFFERS = True

#: called with (work, inputs, results) after each call, while ``check`` looks on
watchers: list[Callable[[Work, tuple[Any, ...], tuple[Any, ...]], None]] = []


@dataclass(frozen=True)
class Work:
    """One call of ``numbadnn.<function>`` with ``arguments``; ``axes`` are those of the arrays, ``outs`` of the results.

    ``words``: so many of the last arrays hold one integer each, which the function takes by these names.
    """

    function: str
    axes: tuple[Axes, ...]
    outs: tuple[Axes, ...]
    arguments: tuple[tuple[str, Any], ...]
    backend: str | None
    options: config.Options
    words: tuple[str, ...] = ()

    def call(self, arrays: list[Any], outs: list[Any], words: dict[str, int]) -> None:
        """Compute ``outs`` from ``arrays``, both with numbadnn's axes."""
        with _in_force(self.options):
            self._function(*arrays, **self._arguments(outs), **words)
        for watcher in watchers:
            watcher(self, tuple(arrays), tuple(outs))

    @functools.cached_property
    def _function(self) -> Callable[..., Any]:
        return getattr(numbadnn, self.function)

    def _arguments(self, outs: list[Any]) -> dict[str, Any]:
        name = "result" if self.function == "pool_grad" else "out"
        return {**dict(self.arguments), "backend": self.backend, name: outs[0] if len(outs) == 1 else tuple(outs)}

    def on_host(self, arrays: Any, outs: Any) -> None:
        """On the CPU, on NumPy arrays with the axes of the buffers."""
        count = len(self.axes)
        self.call(
            [seen(a, axes) for a, axes in zip(arrays, self.axes, strict=False)],
            [seen(a, axes) for a, axes in zip(outs, self.outs, strict=False)],
            {name: int(a) for name, a in zip(self.words, arrays[count:], strict=True)},
        )

    def __call__(self, context: Any, outs: Any, *arrays: Any) -> None:
        """What XLA calls when the buffers are there."""
        kind, device = outs[0].__dlpack_device__()
        if kind == 1:
            self.on_host([np.asarray(a) for a in arrays], [np.asarray(a) for a in outs])
        else:
            buffers.run(self, int(context.stream), device, arrays, outs)

    def problem(self, arrays: list[Any]) -> Any:
        """The problem that arrays of these shapes pose; ValueError and TypeError as of the function."""
        with _in_force(self.options):
            given = [seen(_like(a), axes) for a, axes in zip(arrays, self.axes, strict=False)]
            arguments = {**dict(self.arguments), "backend": self.backend}
            return dispatch.intercept("problem", self._function, tuple(given), arguments)

    def workspace(self, arrays: list[Any], results: list[Any]) -> int:
        """Plan for where JAX computes by default; bytes of workspace that XLA has to give. What cannot be done raises here."""
        gpu = buffers.gpu_for(self.backend)
        make: Any = _like if gpu is None else functools.partial(buffers.placeholder, gpu)
        look: Any = seen if gpu is None else buffers.seen
        given = [look(make(a), axes) for a, axes in zip(arrays, self.axes, strict=False)]
        outs = [look(make(a), axes) for a, axes in zip(results, self.outs, strict=True)]
        nbytes = self.plan(given, outs).workspace_bytes
        return 0 if gpu is None else int(nbytes)

    def plan(self, arrays: list[Any], outs: list[Any]) -> Any:
        """The plan of this call in this thread."""
        with _in_force(self.options):
            return dispatch.intercept("plan", self._function, tuple(arrays), self._arguments(outs))


class _in_force:
    """Within, these options are in force."""

    def __init__(self, options: config.Options) -> None:
        self._options = options

    def __enter__(self) -> None:
        self._token = config._using.set(self._options)

    def __exit__(self, *_: Any) -> None:
        config._using.reset(self._token)


def seen(array: np.ndarray, axes: Axes) -> np.ndarray:
    """The array with numbadnn's axes: a view."""
    if axes is None:
        return array
    array = array.transpose([axis for axis in axes if axis is not None])
    return array[tuple([None if axis is None else slice(None) for axis in axes])]


def unseen_shape(shape: tuple[int, ...], axes: Axes) -> tuple[int, ...]:
    """The shape of the buffer of which this is the shape with numbadnn's axes."""
    if axes is None:
        return shape
    return tuple(shape[axes.index(axis)] for axis in range(sum(a is not None for a in axes)))


def _like(array: Any) -> np.ndarray:
    """Memory of that shape and dtype that nobody touches."""
    return np.empty(array.shape, array.dtype)


def compute(work: Work, *arrays: jax.Array) -> tuple[jax.Array, ...]:
    """The results of a call, as part of the trace."""
    problem = work.problem(list(arrays))
    results = [
        jax.ShapeDtypeStruct(unseen_shape(spec.shape, axes), buffers.dtype(spec.dtype))
        for spec, axes in zip(problem.outputs, work.outs, strict=True)
    ]
    if buffer_callback is None:
        _say_that_all_is_copied()
        found = jax.pure_callback(functools.partial(_copied, work, results), results, *arrays, vmap_method="sequential")
        return tuple(found)
    nbytes = work.workspace(list(arrays), results)
    space = [jax.ShapeDtypeStruct((nbytes + buffers.ALIGNED,), np.uint8)] if nbytes else []
    run = buffer_callback(
        work, [*results, *space], command_buffer_compatible=COMMAND_BUFFERS and not work.words, vmap_method="sequential"
    )
    return tuple(run(*arrays)[: len(results)])


def _copied(work: Work, results: list[Any], *arrays: Any) -> list[np.ndarray]:
    outs = [_like(r) for r in results]
    work.on_host([np.asarray(a) for a in arrays], outs)
    return outs


@functools.cache
def _say_that_all_is_copied() -> None:
    warn(
        f"JAX {jax.__version__} has no jax.experimental.buffer_callback: numbadnn.jax computes on the CPU, on copies of its "
        "arrays, by jax.pure_callback; JAX 0.6.2 and newer compute in place"
    )


def varying(array: Any) -> frozenset[str]:
    """The axes of a mesh along which this may differ, inside ``jax.shard_map``; JAX has had two names for them."""
    kind = jax.typeof(array) if hasattr(jax, "typeof") else None
    kind = getattr(kind, "manual_axis_type", kind)
    return frozenset(getattr(kind, "varying", getattr(kind, "vma", ())))


def alike(*arrays: Any) -> tuple[Any, ...]:
    """The arrays of one call, varying along the same axes of a mesh, as the operands of JAX's own functions do."""
    return varying_as(arrays, arrays)


def varying_as(models: tuple[Any, ...], arrays: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arrays, varying along every axis of a mesh along which one of the models does."""
    axes: frozenset[str] = frozenset().union(*map(varying, models))
    if not axes:
        return arrays
    lacking = [tuple(sorted(axes - varying(a))) for a in arrays]
    vary = functools.partial(jax.lax.pcast, to="varying") if hasattr(jax.lax, "pcast") else jax.lax.pvary
    return tuple(vary(a, more) if more else a for a, more in zip(arrays, lacking, strict=True))
