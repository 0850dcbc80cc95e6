"""No kernel reads a byte of its workspace that none has written: the simulator's initcheck. test_unwritten.py starts it."""

from typing import Any

import numpy as np
import pytest
from reporting import end, report
from simulated_grouped_halves import WEIGHTS, small

from numbadnn import cases
from numbadnn.kernels.lang import access
from numbadnn.validate import simulate
from numbadnn.validate.oracle import Trial

SAMPLER = "spatialtf_sampler_grad img={t}:1x4x5x6{l} grid={g}:1x4x4x2 dy={t}:1x4x4x4{l}"
#: (problem, implementation): launches that leave something for a later one to read
CASES = (
    (SAMPLER.format(t="float32", g="float32", l=""), "numba.spatial_planes"),
    (SAMPLER.format(t="float32", g="float32", l=":nhwc"), "numba.spatial_channels"),
    (SAMPLER.format(t="float16", g="float32", l=":nhwc"), "numba.spatial_channels"),
    (f"{WEIGHTS} x=float16:2x1x5x4 w=float16:10x1x3x3 y=float16:2x10x5x4:nhwc pad=1,1,1,1", "numba.grouped_halves"),
    (
        f"{WEIGHTS} x=bfloat16:2x1x9x9 w=bfloat16:6x1x3x3 y=bfloat16:2x6x5x5:nhwc pad=1,1,1,1 stride=2,2",
        "numba.grouped_halves",
    ),
)


class Cells:
    """Bytes at an address: reading those of the workspace that nothing has written raises."""

    written: np.ndarray = np.zeros(0, bool)
    workspace = (0, 0)

    def __init__(self, address: int, size: int, bytes_at: Any) -> None:
        low, high = access.MEMORY[-1]
        if Cells.workspace != (low, high):  # another run's
            Cells.workspace, Cells.written = (low, high), np.zeros(high - low, bool)
        self.data = bytes_at(address, size)
        self.flags = (
            Cells.written[address - low : address - low + size] if low <= address < high else np.ones(size, bool)
        )

    def __setitem__(self, where: slice, values: bytes) -> None:
        self.data[where] = values
        self.flags[where] = True

    def __bytes__(self) -> bytes:
        if not self.flags.all():
            raise IndexError(f"the kernel reads {self.flags.size} bytes of its workspace that nothing has written")
        return bytes(self.data)


def check(line: str, impl: str) -> None:
    problem = cases.parse(line)
    trial = Trial.of(problem, 1)
    inputs = list(trial.inputs)
    if problem.op == "spatialtf_sampler_grad":  # points in the image, at its border, beyond it, and nowhere
        inputs[1] = inputs[1] * 2
        inputs[1][0, 0, :3, 0] = 9, np.nan, -1.1
    config = small(problem, (3, 4)) if problem.op == WEIGHTS else None
    try:
        simulate.run(problem, (*inputs, *([] if trial.old is None else [trial.old])), impl, config=config)
        why = "" if Cells.written.any() else "no workspace was written"
    except IndexError as error:
        why = str(error)
    report(f"{impl} {line}", not why, why)


def main() -> None:
    with pytest.MonkeyPatch.context() as patch, np.errstate(all="ignore"):
        real = access._bytes_at
        patch.setattr(access, "_bytes_at", lambda address, size: Cells(address, size, real))
        for line, impl in CASES:
            check(line, impl)
    end()


if __name__ == "__main__":
    main()
