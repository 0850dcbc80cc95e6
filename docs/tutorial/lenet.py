"""
LeNet on handwritten digits
===========================

A convolutional network finds its own filters. This page trains a small LeNet: two layers of convolution and pooling,
and a layer that gives a score for each digit. Only NumPy and numbadnn compute; every gradient is called by its name.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import numbadnn

# %%
# The digits
# ----------
#
# scikit-learn brings 1,797 digits of 8 x 8 pixels. Doubled in size they suit LeNet's windows. Four fifths train the
# network, the rest shows what it has learnt.

data = load_digits()
small = (data.images[:, None] / 16).astype("float32")
images = numbadnn.bilinear_upsampling(small, ratio=2) - 0.3
rng = np.random.default_rng(0)
order = rng.permutation(len(images))
train, test = order[:1437], order[1437:]
print(images.shape)

# %%
# The network
# -----------
#
# ===============  =========================================  ================
# layer            operation                                  result
# ===============  =========================================  ================
# convolution      8 filters of 5 x 5, padded                 8 x 16 x 16
# pooling, tanh    the maximum of 2 x 2 pixels                8 x 8 x 8
# convolution      16 filters of 5 x 5                        16 x 4 x 4
# pooling, tanh    the maximum of 2 x 2 pixels                16 x 2 x 2
# scores           10 filters as large as what they look at   10 x 1 x 1
# ===============  =========================================  ================


def start(*shape):
    """Filters that keep the size of what goes through them."""
    return (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype("float32")


weights = [start(8, 1, 5, 5), start(16, 8, 5, 5), start(10, 16, 2, 2)]
velocity = [np.zeros_like(w) for w in weights]
borders = ("half", "valid", "valid")


def layer(x, w, border):
    """Convolution, pooling, tanh; and what their gradients need."""
    convolved = numbadnn.conv2d(x, w, border_mode=border)
    pooled = numbadnn.pool(convolved, (2, 2), stride=(2, 2))
    y = np.tanh(pooled)
    return y, (x, convolved, pooled, y)


def layer_gradients(dy, w, border, saved):
    """From the gradient in a layer's result: those in its input and in its filters."""
    x, convolved, pooled, y = saved
    dpooled = dy * (1 - y * y)
    dconvolved = numbadnn.pool_grad(convolved, pooled, dpooled, (2, 2), stride=(2, 2))
    dx = numbadnn.conv2d_grad_wrt_inputs(dconvolved, w, x.shape, border_mode=border)
    dw = numbadnn.conv2d_grad_wrt_weights(x, dconvolved, w.shape, border_mode=border)
    return dx, dw


def scores(x):
    """The scores of a batch, and what each layer keeps."""
    first, saved_first = layer(x, weights[0], borders[0])
    second, saved_second = layer(first, weights[1], borders[1])
    return numbadnn.conv2d(second, weights[2]), saved_first, saved_second, second


# %%
# Training
# --------
#
# The loss is the negative logarithm of the probability that the network gives to the right digit. ``softmax`` with
# ``algo="log"`` computes it, and ``softmax_grad`` its gradient. From there each layer hands the gradient down to the
# one before.


def step(batch):
    """One step of gradient descent with momentum; the loss before it."""
    z, saved_first, saved_second, second = scores(images[batch])
    log_p = numbadnn.softmax(z, algo="log")
    target = np.eye(10, dtype="float32")[data.target[batch]][:, :, None, None]
    dz = numbadnn.softmax_grad(-target / len(batch), log_p, algo="log")
    gradients = [None, None, numbadnn.conv2d_grad_wrt_weights(second, dz, weights[2].shape)]
    dsecond = numbadnn.conv2d_grad_wrt_inputs(dz, weights[2], second.shape)
    dfirst, gradients[1] = layer_gradients(dsecond, weights[1], borders[1], saved_second)
    _, gradients[0] = layer_gradients(dfirst, weights[0], borders[0], saved_first)
    for i, gradient in enumerate(gradients):
        velocity[i] = 0.9 * velocity[i] - 0.05 * gradient
        weights[i] = weights[i] + velocity[i]
    return float(-(log_p * target).sum() / len(batch))


losses = []
for _ in range(12):
    shuffled = rng.permutation(train)
    losses += [step(shuffled[i : i + 48]) for i in range(0, len(shuffled) - 47, 48)]

# %%
# What it has learnt
# ------------------

predicted = scores(images[test])[0][:, :, 0, 0].argmax(axis=1)
right = predicted == data.target[test]
print(f"{right.sum()} of {len(test)} digits that it never saw: {100 * right.mean():.1f} %")

# %%
figure, axes = plt.subplot_mosaic(
    [["loss", *"abcd"], ["loss", *"efgh"]], width_ratios=(5, 1, 1, 1, 1)
)
axes["loss"].semilogy(losses)
axes["loss"].set(xlabel="step", title="loss")
for name, filters in zip("abcdefgh", weights[0][:, 0], strict=True):
    axes[name].imshow(filters, cmap="RdBu", vmin=-0.6, vmax=0.6)
    axes[name].axis("off")
figure.suptitle("training, and the eight filters of the first layer")
plt.show()

# %%
# The digits it takes for others are hard to read for people too.

figure, axes = plt.subplots(1, 8, figsize=(8, 1.6))
for axis, i in zip(axes, np.flatnonzero(~right)[:8], strict=False):
    axis.imshow(small[test[i], 0], cmap="gray_r")
    axis.set_title(f"{data.target[test[i]]} taken for {predicted[i]}", fontsize="x-small")
for axis in axes:
    axis.axis("off")
plt.show()

# %%
# ``examples/digits.py`` trains a larger network with batch normalisation and dropout. The same lines train on a GPU
# when the arrays are CuPy's. Next: :doc:`vae`, where autograd calls the gradients.
