"""Run convolutions into few channels under the CUDA simulator; test_to_image.py starts it.

Prints one line a check and exits 1 if any fails. Needs ``NUMBA_ENABLE_CUDASIM=1`` in the environment.
"""

from reporting import agree, end

from numbadnn.validate import simulate

INPUTS, FORWARD = "conv2d_grad_wrt_inputs", "conv2d"
#: both layouts, strides, uneven padding, odd sizes, several blocks, chunks that are not full, flipped filters
CASES = (
    (INPUTS, "x=float32:2x3x6x8 w=float32:5x3x3x3 pad=1,1,1,1 flip=0"),
    (INPUTS, "x=float32:1x3x7x6:nhwc w=float32:9x3x3x3:nhwc pad=1,0,0,2 stride=2,2 alpha=2 beta=-3"),
    (INPUTS, "x=float32:1x1x18x5 w=float32:3x1x2x3 stride=1,2 beta=1 flip=0"),
    (INPUTS, "x=float32:1x4x9x66:nhwc w=float32:8x4x1x2 stride=2,1"),
    (INPUTS, "x=float32:1x2x8x8 w=float32:4x2x7x7 pad=3,3,3,3 stride=2,2 flip=0"),
    (INPUTS, "x=float32:1x3x6x6:nhwc w=float32:4x3x1x1 stride=2,2"),  # phases that meet no tap
    (FORWARD, "x=float32:2x6x5x7 w=float32:3x6x3x3 pad=1,1,1,1 flip=0"),
    (FORWARD, "x=float32:1x9x6x5:nhwc w=float32:1x9x3x2:nhwc pad=0,2,1,0 alpha=-1 beta=1"),
    (FORWARD, "x=float32:1x5x4x6 w=float32:2x5x1x1"),
)


if __name__ == "__main__":
    for number, (op, text) in enumerate(CASES):
        agree(f"{op} {text}", ("random", "integers")[number % 2], lambda p, a: simulate.run(p, a, "numba.to_image"))
    end()
