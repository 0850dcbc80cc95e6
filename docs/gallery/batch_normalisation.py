"""
Batch normalisation
===================

Each channel of a batch is shifted and scaled to mean 0 and variance 1, then to the scale and shift that the network
has learnt. Running averages take the place of the batch's statistics when the network is used.
"""

import matplotlib.pyplot as plt
import numpy as np

import numbadnn

rng = np.random.default_rng(0)
centres, widths = np.array([-4.0, 0.0, 5.0]), np.array([0.5, 3.0, 1.5])


def batch(images):
    """Three channels that differ in mean and variance."""
    noise = rng.standard_normal((images, 3, 8, 8))
    return (centres[:, None, None] + widths[:, None, None] * noise).astype("float32")


gamma, beta = np.ones((1, 3, 1, 1), "float32"), np.zeros((1, 3, 1, 1), "float32")
running = (np.zeros_like(beta), np.ones_like(beta))
history = []
for _ in range(40):
    x = batch(16)
    y, mean, invstd, *running = numbadnn.batch_normalization_train(
        x,
        gamma,
        beta,
        mode="spatial",
        running_average_factor=0.1,
        running_mean=running[0],
        running_var=running[1],
    )
    history.append((running[0].ravel(), np.sqrt(running[1].ravel())))

figure, axes = plt.subplots(1, 3, figsize=(9.5, 3))
for channel in range(3):
    axes[0].hist(x[:, channel].ravel(), 40, alpha=0.6, density=True)
    axes[1].hist(y[:, channel].ravel(), 40, alpha=0.6, density=True)
    axes[2].plot([m[channel] for m, _ in history], color=f"C{channel}")
    axes[2].axhline(centres[channel], color=f"C{channel}", linestyle=":", linewidth=1)
axes[0].set_title("three channels before")
axes[1].set_title("and after")
axes[2].set(title="running means", xlabel="batch")
plt.show()

# %%
# One image at a time is normalised with the running averages: ``batch_normalization_test``.

one = numbadnn.batch_normalization_test(batch(1), gamma, beta, *running, mode="spatial")
print(one.mean(axis=(0, 2, 3)).round(1), one.std(axis=(0, 2, 3)).round(1))
