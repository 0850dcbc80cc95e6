"""
Turn, zoom and shear a photograph
=================================

A spatial transformer samples an image where an affine map sends the points of the result. Networks learn that map;
here six of them are written down. All six images are computed in one call.
"""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.cbook import get_sample_data

import numbadnn

photo = (
    plt.imread(get_sample_data("grace_hopper.jpg", asfileobj=False))[20:420, 60:460] / 255
)
c, s = np.cos(0.5), np.sin(0.5)
maps = {
    "identity": [[1, 0, 0], [0, 1, 0]],
    "turned": [[c, -s, 0], [s, c, 0]],
    "zoomed on the face": [[0.45, 0, 0.05], [0, 0.45, -0.2]],
    "mirrored": [[-1, 0, 0], [0, 1, 0]],
    "sheared": [[1, 0.4, 0], [0, 1, 0]],
    "twice as far": [[2, 0, 0], [0, 2, 0]],
}
theta = np.array(list(maps.values()), "float32")
images = np.repeat(photo.transpose(2, 0, 1)[None].astype("float32"), len(maps), axis=0)
results = numbadnn.spatialtf(images, theta, scale_width=0.5, scale_height=0.5)
print(images.shape, "->", results.shape)

figure, axes = plt.subplots(1, len(maps), figsize=(9.5, 2))
for axis, name, result in zip(axes, maps, results, strict=True):
    axis.imshow(result.transpose(1, 2, 0).clip(0, 1))
    axis.set_title(name, fontsize="small")
    axis.axis("off")
plt.show()

# %%
# Points outside the image count as black. ``spatialtf_sampler_grad`` gives the gradients in the image and in the
# points, and ``spatialtf_grid_grad`` goes on to the map.
