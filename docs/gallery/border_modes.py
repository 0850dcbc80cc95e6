"""
Border modes
============

What a convolution does where its window leaves the image. ``border_mode`` adds zeros around the image: none
("valid"), half a window ("half", which keeps the size), a window but one pixel ("full"), or as many as you say, on
each side by itself.
"""

import matplotlib.pyplot as plt
import numpy as np

import numbadnn

rows, columns = np.mgrid[:12, :12]
image = ((rows // 2 + columns // 2) % 2).astype("float32")[None, None]
blur = np.full((1, 1, 5, 5), 1 / 25, "float32")

modes = ("valid", "half", "full", (4, 0), ((0, 6), (2, 2)))
figure, axes = plt.subplots(1, len(modes) + 1, figsize=(9.5, 2.6))
axes[0].imshow(image[0, 0], vmin=0, vmax=1)
axes[0].set_title("image\n12 x 12")
for axis, mode in zip(axes[1:], modes, strict=True):
    result = numbadnn.conv2d(image, blur, border_mode=mode)[0, 0]
    axis.imshow(result, vmin=0, vmax=1)
    axis.set_title(f"{mode}\n{result.shape[0]} x {result.shape[1]}")
for axis in axes:
    axis.set(xlim=(-0.5, 17.5), ylim=(17.5, -0.5))
    axis.axis("off")
plt.show()

# %%
# The result has ``(size + padding - window) // stride + 1`` rows and columns, with the padding of both sides. A pair
# gives the padding of rows and columns; a pair of pairs gives each side's.
