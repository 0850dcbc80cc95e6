"""
A filter for each place
=======================

An ordinary convolution has the same filters everywhere. With ``unshared=True`` each position of the result has its
own. Here they blur the more, the farther they are from the middle: a lens that is sharp in one place.
"""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.cbook import get_sample_data

import numbadnn

photo = (
    plt.imread(get_sample_data("grace_hopper.jpg", asfileobj=False))[
        20:340:4, 120:440:4
    ].mean(axis=2)
    / 255
)
x = photo[None, None].astype("float32")
size = 9
rows, columns = np.mgrid[: x.shape[2], : x.shape[3]]
width = 0.3 + 3 * np.hypot(rows - 28, columns - 40) / 50
r = np.arange(size) - size // 2
bells = np.exp(-(r[:, None] ** 2 + r**2) / (2 * width[..., None, None] ** 2))
filters = (bells / bells.sum(axis=(2, 3), keepdims=True)).astype("float32")[
    None, :, :, None
]
y = numbadnn.conv2d(x, filters, border_mode="half", unshared=True)
print(filters.shape, "->", y.shape)

figure, axes = plt.subplots(1, 3, figsize=(9.5, 3.2))
axes[0].imshow(x[0, 0])
axes[0].set_title("image")
axes[1].imshow(width, cmap="magma")
axes[1].set_title("width of each filter")
axes[2].imshow(y[0, 0])
axes[2].set_title("result")
for axis in axes:
    axis.axis("off")
plt.show()
