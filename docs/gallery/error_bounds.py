"""
How far from the truth
======================

Every result can be held against the float64 reference. The error of a sum of products has a bound: it grows with the
number of products, and with the sum of their absolute values. Measured errors stay below, in each dtype.
"""

import matplotlib.pyplot as plt
import ml_dtypes
import numpy as np

import numbadnn
from numbadnn import reference

rng = np.random.default_rng(0)
lengths = [9 * channels for channels in (1, 4, 16, 64, 256)]
#: half the distance from 1 to the next number of each dtype
UNITS = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}

figure, axis = plt.subplots()
for colour, (dtype, unit) in zip(("C0", "C1", "C2"), UNITS.items(), strict=True):
    errors, bounds = [], []
    for length in lengths:
        x = rng.standard_normal((2, length // 9, 12, 12)).astype(
            getattr(ml_dtypes, dtype, dtype)
        )
        w = rng.standard_normal((4, length // 9, 3, 3)).astype(x.dtype)
        exact = reference.conv2d(x.astype("float64"), w.astype("float64"))
        size = reference.conv2d(abs(x.astype("float64")), abs(w.astype("float64")))
        error = abs(numbadnn.conv2d(x, w).astype("float64") - exact)
        accumulated = length * UNITS["float32"] / (1 - length * UNITS["float32"]) * size
        errors.append((error / size).max())
        bounds.append(((accumulated + unit * abs(exact)) / size).max())
    axis.loglog(lengths, bounds, ":", color=colour)
    axis.loglog(lengths, errors, "o-", color=colour, label=dtype)
axis.plot([], [], "k:", label="bound for a plain sum in float32")
axis.set(xlabel="products in a sum", ylabel="error / sum of absolute products")
figure.legend(loc="outside upper center", fontsize="small", ncols=4)
plt.show()

# %%
# 16-bit dtypes are summed in float32, so that the rounding of the result is what is seen. It shrinks beside the sum
# of absolute values, whose terms do not cancel. ``numbadnn validate`` holds every element to the bound that the
# implementation's order of sums has, which is sharper than the one drawn here.
