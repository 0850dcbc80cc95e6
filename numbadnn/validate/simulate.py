"""One problem by one CUDA kernel in Numba's simulator, in this process."""

from __future__ import annotations

from typing import Any

import numpy as np

from numbadnn.kernels.build.simulate import active
from numbadnn.measuring.data import buffer, untouched
from numbadnn.problem import Policy
from numbadnn.registry import implementations
from numbadnn.validate.execute import targets, words


def run(problem: Any, arrays: tuple[Any, ...], name: str = "", policy: Policy | None = None, config: Any = None) -> Any:
    """The results (a tuple) of ``problem`` on NumPy ``arrays`` (its inputs; then the old output, where beta is not 0).

    ``name`` picks the implementation ("numba.direct"); default: the first of the numba backend. Arrays must have the shapes
    and dtypes of the problem's specs; they are laid out in memory as the specs say. Raises RuntimeError outside the
    simulator.
    """
    if not active():
        raise RuntimeError("expected a process started with NUMBA_ENABLE_CUDASIM=1")
    from numbadnn.kernels.lang import access as _access

    candidates = [i for i in implementations(problem.op) if i.backend == "numba" and name in ("", i.name)]
    if not candidates:
        raise ValueError(f"expected an implementation of {problem.op} on the numba backend, got {name!r}")
    old = arrays[len(problem.inputs)] if len(arrays) > len(problem.inputs) else None
    inputs = [buffer(spec, array) for spec, array in zip(problem.inputs, arrays, strict=False)]
    outputs = targets(problem, old)
    executable = candidates[0].plan(problem, policy or Policy(device=0), config)
    workspace = np.full(executable.workspace_bytes + 256, 0xFF, np.uint8)  # NaN in every type
    start = workspace.ctypes.data + -workspace.ctypes.data % 256
    _access.MEMORY[:] = [*map(_range, (*inputs, *outputs)), (start, start + executable.workspace_bytes)]
    arguments = (*(b.array.ctypes.data for b in inputs), *words(problem))
    executable.run(arguments, tuple(b.array.ctypes.data for b in outputs), start, 0)
    if not all(map(untouched, outputs)):
        raise IndexError(f"{candidates[0].name} wrote into the gaps of an output")
    return tuple(b.array for b in outputs)


def _range(operand: Any) -> tuple[int, int]:
    """The first and the last + 1 byte address that an index of the operand reaches."""
    (low, high), size, start = operand.spec.span, operand.spec.itemsize, operand.array.ctypes.data
    return start + low * size, start + (high + 1) * size
