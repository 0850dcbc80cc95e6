"""What compute-sanitizer is to watch, in the CUDA simulator: some problems, each in memory of exactly its size, and copies."""

import numpy as np
import pytest
import sanitize
import sanitize_cases
from host_driver import install
from reporting import end, report

from numbadnn.kernels.lang import access

SIMPLE = (
    "softmax x=float32:3x37:40,1", "pool_grad x=float32:1x1x6x6 window=3x3 stride=2x2 mode=max", "dropout x=float16:7:-1 p=0.5",
    "conv2d x=float32:1x1x4x4:unaligned w=float32:1x1x2x2 y=float32:1x1x3x3 alpha=2 beta=-3",
)  # fmt: skip


def main() -> None:
    with pytest.MonkeyPatch.context() as patch, np.errstate(all="ignore"):
        driver = install(patch)
        for line, impl in zip(SIMPLE, ("softmax_strided", "pool_strided", "dropout_strided", "direct"), strict=True):
            for unwritten in (False, True):
                access.MEMORY[:] = [(0, 1 << 64)]
                why = sanitize.run_one(sanitize_cases.Candidate(line, f"numba.{impl}"), unwritten)
                report(f"{line} {unwritten}", not why, why)
        access.MEMORY[:] = [(0, 1 << 64)]
        why = sanitize.run_copies()
        report("copies", not why, why)
        report("all memory is given back", not driver.owned, driver.owned)
    end()


if __name__ == "__main__":
    main()
