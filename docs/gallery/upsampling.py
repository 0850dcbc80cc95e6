"""
Three ways to enlarge
=====================

Decoders make images larger. A transposed convolution whose window is no multiple of its stride covers some pixels
more often than others: a checkerboard. Bilinear upsampling has no such pattern.
"""

import matplotlib.pyplot as plt
import numpy as np

import numbadnn

rows, columns = np.mgrid[:10, :10]
image = np.exp(-((rows - 4.5) ** 2 + (columns - 4.5) ** 2) / 12).astype("float32")[
    None, None
]


def transposed(size, stride=3):
    """Each pixel spreads over a window; weights add up to the area that it stands for."""
    window = np.full((1, 1, size, size), stride**2 / size**2, "float32")
    side = (10 - 1) * stride + size
    return numbadnn.conv2d_transpose(
        image, window, (1, 1, side, side), input_dilation=(stride, stride)
    )


results = {
    "image": image,
    "transposed, 3 x 3, stride 3": transposed(3),
    "transposed, 5 x 5, stride 3": transposed(5),
    "transposed, 6 x 6, stride 3": transposed(6),
    "bilinear": numbadnn.bilinear_upsampling(image, ratio=3),
}
figure, axes = plt.subplots(1, len(results), figsize=(9.5, 2.4))
for axis, (name, result) in zip(axes, results.items(), strict=True):
    axis.imshow(result[0, 0], cmap="magma")
    axis.set_title(name, fontsize="small")
    axis.axis("off")
plt.show()
