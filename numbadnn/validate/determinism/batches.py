"""The same images in another batch: which axis of each operand counts images, and the problem of a few of them alone.

Only where the result of an image is its own: a gradient of filters sums over the batch, a training pass of batch
normalization averages over it. There a batch split is another problem, and there is nothing to compare.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from numbadnn.arrays.numpy_ import numpy_dtype, strided_empty

#: operation -> the inputs that have the batch on axis 0; so have all outputs
BATCHED = {
    "conv2d": (0,),
    "conv2d_grad_wrt_inputs": (0,),
    "conv3d": (0,),
    "conv3d_grad_wrt_inputs": (0,),
    "causal_conv1d": (0,),
    "conv3d2d": (0,),
    "softmax": (0,),
    "softmax_grad": (0, 1),
    "pool": (0,),
    "pool_grad": (0, 1, 2),
    "batch_normalization_test": (0,),
    "bilinear_upsampling": (0,),
    "bilinear_upsampling_grad": (0,),
    "spatialtf_grid": (0,),
    "spatialtf_grid_grad": (0,),
    "spatialtf_sampler": (0, 1),
    "spatialtf_sampler_grad": (0, 1, 2),
}


#: operation -> why its results are no image's own, so that a part of the batch has nothing to be compared with
WHOLE = {
    "conv2d_grad_wrt_weights": "sums over the images",
    "conv3d_grad_wrt_weights": "sums over the images",
    "batch_normalization_train": "averages over the images",
    "batch_normalization_train_grad": "averages over the images",
    "batch_normalization_test_grad": "the gradients of its parameters sum over the images",
    "dropout": "the mask follows from an element's number in the whole array",
    "dropout_grad": "the mask follows from an element's number in the whole array",
    "rnn_backward": "sums over the sequences",
}

#: operation -> why its batch is not split here, although it could be: what guarantees batch_invariant there is not tried
UNSPLIT = {"rnn_forward": "sequences lie on axis 1"}


def untried(op: str, trials: Iterable[str], guarantees_batches: bool) -> str:
    """Which trial that a guarantee rests on was not made ("" = all were)."""
    made = set(trials)
    if not made:
        return "no trial was made"
    if guarantees_batches and "batch" not in made and op not in WHOLE:
        return f"no part of the batch was run alone{f': {UNSPLIT[op]}' if op in UNSPLIT else ''}"
    return ""


class Part(NamedTuple):
    """Images ``first`` to ``last`` of a batch as a problem of their own, with its inputs."""

    problem: Any
    inputs: tuple[np.ndarray, ...]
    first: int
    last: int


def splits(problem: Any) -> list[tuple[int, int]]:
    """The parts of the batch worth trying: one image, the last ones, the first half; [] where there are none."""
    beta: float = getattr(problem, "beta", 0.0)
    if problem.op not in BATCHED or beta:
        return []
    n = problem.inputs[0].shape[0]
    packed = all(s.is_contiguous or s.is_channels_last for s in problem.outputs)
    if n < 2 or not packed or (problem.op == "batch_normalization_test" and problem.mode == "per-activation"):
        return []
    return list(dict.fromkeys([(0, 1), (1, n), (0, -(-n // 2))]))


def part(problem: Any, inputs: tuple[np.ndarray, ...], first: int, last: int) -> Part:
    """The problem that the public function makes of these images; strides stay what they are."""
    import numbadnn
    from numbadnn import dispatch

    arrays = [a[first:last] if i in BATCHED[problem.op] else a for i, a in enumerate(inputs)]
    keywords = dict(problem.keywords)
    for name in {"input_shape", "out_dims"} & set(keywords):  # they begin with the number of images
        keywords[name] = (last - first, *keywords[name][1:])
    found = dispatch.intercept("problem", getattr(numbadnn, problem.op), tuple(arrays), keywords)
    return Part(found, tuple(arrays), first, last)


def other_neighbours(problem: Any, inputs: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
    """The same inputs with every image but the first replaced: reversed along the batch and doubled."""
    changed = []
    for i, (spec, a) in enumerate(zip(problem.inputs, inputs, strict=True)):
        if i not in BATCHED[problem.op]:
            changed.append(a)
            continue
        copy = strided_empty(spec)
        copy[...] = a
        copy[1:] = (a[:0:-1].astype(np.float64) * 2).astype(numpy_dtype(spec.dtype))
        changed.append(copy)
    return tuple(changed)
