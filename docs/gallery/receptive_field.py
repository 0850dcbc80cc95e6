"""
What an output sees
===================

The gradient of one output with respect to the image is not zero at the pixels that the output depends on: its
receptive field. Three layers of 3 x 3 windows see 7 x 7 pixels. With strides or with dilated windows the same nine
weights a layer see more.
"""

import matplotlib.pyplot as plt
import numpy as np

import numbadnn

SIZE = 33
window = np.ones((1, 1, 3, 3), "float32")


def field(layers):
    """How often each pixel enters the output in the middle, through all layers."""
    shapes = [(1, 1, SIZE, SIZE)]
    for layer in layers:
        y = numbadnn.conv2d(
            np.zeros(shapes[-1], "float32"), window, border_mode="half", **layer
        )
        shapes.append(y.shape)
    gradient = np.zeros(shapes[-1], "float32")
    gradient[0, 0, shapes[-1][2] // 2, shapes[-1][3] // 2] = 1
    for layer, shape in zip(reversed(layers), reversed(shapes[:-1]), strict=True):
        gradient = numbadnn.conv2d_grad_wrt_inputs(
            gradient, window, shape, border_mode="half", **layer
        )
    return gradient[0, 0]


stacks = {
    "three layers": [{}, {}, {}],
    "stride 2 each": [{"subsample": (2, 2)}] * 3,
    "dilated by 1, 2 and 4": [{"filter_dilation": (d, d)} for d in (1, 2, 4)],
    "dilated by 3 each: a grid": [{"filter_dilation": (3, 3)}] * 3,
}
figure, axes = plt.subplots(1, len(stacks), figsize=(9.5, 2.8))
for axis, (name, layers) in zip(axes, stacks.items(), strict=True):
    seen = field(layers)
    axis.imshow(seen, cmap="magma")
    axis.set_title(f"{name}\n{np.count_nonzero(seen)} pixels", fontsize="small")
    axis.axis("off")
plt.show()

# %%
# Equal dilations see a grid with holes. That is why networks double the dilation from layer to layer.
