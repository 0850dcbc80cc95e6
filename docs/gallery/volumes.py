"""
Convolution in three dimensions
===============================

Volumes have the shape (volumes, channels, depth, rows, columns). Here a noisy volume that holds a shell is smoothed
along all three axes, and a difference along the depth finds its front and its back.
"""

import matplotlib.pyplot as plt
import numpy as np

import numbadnn

z, y, x = np.mgrid[-1:1:32j, -1:1:32j, -1:1:32j]
shell = (np.abs(np.sqrt(x * x + y * y + z * z) - 0.65) < 0.12).astype("float32")
noisy = shell + 0.8 * np.random.default_rng(0).standard_normal(shell.shape).astype(
    "float32"
)

bell = np.exp(-0.5 * (np.arange(-2, 3) / 1.0) ** 2)
bell /= bell.sum()
smooth = np.einsum("i,j,k->ijk", bell, bell, bell).astype("float32")
slope = np.einsum("i,j,k->ijk", bell * np.arange(-2, 3), bell, bell).astype("float32")
filters = np.stack([smooth, slope])[:, None]
smoothed, front = numbadnn.conv3d(noisy[None, None], filters, border_mode="half")[0]
print(filters.shape)

figure, axes = plt.subplots(1, 4, figsize=(9.5, 2.8))
pictures = {
    "noisy, a slice": noisy[16],
    "smoothed, the slice": smoothed[16],
    "smoothed, from the side": smoothed[:, 16],
}
for axis, (name, picture) in zip(axes, pictures.items(), strict=False):
    axis.imshow(picture, vmin=0, vmax=1)
    axis.set_title(name, fontsize="small")
axes[3].imshow(front[:, 16], cmap="RdBu", vmin=-0.5, vmax=0.5)
axes[3].set_title("slope in depth, from the side", fontsize="small")
for axis in axes:
    axis.axis("off")
plt.show()
