"""
Check your layers
=================

A network that trains badly may compute wrongly, or compute rightly what nobody meant. This page shows how to tell.
Every operation has a reference: its definition in plain NumPy and float64, which shares no code with what computes
fast.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import numbadnn
from numbadnn.__main__ import main

# %%
# One call against its definition
# -------------------------------
#
# ``numbadnn.reference`` has the functions of ``numbadnn`` by the same names. Given float64 arrays they give the exact
# result, but for roundings of float64.

rng = np.random.default_rng(0)
x = rng.standard_normal((4, 16, 28, 28)).astype("float32")
w = (rng.standard_normal((32, 16, 3, 3)) / 12).astype("float32")
y = numbadnn.conv2d(x, w, border_mode="half")
exact = numbadnn.reference.conv2d(
    x.astype("float64"), w.astype("float64"), border_mode="half"
)
error = np.abs(y - exact)
print(f"largest error {error.max():.1e}, of results up to {np.abs(exact).max():.1f}")

# %%
# Is that good? An element that cancels to almost nothing may have a large relative error and be as good as float32
# can be. The bound for it grows with the sum of the absolute products, so that is what an error is measured by.

size = numbadnn.reference.conv2d(
    np.abs(x).astype("float64"), np.abs(w).astype("float64"), border_mode="half"
)
figure, axes = plt.subplots(1, 2)
axes[0].loglog(np.abs(exact).ravel(), (error / np.abs(exact)).ravel(), ",")
axes[0].set(xlabel="result", ylabel="relative error")
axes[1].loglog(size.ravel(), (error / size).ravel() + 1e-12, ",")
axes[1].axhline(144 * 2**-24, color="k", linestyle=":")
axes[1].set(xlabel="sum of absolute products", ylabel="error beside it")
plt.show()

# %%
# The dotted line is the bound of a plain float32 sum of 144 products.
#
# Your arrays against every implementation
# ----------------------------------------
#
# ``numbadnn validate`` does this with every implementation of your machine, GPU and CPU, and derives the bound of
# each. ``--data`` takes arrays of your own, such as the layer at which a network went wrong.

folder = Path(tempfile.mkdtemp())
np.save(folder / "x.npy", x)
np.save(folder / "w.npy", w)
status = main(
    [
        "validate",
        "conv2d",
        "--backend",
        "cpu",
        "--data",
        str(folder / "x.npy"),
        str(folder / "w.npy"),
    ]
)
print("exit status", status)

# %%
# What ran, and why
# -----------------
#
# ``explain`` lists all candidates for a call. It computes nothing.

print(numbadnn.explain(numbadnn.conv2d, x, w, backend="cpu"))
