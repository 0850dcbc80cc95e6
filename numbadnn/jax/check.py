"""Check a function of JAX's: each call of numbadnn's that it makes, on its own data, against the float64 reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

import numbadnn
from numbadnn import dispatch
from numbadnn.jax import call
from numbadnn.validate.oracle import Trial


@dataclass(frozen=True)
class Row:
    """One call: ``worst`` is its largest error as a share of the bound of what computed it."""

    problem: str
    impl: str
    status: str
    worst: float
    where: tuple[int, ...]


@dataclass
class Check:
    """What ``check`` found: ``ok``, a row for each call, and ``table()``."""

    rows: list[Row] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether there was a call, and none is outside its bound."""
        return bool(self.rows) and all(row.status == "ok" for row in self.rows)

    def table(self) -> str:
        lines = [("result", "error/bound", "implementation", "problem")]
        lines += [(r.status, f"{r.worst:.3g}", r.impl, r.problem) for r in self.rows]
        widths = [max(len(line[i]) for line in lines) for i in range(3)]
        return "\n".join("  ".join([*(t.ljust(w) for t, w in zip(x, widths, strict=False)), x[3]]) for x in lines)


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
        found.rows.append(_row(work, tuple(map(_host, inputs)), tuple(map(_host, results))))

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
    status = "ok" if compared.ok else "mismatch"
    return Row(str(problem), ran.impl, status, compared.worst, tuple(compared.where))


def _host(array: Any) -> np.ndarray:
    """A copy on the host, with the same strides."""
    if isinstance(array, np.ndarray):
        return array.copy(order="K")
    from numbadnn.arrays.numpy_ import strided_empty
    from numbadnn.gpu import bindings
    from numbadnn.gpu.context import ensure_context
    from numbadnn.problem import Spec

    copy = strided_empty(Spec(array.dtype, array.shape, array.strides))
    with ensure_context(array.device):
        driver = bindings.driver()
        bindings.check(driver.cuCtxSynchronize())
        if copy.size:
            bindings.check(driver.cuMemcpyDtoH(copy.ctypes.data, array.address, copy.nbytes))
    return copy
