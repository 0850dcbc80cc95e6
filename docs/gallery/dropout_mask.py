"""
Dropout without a mask in memory
================================

The mask of dropout follows from a seed and from each element's number. So the gradient makes it again and nothing is
kept, every backend has the same one, and a part of an array can be dropped as the whole was.
"""

import matplotlib.pyplot as plt
import numpy as np

import numbadnn

x = np.ones((1, 1, 24, 24), "float32")
figure, axes = plt.subplots(1, 4, figsize=(9.5, 2.8))
for axis, p in zip(axes, (0.1, 0.5, 0.9), strict=False):
    y, state = numbadnn.dropout(x, p, seed=42)
    axis.imshow(y[0, 0], vmin=0)
    axis.set_title(f"p = {p}: mean {y.mean():.2f}", fontsize="small")

whole, state = numbadnn.dropout(x, 0.5, seed=42)
part, _ = numbadnn.dropout(x[:, :, 12:].copy(), 0.5, seed=42, offset=12 * 24)
axes[3].imshow(np.vstack([np.full((12, 24), np.nan), part[0, 0]]), vmin=0)
axes[3].set_title("the lower half, by its offset", fontsize="small")
for axis in axes:
    axis.axis("off")
plt.show()

print(np.array_equal(part, whole[:, :, 12:]))
print(np.array_equal(numbadnn.dropout_grad(np.ones_like(x), state), whole))

# %%
# What is kept is divided by 1 - p, so that the mean stays what it was.
