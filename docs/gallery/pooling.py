"""
Pooling and its gradient
========================

Pooling keeps one number for each window: the maximum, or the average with or without the padding. The gradient shows
where each number came from. That of a maximum goes to the first largest pixel of a window, on every backend.
"""

import matplotlib.pyplot as plt
import numpy as np

import numbadnn

rng = np.random.default_rng(3)
image = rng.random((1, 1, 9, 9)).astype("float32")
settings = {"ws": (3, 3), "stride": (2, 2), "pad": (1, 1)}

modes = ("max", "average_exc_pad", "average_inc_pad", "sum")
figure, axes = plt.subplots(2, len(modes) + 1, figsize=(9.5, 4))
axes[0, 0].imshow(image[0, 0], vmin=0, vmax=1)
axes[0, 0].set_title("image")
axes[1, 0].set_title("gradients below", fontsize="small", y=0.4)
for column, mode in zip(axes.T[1:], modes, strict=True):
    y = numbadnn.pool(image, mode=mode, **settings)
    gradient = numbadnn.pool_grad(image, y, np.ones_like(y), mode=mode, **settings)
    column[0].imshow(y[0, 0], vmin=0, vmax=9 if mode == "sum" else 1)
    column[0].set_title(mode, fontsize="small")
    column[1].imshow(gradient[0, 0], cmap="magma")
for axis in axes.flat:
    axis.axis("off")
plt.show()

# %%
# Windows overlap here: a pixel that is the maximum of several gets a gradient from each. ``average_exc_pad`` divides
# a window at the border by fewer pixels, so these pixels weigh more.
