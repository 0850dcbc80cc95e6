"""Check a function of JAX's: each call of numbadnn's that it makes, on its own data, against the float64 reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import numbadnn
from numbadnn import dispatch
from numbadnn.jax import call
from numbadnn.validate.calls import Check
from numbadnn.validate.check import Row
from numbadnn.validate.host import on_host
from numbadnn.validate.oracle import Trial


def check(function: Callable[..., Any], *arrays: Any, **parameters: Any) -> Check:
    """Run ``function(*arrays, **parameters)``, whatever it is made of, and check each call of numbadnn's that it makes.

    Gradients too: ``check(jax.grad(loss), weights, x)``. The function runs step by step, as under ``jax.disable_jit``.

    >>> import jax, jax.numpy as jnp, numbadnn.jax
    >>> loss = lambda w, x: numbadnn.jax.softmax(numbadnn.jax.conv(x, w, (1, 1), "SAME"), axis=1).sum()
    >>> found = numbadnn.jax.check(jax.grad(loss), jnp.ones((4, 3, 3, 3)), jnp.ones((2, 3, 8, 8)))
    >>> found.ok, [row.problem.split()[0] for row in found.rows]
    (True, ['conv2d', 'softmax', 'softmax_grad', 'conv2d_grad_wrt_inputs', 'conv2d_grad_wrt_weights'])
    """
    found = Check()

    def look(work: call.Work, inputs: tuple[Any, ...], results: tuple[Any, ...]) -> None:
        found.rows.append(_row(work, tuple(map(_copy, inputs)), tuple(map(_copy, results))))

    call.watchers.append(look)
    try:
        with jax.disable_jit():
            jax.block_until_ready(function(*arrays, **parameters))
    finally:
        call.watchers.remove(look)
    return found


def _row(work: call.Work, inputs: tuple[np.ndarray, ...], results: tuple[np.ndarray, ...]) -> Row:
    ran = numbadnn.last_call()
    assert ran is not None  # it is this call that the watcher looks at
    function, arguments = getattr(numbadnn, work.function), dict(work.arguments)
    problem = dispatch.intercept("problem", function, inputs, arguments)
    compared = Trial(problem, inputs).compare(results, ran.arithmetic, ran.summation)
    status, reason = ("ok", "") if compared.ok else ("mismatch", str(compared))
    row = Row(
        work.function, ran.impl, str(problem), status, reason, compared.worst, tuple(compared.where), compared.ulp
    )
    row.arithmetic = ran.arithmetic
    return row


def _copy(array: Any) -> np.ndarray:
    """A copy on the host, with the same strides."""
    return on_host(array).copy(order="K") if isinstance(array, np.ndarray) else on_host(array)
