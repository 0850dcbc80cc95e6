"""LeNet's training step as it was written for Theano's operations, with one import changed.

The classic network of Theano's tutorial: two layers of convolution, tanh and 2 x 2 maximum, a hidden layer and ten classes.
Where Theano's ``grad`` built the backward pass, its own gradient operations are called by name. ``import theano`` became
the line below; the calls are the specification's. Arrays may be NumPy's, or CuPy's for the GPU (``--library cupy``).

    python examples/lenet_theano_port.py [--library numpy|cupy] [--steps 40]
"""

from __future__ import annotations

import argparse
import importlib
from typing import Any

import numpy as np

from numbadnn.theano import GpuDnnPoolGrad, conv2d, conv2d_grad_wrt_inputs, conv2d_grad_wrt_weights, dnn_pool

RATE = 0.1
#: filters and biases of two convolutions, weights and biases of two dense layers: 28 x 28 images, ten classes
SHAPES = {
    "w0": (20, 1, 5, 5), "b0": (20,), "w1": (50, 20, 5, 5), "b1": (50,),
    "w2": (800, 100), "b2": (100,), "w3": (100, 10), "b3": (10,),
}  # fmt: skip


def parameters(xp: Any, seed: int = 0) -> dict[str, Any]:
    """Weights as in the tutorial: uniform, and the wider the fewer what meets in a unit; biases 0."""
    rng, made = np.random.default_rng(seed), {}
    for name, shape in SHAPES.items():
        inputs = int(np.prod(shape[1:])) if len(shape) == 4 else shape[0]
        bound = np.sqrt(3 / inputs) if name.startswith("w") else 0.0
        made[name] = xp.asarray(rng.uniform(-bound, bound, shape).astype(np.float32))
    return made


def layer(xp: Any, x: Any, w: Any, b: Any) -> tuple[Any, Any, Any]:
    """LeNetConvPoolLayer: the convolution, its 2 x 2 maxima, and tanh of them with the bias."""
    convolved = conv2d(input=x, filters=w, filter_shape=w.shape, input_shape=x.shape)
    pooled = dnn_pool(convolved, (2, 2), stride=(2, 2))
    return convolved, pooled, xp.tanh(pooled + b[None, :, None, None])


def layer_gradients(x: Any, w: Any, seen: tuple[Any, Any, Any], top: Any) -> tuple[Any, Any, Any]:
    """Gradients in the layer's input, filters and bias, from the one in its output."""
    convolved, pooled, result = seen
    top = top * (1 - result * result)
    back = GpuDnnPoolGrad("max")(convolved, pooled, top, (2, 2), (2, 2), (0, 0))
    dx = conv2d_grad_wrt_inputs(back, w, x.shape)
    dw = conv2d_grad_wrt_weights(x, back, w.shape)
    return dx, dw, top.sum(axis=(0, 2, 3))


def cost_and_gradients(xp: Any, p: dict[str, Any], images: Any, digits: Any) -> tuple[float, dict[str, Any]]:
    """The mean negative log-likelihood of the digits, and its gradient in every parameter."""
    n = len(digits)
    first = layer(xp, images, p["w0"], p["b0"])
    second = layer(xp, first[2], p["w1"], p["b1"])
    flat = second[2].reshape(n, -1)
    hidden = xp.tanh(flat @ p["w2"] + p["b2"])
    scores = hidden @ p["w3"] + p["b3"]
    scores = scores - scores.max(axis=1, keepdims=True)
    log_p = scores - xp.log(xp.exp(scores).sum(axis=1, keepdims=True))
    cost = -float(log_p[xp.arange(n), digits].mean())

    d_scores = xp.exp(log_p)
    d_scores[xp.arange(n), digits] -= 1
    d_scores /= n
    grads = {"w3": hidden.T @ d_scores, "b3": d_scores.sum(axis=0)}
    d_hidden = (d_scores @ p["w3"].T) * (1 - hidden * hidden)
    grads |= {"w2": flat.T @ d_hidden, "b2": d_hidden.sum(axis=0)}
    top = (d_hidden @ p["w2"].T).reshape(second[2].shape)
    top, grads["w1"], grads["b1"] = layer_gradients(first[2], p["w1"], second, top)
    _, grads["w0"], grads["b0"] = layer_gradients(images, p["w0"], first, top)
    return cost, grads


def train_model(xp: Any, p: dict[str, Any], images: Any, digits: Any) -> float:
    """One step of gradient descent, as ``theano.function(..., updates=...)`` took it; the cost before it."""
    cost, grads = cost_and_gradients(xp, p, images, digits)
    for name, gradient in grads.items():
        p[name] -= RATE * gradient
    return cost


def batch(n: int = 32, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Images of ten kinds of stripes under noise, and which kind each is: digits that need no download."""
    rng = np.random.default_rng(seed)
    kinds = rng.integers(0, 10, n)
    rows, cols = np.mgrid[:28, :28]
    angles = kinds[:, None, None] * np.pi / 10
    waves = np.sin(0.6 * (rows * np.cos(angles) + cols * np.sin(angles)))
    return (waves + 0.3 * rng.standard_normal(waves.shape)).astype(np.float32)[:, None], kinds


def train(library: str = "numpy", steps: int = 40, report: Any = print) -> list[float]:
    """Costs of so many steps, each on a batch of its own."""
    xp, costs = importlib.import_module(library), []
    p = parameters(xp)
    for step in range(steps):
        images, digits = batch(seed=step)
        costs.append(train_model(xp, p, xp.asarray(images), xp.asarray(digits)))
        if step % 10 == 9:
            report(f"step {step + 1}: cost {costs[-1]:.3f}")
    return costs


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", default="numpy", choices=("numpy", "cupy"))
    parser.add_argument("--steps", type=int, default=40)
    arguments = parser.parse_args()
    train(arguments.library, arguments.steps)
