"""
Check your layers
=================

A network that trains badly may compute wrongly, or compute rightly what nobody meant. This page shows how to tell.
Every operation has a reference: its definition in plain NumPy and float64, which shares no code with what computes
fast.
"""

import matplotlib.pyplot as plt
import numpy as np

import numbadnn

# %%
# One call against its definition
# -------------------------------
#
# ``numbadnn.reference`` has the functions of ``numbadnn`` by the same names. Given float64 arrays they give the exact
# result, but for roundings of float64.

rng = np.random.default_rng(0)
x = rng.standard_normal((4, 16, 28, 28)).astype("float32")
w = (rng.standard_normal((32, 16, 3, 3)) / 12).astype("float32")
x64, w64 = x.astype("float64"), w.astype("float64")
y = numbadnn.conv2d(x, w, border_mode="half")
exact = numbadnn.reference.conv2d(x64, w64, border_mode="half")
error = np.abs(y - exact)
print(f"largest error {error.max():.1e}, of results up to {np.abs(exact).max():.1f}")

# %%
# Is that good? An element that cancels to almost nothing may have a large relative error and be as good as float32 can
# be. The bound for it grows with the sum of the absolute products, so that is what an error is measured by.

size = numbadnn.reference.conv2d(np.abs(x64), np.abs(w64), border_mode="half")
figure, axes = plt.subplots(1, 2)
axes[0].loglog(np.abs(exact).ravel(), (error / np.abs(exact)).ravel(), ",")
axes[0].set(xlabel="result", ylabel="relative error")
axes[1].semilogy(size.ravel(), (error / size).ravel() + 1e-11, ",")
axes[1].axhline(144 * 2**-24, color="k", linestyle=":")
axes[1].set(xlabel="sum of absolute products", ylabel="error beside it")
plt.show()

# %%
# The dotted line is the bound of a plain float32 sum of 144 products. :doc:`/explanation/error-bounds` derives it.
#
# Your arrays, every implementation
# ---------------------------------
#
# ``check`` does this for you. It takes a function and its arguments, as you call it. Every implementation that admits the
# call runs three times, and each element of its results is held to the bound of its arithmetic.

found = numbadnn.check(numbadnn.conv2d, x, w, backends="cpu", border_mode="half")
print(found.table())
assert found.ok

# %%
# ``error/bound`` is the largest error as a share of its bound: above 1 a result is wrong. This page was built without
# a GPU; leave ``backends`` out, and cuDNN and own kernels are checked too. ``found.rows`` has the same for programs,
# and ``found.json`` writes it to a file. The problem of a row is a line that the command line takes: ``numbadnn
# validate "conv2d x=..."`` runs it again.

print(found.rows[0].problem)

# %%
# Gradients are checked in the same way, and so is an array of a network that went wrong: save it with ``numpy.save``,
# and name the file, ``numbadnn validate conv2d --data x.npy w.npy``.

print(
    numbadnn.check(
        numbadnn.conv2d_grad_wrt_weights, x, y, w.shape, backends="cpu", border_mode="half"
    ).ok
)

# %%
# What was meant
# --------------
#
# A result may be right and still not be what you meant. Most frameworks compute correlation, which does not flip the
# filter. Two of these three pictures are the same.

one = np.zeros((1, 1, 9, 9), "float32")
one[0, 0, 4, 4] = 1
step = np.arange(9, dtype="float32").reshape(1, 1, 3, 3)
pictures = {
    "the filter": np.pad(step[0, 0], 3),
    "conv2d of one pixel": numbadnn.conv2d(one, step, border_mode="half")[0, 0],
    "filter_flip=False": numbadnn.conv2d(one, step, border_mode="half", filter_flip=False)[
        0, 0
    ],
}
figure, axes = plt.subplots(1, 3, figsize=(8, 2.8))
for axis, (name, picture) in zip(axes, pictures.items(), strict=True):
    axis.imshow(picture)
    axis.set_title(name)
    axis.axis("off")
plt.show()

# %%
# What ran, and why
# -----------------
#
# ``last_call`` says what computed your last call, and ``explain`` lists all candidates for one. It computes nothing.

explanation = numbadnn.explain(numbadnn.conv2d, x, w, border_mode="half")
print(explanation.chosen, "was chosen, decided by", explanation.decided_by)
for candidate in explanation.candidates[:2]:
    print(candidate.state, candidate.impl, candidate.arithmetic, candidate.determinism)
