"""A convolution of another number of images: what a choice is made by that may not depend on the batch.

Under ``batch_invariant`` the same implementation must take a layer whatever batch it is asked for, and add in the same order.
So the choice and what decides the order are taken from the same layer of ``NOMINAL`` images that are packed one after another
and aligned: shape and strides of one image count, the number of images, the step between them and their address do not.
"""

from __future__ import annotations

from dataclasses import replace

from numbadnn.problem import Policy, Spec, normalised_strides
from numbadnn.problems.conv import ConvProblem

#: images of the batch that choices are made for: splitting a sum costs a large batch little then, and saves a small one much
NOMINAL = 32
#: elements whose multiples the step between packed images is, where all other steps are
VECTOR = 16


def is_invariant(problem: ConvProblem, policy: Policy) -> bool:
    """Whether an image's bits are asked to be the same in any batch; a gradient of filters sums over the images."""
    return policy.determinism == "batch_invariant" and problem.direction != "grad_weights"


def level_of(policy: Policy) -> str:
    """The level of a plan that follows the batch unless it is asked not to.

    A gradient of filters sums over the images: of it the level asks for no more than the same bits of the same batch.
    """
    return "batch_invariant" if policy.determinism == "batch_invariant" else "run_to_run"


def of_images(problem: ConvProblem, count: int = NOMINAL) -> ConvProblem:
    """The same layer of ``count`` images, packed one after another, at aligned addresses.

    >>> str(of_images(ConvProblem.parse("conv2d x=float32:7x4x5x5:200,25,5,1:unaligned w=float32:8x4x3x3"), 2)).split()[1]
    'x=float32:2x4x5x5'
    """
    return replace(problem, x=_together(problem.x, count), y=_together(problem.y, count))


def plainly(problem: ConvProblem) -> ConvProblem:
    """The same memory; a stride that no element depends on is what it would be in any batch."""
    return replace(problem, x=_named(problem.x), y=_named(problem.y))


def _together(spec: Spec, count: int) -> Spec:
    shape = (count, *spec.shape[1:])
    return Spec(spec.dtype, shape, normalised_strides(shape, (_step(spec), *spec.strides[1:])), True)


def _named(spec: Spec) -> Spec:
    return replace(spec, strides=(spec.strides[0], *_together(spec, 2).strides[1:]))


def _step(spec: Spec) -> int:
    """From an image to the next, where nothing lies between them but what keeps rows aligned."""
    low, high = replace(spec, shape=(1, *spec.shape[1:])).span
    multiple = VECTOR
    steps = [s for n, s in zip(spec.shape[1:], spec.strides[1:], strict=True) if n > 1 and abs(s) != 1]
    while multiple > 1 and any(s % multiple for s in steps):
        multiple //= 2
    return -(-(high - low + 1) // multiple) * multiple if steps else high - low + 1
