"""Run the CPU's implementations on arrays beside pages that nobody may touch; test_cpu_fences.py starts it, as it may crash.

Prints a line a case before it runs, so that the last one is what was touched too far, and at the end how many runs there were:
of some larger convolutions, and of every so many cases of the contract, as its argument says (1: all of them, ten minutes).
"""

import ctypes
import mmap
import sys
from typing import Any

import numpy as np

from numbadnn import cases
from numbadnn.arrays.numpy_ import numpy_dtype
from numbadnn.call.select import policy_in_force
from numbadnn.problem import Spec
from numbadnn.problems.conv import ConvProblem
from numbadnn.registry import implementations
from numbadnn.validate.execute import words
from numbadnn.validate.oracle import Trial

#: none of them is small for a kernel: stretches, planes, several jobs; 1x1, strides, dilation, three axes
LARGER = (
    "conv2d x={t}:8x3x64x64 w={t}:16x3x3x3",
    "conv2d x={t}:8x3x64x64 w={t}:16x3x3x3 pad=1,1,1,1 stride=2,2",
    "conv2d x={t}:2x64x20x20 w={t}:24x64x5x5",
    "conv2d x={t}:2x12x30x31 w={t}:20x6x3x3 groups=2 dilation=2,2",
    "conv2d x={t}:2x32x28x28 w={t}:48x32x1x1",
    "conv2d x={t}:3x32x28x28:nhwc w={t}:48x32x3x3:nhwc pad=1,1,1,1",
    "conv2d_grad_wrt_inputs x={t}:4x8x40x40 w={t}:12x8x3x3 pad=2,2,2,2",
    "conv2d_grad_wrt_inputs x={t}:4x8x40x40 w={t}:12x8x5x5 pad=2,2,2,2 stride=2,2",
    "conv2d_grad_wrt_weights x={t}:4x8x40x40 w={t}:12x8x3x3 pad=1,1,1,1",
    "conv3d x={t}:2x4x9x20x21 w={t}:8x4x3x3x3",
)


class Fences:
    """Memory between two pages that nobody may read or write, for arrays that begin or end there."""

    def __init__(self) -> None:
        self.kept: list[mmap.mmap] = []

    def array(self, spec: Spec, at_end: bool) -> np.ndarray:
        dtype, page, (low, high) = numpy_dtype(spec.dtype), mmap.PAGESIZE, spec.span
        size, item = (high - low + 1) * dtype.itemsize if spec.size else 0, dtype.itemsize
        pages = -(-size // page)
        memory = mmap.mmap(-1, (pages + 2) * page)
        self.kept.append(memory)
        start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        for fence in (start, start + (pages + 1) * page):
            if ctypes.CDLL(None).mprotect(ctypes.c_void_p(fence), ctypes.c_size_t(page), 0):
                raise OSError("mprotect")
        first = page + (pages * page - size) // 16 * 16 if at_end else page
        first += 0 if spec.aligned else item if not at_end else -item
        strides = tuple(s * item for s in spec.strides)
        return np.ndarray(spec.shape, dtype, memory, first - low * item, strides)


def run(problem: Any) -> int:
    """How many implementations gave, beside the fences, what the reference gives."""
    trial, policy, ran = Trial.of(problem), policy_in_force(problem.op, -1), 0
    for impl in implementations(problem.op):
        if impl.backend != "cpu" or impl.supports(problem, policy):
            continue
        executable = impl.plan(problem, policy, None)
        for at_end in (True, False):
            fences = Fences()
            inputs = [fences.array(spec, at_end) for spec in problem.inputs]
            outputs = [fences.array(spec, at_end) for spec in problem.outputs]
            for array, values in zip(inputs, trial.inputs, strict=True):
                array[...] = values
            for number, array in enumerate(outputs):
                array[...] = np.nan if number or trial.old is None else trial.old
            executable.run((*inputs, *words(problem)), tuple(outputs), None, None)
            found = trial.compare(tuple(outputs), executable.arithmetic, executable.summation)
            if not found.ok:
                print(f"{impl.name}: {found}")
                raise SystemExit(1)
            ran += 1
    return ran


if __name__ == "__main__":
    found = [ConvProblem.parse(text.format(t=t)) for text in LARGER for t in ("float32", "float16")]
    found += [case.problem() for case in cases.find(["contract"])[:: int(sys.argv[1])]]
    total = 0
    for problem in found:
        print(problem, flush=True)
        total += run(problem)
    print(total, "runs")
