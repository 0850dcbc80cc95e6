"""
Your first filter
=================

A convolution slides a small window of weights over an image. At each position it multiplies the pixels under the
window by the weights and adds the products. This page filters a photograph, and then finds a filter by its results
alone.
"""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.cbook import get_sample_data

import numbadnn

# %%
# An image
# --------
#
# Operations take *batches* of images with *channels*: arrays of shape (images, channels, rows, columns). One grey
# photograph is a batch of one image with one channel.

photo = (
    plt.imread(get_sample_data("grace_hopper.jpg", asfileobj=False))[20:420, 60:460].mean(
        axis=2
    )
    / 255
)
x = photo[None, None].astype("float32")
print(x.shape)

# %%
# Two filters
# -----------
#
# Filters have the shape (results, channels, rows, columns). These two find edges: Sobel's filter for vertical ones,
# and the same filter turned for horizontal ones. ``border_mode="half"`` pads the image with zeros so that the result
# is as large as the image.

sobel = np.array([[1, 0, -1], [2, 0, -2], [1, 0, -1]], "float32")
w = np.stack([sobel, sobel.T])[:, None]
y = numbadnn.conv2d(x, w, border_mode="half")
print(w.shape, "->", y.shape)

# %%
# One image went in, one image with two channels came out: a channel for each filter.

figure, axes = plt.subplots(1, 3)
axes[0].imshow(photo)
axes[0].set_title("image")
for axis, edges, name in zip(
    axes[1:], y[0], ("vertical edges", "horizontal edges"), strict=True
):
    axis.imshow(edges, cmap="RdBu", vmin=-2, vmax=2)
    axis.set_title(name)
for axis in axes:
    axis.axis("off")
plt.show()

# %%
# What computed it
# ----------------
#
# NumPy arrays are computed on the CPU. The same line with an array of CuPy, PyTorch or JAX on a GPU runs there, and
# gives an array of that library. ``last_call`` says what ran.

call = numbadnn.last_call()
print(call.impl)
print(call.problem)

# %%
# A filter from its results
# -------------------------
#
# Gradients are functions of their own. ``conv2d_grad_wrt_weights`` says how an error in the result changes with each
# weight. That is enough to find Sobel's filter from the photograph and its edges, beginning with zeros: gradient
# descent.

goal, guess, errors = y[:, :1], np.zeros((1, 1, 3, 3), "float32"), []
velocity = np.zeros_like(guess)
for _ in range(300):
    error = numbadnn.conv2d(x, guess, border_mode="half") - goal
    errors.append(float((error**2).mean()))
    gradient = numbadnn.conv2d_grad_wrt_weights(x, error, guess.shape, border_mode="half")
    velocity = 0.97 * velocity - 2e-6 * gradient
    guess = guess + velocity
print(guess[0, 0].round(2))

# %%
figure, axes = plt.subplots(1, 3, width_ratios=(2, 1, 1))
axes[0].semilogy(errors)
axes[0].set(xlabel="step", title="mean squared error")
for axis, weights, name in zip(
    axes[1:], (sobel, guess[0, 0]), ("Sobel's filter", "found"), strict=True
):
    axis.imshow(weights, cmap="RdBu", vmin=-2, vmax=2)
    axis.set_title(name)
    axis.axis("off")
plt.show()

# %%
# Next: :doc:`lenet`, where filters are found that tell digits apart.
