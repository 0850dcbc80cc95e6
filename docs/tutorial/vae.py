"""
A variational autoencoder with autograd
=======================================

``numbadnn.torch`` has the operations with PyTorch's arguments. Autograd calls their gradients, so a model is written as
in any PyTorch program. This page trains a variational autoencoder: it squeezes each digit into two numbers and draws
it again from them.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch.nn.functional import binary_cross_entropy_with_logits, linear, softplus

import numbadnn
import numbadnn.torch as nt

torch.manual_seed(0)
torch.set_num_threads(1)
data = load_digits()
images = torch.tensor(data.images[:, None] / 16, dtype=torch.float32)
print(tuple(images.shape))

# %%
# Encoder and decoder
# -------------------
#
# The encoder halves the image twice. It gives the mean and the width of a bell in the plane, not one point of it. The
# decoder goes the other way, with transposed convolutions that double the image.
#
# Parameters are tensors that require gradients; a module of ``torch.nn`` could hold them as well.


def start(*shape):
    """A parameter that keeps the size of what goes through it."""
    inputs = shape[1] * shape[2] * shape[3] if len(shape) == 4 else shape[1]
    return (torch.randn(shape) * (2 / inputs) ** 0.5).requires_grad_()


parameters = {
    "down1": start(16, 1, 3, 3),
    "down2": start(32, 16, 3, 3),
    "code": start(4, 128),
    "open": start(128, 2),
    "up1": start(32, 16, 4, 4),
    "up2": start(16, 1, 4, 4),
    "open_bias": torch.zeros(128, requires_grad=True),
    "grey": torch.zeros(1, requires_grad=True),
}
p = parameters


def encode(x):
    """Means and widths, two of each for an image."""
    h = nt.conv2d(x, p["down1"], stride=2, padding=1).relu()
    h = nt.conv2d(h, p["down2"], stride=2, padding=1).relu()
    mean, width = linear(h.flatten(1), p["code"]).chunk(2, dim=1)
    return mean, softplus(width) + 1e-3


def decode(z):
    """The logits of the pixels of an image for each point."""
    h = linear(z, p["open"], p["open_bias"]).relu().reshape(-1, 32, 2, 2)
    h = nt.conv_transpose2d(h, p["up1"], stride=2, padding=1).relu()
    return nt.conv_transpose2d(h, p["up2"], bias=p["grey"], stride=2, padding=1)


# %%
# Training
# --------
#
# The loss has two parts: how well an image is drawn again from a point of its bell, and how far the bell is from the
# standard one around 0. The second keeps the plane filled, so that points between two digits give digits too.


def loss(x):
    mean, width = encode(x)
    z = mean + width * torch.randn_like(width)
    drawn = binary_cross_entropy_with_logits(decode(z), x, reduction="sum")
    apart = 0.5 * (mean**2 + width**2 - 1 - 2 * width.log()).sum()
    return (drawn + 0.3 * apart) / len(x)


optimiser = torch.optim.Adam(parameters.values(), lr=1e-2)
losses = []
for _ in range(40):
    for batch in torch.randperm(len(images)).split(128)[:-1]:
        optimiser.zero_grad()
        value = loss(images[batch])
        value.backward()
        optimiser.step()
        losses.append(value.item())
print(f"loss {losses[0]:.1f} at first, {np.mean(losses[-14:]):.1f} in the last epoch")
print(numbadnn.last_call().impl)

# %%
# The plane
# ---------
#
# Each point is a digit of the data. Nobody told the network which is which; the colours show that it groups them.

with torch.no_grad():
    mean, _ = encode(images)
    side = torch.linspace(-2.2, 2.2, 10)
    grid = torch.stack(torch.meshgrid(side, -side, indexing="xy"), dim=2).reshape(-1, 2)
    drawn = decode(grid).sigmoid().reshape(10, 10, 8, 8)
figure, axes = plt.subplots(1, 3, figsize=(9.5, 3.4))
axes[0].plot(losses)
axes[0].set(xlabel="step", title="loss", ylim=(20, 40))
points = axes[1].scatter(*mean.T.numpy(), c=data.target, cmap="tab10", s=3)
axes[1].set(xlim=(-2.4, 2.4), ylim=(-2.4, 2.4), title="digits in the plane")
figure.colorbar(points, ax=axes[1], ticks=range(10))
axes[2].imshow(drawn.permute(0, 2, 1, 3).reshape(80, 80).numpy(), cmap="gray_r")
axes[2].set_title("drawn from the plane")
axes[2].axis("off")
plt.show()

# %%
# Next: :doc:`verify_your_layers`.
