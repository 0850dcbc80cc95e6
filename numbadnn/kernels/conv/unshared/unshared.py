"""Unshared convolutions: the kernels in the order of choice, and why.

Every kernel reads or writes each filter once. Up to 32 images it is faster to give a block several output positions, which
see the same pixels; on tensor cores faster still; with images transposed before fastest for many images. The last
member of a direction takes every problem.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from numbadnn.kernels.build.launch import Kernel
from numbadnn.kernels.build.support import accumulator_of
from numbadnn.kernels.conv.members import Member, register_members
from numbadnn.kernels.conv.unshared import plain
from numbadnn.kernels.conv.unshared.forward import (
    box,
    f16,
    f32x2,
    places_stream,
)
from numbadnn.kernels.conv.unshared.inputs import boxes, rows, rows_config
from numbadnn.kernels.conv.unshared.inputs import f32x2 as inputs_f32x2
from numbadnn.kernels.conv.unshared.parts import transposed
from numbadnn.kernels.conv.unshared.weights import f16 as weights_f16
from numbadnn.kernels.conv.unshared.weights import many as weights_many
from numbadnn.problem import Policy
from numbadnn.problems.conv import ConvProblem

FORWARD = ("conv2d", "causal_conv1d")
IMAGES = ("conv2d_grad_wrt_inputs",)
WEIGHTS = ("conv2d_grad_wrt_weights",)


def _on_tensor_cores(problem: ConvProblem, config: Any) -> float:
    return 4 + problem.bytes / 2.6e6 + problem.flops / (6.0e7 if problem.w.itemsize == 4 else 2.0e8)


def _by_threads(problem: ConvProblem, config: Any) -> float:
    return 4 + problem.bytes / 2.6e6 + problem.flops / 6.0e7


def _boxes(problem: ConvProblem, policy: Policy) -> Any:
    return boxes.heuristic(boxes.typical(problem, policy), accumulator_of(problem.x.dtype, policy))


def _boxes_estimate(problem: ConvProblem, config: Any) -> float:
    return boxes.rank(problem)


def _member(
    stem: str, ops: tuple[str, ...], module: Any, estimate: Any, takes: str, arithmetic: str = "ieee",
    determinism: str = "run_to_run", yields: Any = None,
) -> Member:  # fmt: skip
    def heuristic(problem: ConvProblem, policy: Policy) -> Any:
        return module.heuristic(problem, policy)

    return Member(
        f"numba.unshared_{stem}", ops, heuristic, module.plan, estimate, takes, arithmetic, determinism, yields
    )


#: name, operations, kernel, estimate, what it takes; where no level stands: ieee, run_to_run. Order: measured on an H200
MEMBERS = (
    # 16-bit images, forward, on tensor cores: several positions a block
    _member("places_stream", FORWARD, places_stream, _on_tensor_cores,
            "16-bit images and 16 to 32 filters a group (sm_90)", "tensor_core"),
    # the gradient of the filters
    _member("weights_many", WEIGHTS, weights_many, _on_tensor_cores,
            "many images (16-bit, or float32 where float64 products are fast) and enough filters"),
    _member("weights_halves", WEIGHTS, weights_f16, _on_tensor_cores, "images of 16 bits and enough filters", "tensor_core"),
    # forward, one position a block, on tensor cores
    _member("halves", FORWARD, f16, f16.estimate,
           "16-bit filters, at least 4 a group, with channels that can be read as vectors", "tensor_core"),
    # float32 images, forward
    _member("twofold", FORWARD, f32x2, _on_tensor_cores,
            "9 to 32 images of float32 and 16 filters a group and more (sm_90): float32 as two float16"),
    # few images: the order of the terms of a forward product depends on how many there are, that of the gradient does not
    _member("box", FORWARD, box, _by_threads, "few images, several positions a block"),
    _member("box", WEIGHTS, box, _by_threads, "few images, several positions a block", "ieee", "gpu_to_gpu", box.yields),
    # the gradient of the images: sums on tensor cores, in registers, in shared memory
    _member("inputs_twofold", IMAGES, inputs_f32x2, inputs_f32x2.rank, "many float32 images (sm_90): float32 as two float16"),
    _member("inputs_rows", IMAGES, rows, rows_config.rank, "small filters whose sums fit registers (sm_90)"),
    # whatever is left
    Member("numba.unshared", IMAGES, _boxes, boxes.plan, _boxes_estimate,
           "filters whose sums of a tile fit shared memory", "ieee", "gpu_to_gpu"),
    Member("numba.unshared", (*FORWARD, *WEIGHTS), plain.configured, plain.plan, plain.estimate,
           "all that is unshared", "ieee", "gpu_to_gpu"),
)  # fmt: skip


def _belongs(problem: ConvProblem) -> bool:
    return problem.unshared


def kernels() -> Iterator[Kernel]:
    """A representative set of all members' kernels."""
    for module in (
        plain,
        f16,
        weights_f16,
        weights_many,
        box,
    ):
        yield from module.kernels()
    yield from transposed.kernels()
    yield from boxes.kernels()


register_members(MEMBERS, _belongs, plain.supports)
