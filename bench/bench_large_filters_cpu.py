"""One large filter over one image on the CPU, float32: numbadnn, as it chooses, beside SciPy's ``fftconvolve``.

Calls are taken in turn, the least time of each counts, so that what else the machine does hurts both alike. Each result is held
against SciPy's in float64 before its time is printed. ``python bench/bench_large_filters_cpu.py``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from bench_conv_cpu import least_ms
from harness import save, table

import numbadnn

#: sides of the image and of the filter
SIDES = ((128, 15), (256, 15), (256, 21), (512, 11), (512, 21), (512, 51), (1024, 21), (1024, 101), (2048, 31))


def measure(image: int, taps: int) -> dict[str, Any]:
    from scipy.signal import fftconvolve

    rng = np.random.default_rng(image + taps)
    x, w = (rng.standard_normal((1, 1, side, side), "float32") for side in (image, taps))

    def ours() -> Any:
        return numbadnn.conv2d(x, w)

    def scipys() -> Any:
        return fftconvolve(x[0, 0], w[0, 0], "valid")

    exact = fftconvolve(x[0, 0].astype("float64"), w[0, 0].astype("float64"), "valid")
    for result in (ours()[0, 0], scipys()):
        np.testing.assert_allclose(result, exact, atol=1e-4 * taps)
    impl = numbadnn.last_call().impl  # type: ignore[union-attr]
    mine, scipy_ms = least_ms((ours, scipys), 1.0)
    row = {"case": f"{taps}x{taps} over {image}x{image}", "impl": impl, "ms": mine, "scipy_ms": scipy_ms}
    return row | {"vs scipy": scipy_ms / mine}


def main() -> None:
    rows = [measure(*sides) for sides in SIDES]
    print(table(rows, tuple(rows[0])))
    print("written to", save("large_filters_cpu", rows))


if __name__ == "__main__":
    main()
