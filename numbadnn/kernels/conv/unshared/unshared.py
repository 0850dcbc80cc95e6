"""``numba.unshared``: unshared convolutions and the gradient of their filters, each filter read or written once.

The device code is in ``conv/unshared/forward/device/plain.py`` and ``conv/unshared/weights/device/plain.py``. Images
and filters of a block are frozen into a kernel, all else is an argument; a filter's terms must lie together in memory,
in whatever order the other axes. ``unshared_inputs`` has the gradient of the images, ``unshared_inputs_rows`` with its
sums in registers, ``unshared_inputs_split`` and ``unshared_inputs_twofold`` that of many float32 images on tensor
cores, ``unshared_inputs_pixels`` that of many 16-bit images without boxes, ``unshared_halves`` forward products of
16-bit types on tensor cores. Those have one position a block; up to 32 images it is quicker to have several, which see
the same pixels: ``unshared_box``, and on tensor cores ``unshared_places`` and ``unshared_weights_halves``; with images
turned before, ``unshared_places_whole``, and for many of them ``unshared_box_many``, ``unshared_twofold``,
``unshared_products``, ``unshared_places_many``, ``unshared_places_ring``, ``unshared_places_stream`` and
``unshared_weights_many``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import astuple
from typing import Any

from numbadnn.kernels.build.launch import Kernel
from numbadnn.kernels.build.plans import one_launch
from numbadnn.kernels.build.support import LIMIT32, accumulator_of, device_reason, reach_reason
from numbadnn.kernels.conv.unshared.forward import box as unshared_box
from numbadnn.kernels.conv.unshared.forward import box_many as unshared_box_many
from numbadnn.kernels.conv.unshared.forward import halves as unshared_halves
from numbadnn.kernels.conv.unshared.forward import places as unshared_places
from numbadnn.kernels.conv.unshared.forward import places_many as unshared_places_many
from numbadnn.kernels.conv.unshared.forward import places_ring as unshared_places_ring
from numbadnn.kernels.conv.unshared.forward import places_stream as unshared_places_stream
from numbadnn.kernels.conv.unshared.forward import places_whole as unshared_places_whole
from numbadnn.kernels.conv.unshared.forward import products as unshared_products
from numbadnn.kernels.conv.unshared.forward import twofold as unshared_twofold
from numbadnn.kernels.conv.unshared.inputs import boxes as unshared_inputs
from numbadnn.kernels.conv.unshared.inputs import halves as unshared_inputs_halves
from numbadnn.kernels.conv.unshared.inputs import pixels as unshared_inputs_pixels
from numbadnn.kernels.conv.unshared.inputs import rows as unshared_inputs_rows
from numbadnn.kernels.conv.unshared.inputs import rows_config as unshared_inputs_rows_config
from numbadnn.kernels.conv.unshared.inputs import split as unshared_inputs_split
from numbadnn.kernels.conv.unshared.inputs import split_config as unshared_inputs_split_config
from numbadnn.kernels.conv.unshared.inputs import twofold as unshared_inputs_twofold
from numbadnn.kernels.conv.unshared.parts import turned as unshared_turned
from numbadnn.kernels.conv.unshared.parts.tile import vector
from numbadnn.kernels.conv.unshared.unshared_config import LANES, MOST_WARPS, UnsharedConfig
from numbadnn.kernels.conv.unshared.weights import halves as unshared_weights_halves
from numbadnn.kernels.conv.unshared.weights import many as unshared_weights_many
from numbadnn.problem import ITEMSIZE, Policy, contiguous_strides
from numbadnn.problems.conv import ConvProblem
from numbadnn.registry import SEQUENCE, Executable, Impl, register

#: blocks that fill a GPU
ENOUGH_BLOCKS = 4 * 132
#: of a block; four fit a multiprocessor
SHARED_BYTES = 47 * 1024
#: images of a block at a time: forward, with 4 filters, a thread has this times 4 sums
MOST_IMAGES = 8


def heuristic(problem: ConvProblem, acc: str = "float32") -> UnsharedConfig:
    """Images in the smallest power of two that holds them, up to 8; as many warps as the filters of a group can feed."""
    if problem.direction == "grad_weights":
        return _of_weights(problem, acc)
    filters = min(4, 1 << (problem.w.shape[0] // problem.groups - 1).bit_length())
    images = min(MOST_IMAGES, 1 << (problem.x.shape[0] - 1).bit_length())
    warps = max(1, min(MOST_WARPS, -(-problem.w.shape[0] // problem.groups // filters)))
    vec, held = _most_terms(problem), ITEMSIZE[acc]
    each = problem.w.itemsize if vec * problem.w.itemsize >= 4 else held
    most = SHARED_BYTES // (images * held + warps * filters * each)
    terms = -(-math.prod(problem.w.shape[3:]) // 32) * 32
    return UnsharedConfig(images, filters, max(32, min(terms, most // 32 * 32)), vec, warps)


def _of_weights(problem: ConvProblem, acc: str) -> UnsharedConfig:
    """All images, or some at a time: then as many terms and warps as leave the fewest lanes idle."""
    per_group, terms, vec = problem.w.shape[0] // problem.groups, math.prod(problem.w.shape[3:]), _most_terms(problem)
    images = 1 << (problem.x.shape[0] - 1).bit_length()
    if images <= 2 * MOST_IMAGES:
        filters = min(4, 1 << (per_group - 1).bit_length())
        most = SHARED_BYTES // (2 * images * ITEMSIZE[acc])  # stores wait for nothing: more blocks, less for each
        room = max(32, min(-(-terms // 32) * 32, most // 32 * 32))
        return UnsharedConfig(images, filters, room, vec, max(1, min(MOST_WARPS, -(-per_group // filters))))
    images = MOST_IMAGES
    filters = min(8 if acc == "float32" else 4, 1 << (per_group - 1).bit_length())
    span = min(32, -(-per_group // filters) * filters)
    most = min(SHARED_BYTES // (2 * images * ITEMSIZE[acc]), max(1, LANES * MOST_WARPS * filters // span) * vec)
    fewest = -(-terms // max(32, most // 32 * 32))
    rooms = {-(-terms // parts // 32) * 32 for parts in range(fewest, fewest + 4)}
    found = [(room, warps) for room in sorted(rooms) for warps in range(1, MOST_WARPS + 1)]
    room, warps = max(found, key=lambda pair: (_share(span // filters, terms, vec, *pair), pair))
    return UnsharedConfig(images, filters, room, vec, warps, 16 // warps, span)


def _share(parts: int, terms: int, vec: int, room: int, warps: int) -> float:
    """The share of lanes that have a task; few warps and many rooms are worth less."""
    lanes, rooms = LANES * warps, -(-terms // room)
    tasks = [parts * -(-min(room, terms - start) // vec) for start in range(0, terms, room)]
    return sum(tasks) / sum(-(-t // lanes) * lanes for t in tasks) * (0.8 + 0.05 * warps) * 0.99**rooms


def _most_terms(problem: ConvProblem) -> int:
    """Of a filter in an access: more than four would need too many registers."""
    return vector(problem, problem.w.shape[3], min(4, 16 // problem.w.itemsize))


def kernel(direction: str, dtype: str, acc: str, config: UnsharedConfig) -> Kernel:
    def build() -> Callable[..., None]:
        from numbadnn.kernels.conv.unshared.forward.device import plain as _unshared_kernels
        from numbadnn.kernels.conv.unshared.weights.device import plain as _unshared_weights

        if direction == "forward":
            return _unshared_kernels.forward(dtype, acc, config)
        return (_unshared_weights.many if config.span else _unshared_weights.few)(dtype, acc, config)

    name = f"unshared {direction} {dtype} {acc} " + " ".join(str(v) for v in astuple(config))
    return Kernel(name, _parameters(acc), build, config.threads, config.resident)


def _parameters(acc: str) -> str:
    """Of the kernels of both directions and of that on tensor cores."""
    real = "f64" if acc == "float64" else "f32"
    return f"ptr ptr ptr i32 i32 i32 i32 i32 i32*2 i32 i32*2 i32*2 i32*2 i32*2 i32 i32 i64*4 i64*3 i64*4 {real} {real}"


def _supports(problem: ConvProblem, policy: Policy) -> str:
    if not problem.unshared:
        return "needs a filter for each position of the output (unshared)"
    if problem.w.strides[3:] != contiguous_strides(problem.w.shape[3:]):
        return "needs each filter packed in memory"
    if policy.precision == "float16":
        return "accumulates in float32 or float64, not in float16"
    if policy.precision == "float32" and problem.x.dtype == "float64":
        return "accumulates float64 data in float64, not in float32"
    if reason := reach_reason(problem):
        return reason
    blocks = math.prod(problem.y.shape[2:]) * problem.groups * problem.x.shape[0]
    if max(blocks, math.prod(problem.w.shape[3:])) >= LIMIT32:
        return "needs fewer than 2**31 blocks and terms"
    reason = unshared_inputs.supports(problem, policy) if problem.direction == "grad_inputs" else ""
    return reason or device_reason(policy)


SEVERAL_PLACES: dict[type, Callable[[ConvProblem, Policy, Any], Executable]] = {
    unshared_box.BoxConfig: unshared_box.plan,
    unshared_box_many.ManyConfig: unshared_box_many.plan,
    unshared_places.PlacesConfig: unshared_places.plan,
    unshared_places_many.PlacesManyConfig: unshared_places_many.plan,
    unshared_places_ring.RingConfig: unshared_places_ring.plan,
    unshared_places_stream.StreamConfig: unshared_places_stream.plan,
    unshared_places_whole.WholeConfig: unshared_places_whole.plan,
    unshared_products.ProductsConfig: unshared_products.plan,
    unshared_twofold.TwofoldConfig: unshared_twofold.plan,
    unshared_weights_halves.WeightsHalvesConfig: unshared_weights_halves.plan,
    unshared_weights_many.WeightsManyConfig: unshared_weights_many.plan,
}


def several_places(problem: ConvProblem, policy: Policy) -> Any:
    """A configuration of the kernels that have several positions a block, None where one of those here is to do it."""
    found: Any = unshared_places_whole.heuristic(problem, policy) or unshared_places_ring.heuristic(problem, policy)
    found = (
        found or unshared_places_stream.heuristic(problem, policy) or unshared_places_many.heuristic(problem, policy)
    )
    found = found or unshared_places.heuristic(problem, policy)
    found = found or unshared_weights_many.heuristic(problem, policy)
    found = found or unshared_weights_halves.heuristic(problem, policy)
    if found or unshared_halves.heuristic(problem, policy):
        return found
    found = unshared_twofold.heuristic(problem, policy) or unshared_products.heuristic(problem, policy)
    return found or unshared_box_many.heuristic(problem, policy) or unshared_box.heuristic(problem, policy)


#: of the images' gradient: the plan of a configuration, and its rank
OF_IMAGES: dict[type, tuple[Callable[..., Executable], Callable[..., float]]] = {
    unshared_inputs_halves.InputsHalvesConfig: (unshared_inputs_halves.plan, unshared_inputs_halves.rank),
    unshared_inputs_pixels.PixelsConfig: (unshared_inputs_pixels.plan, unshared_inputs_pixels.rank),
    unshared_inputs_rows.RowsConfig: (unshared_inputs_rows.plan, unshared_inputs_rows_config.rank),
    unshared_inputs_split_config.SplitConfig: (unshared_inputs_split.plan, unshared_inputs_split_config.rank),
    unshared_inputs_twofold.InputsTwofoldConfig: (unshared_inputs_twofold.plan, unshared_inputs_twofold.rank),
}


def kernel_of_images(problem: ConvProblem, policy: Policy) -> Any:
    """A configuration of the kernels of the images' gradient, None where ``unshared_inputs`` is to do it."""
    found: Any = unshared_inputs_twofold.heuristic(problem, policy) or unshared_inputs_split.heuristic(problem, policy)
    found = found or unshared_inputs_pixels.heuristic(problem, policy)
    return found or unshared_inputs_rows.heuristic(problem, policy) or unshared_inputs_halves.heuristic(problem, policy)


def _plan(problem: ConvProblem, policy: Policy, config: Any = None) -> Executable:
    if problem.direction == "grad_inputs":
        config = config or kernel_of_images(problem, policy)
        known = OF_IMAGES.get(type(config))
        return (known[0] if known else unshared_inputs.plan)(problem, policy, config)
    dtype, acc = problem.x.dtype, accumulator_of(problem.x.dtype, policy)
    config = config or several_places(problem, policy)
    if planned := SEVERAL_PLACES.get(type(config)):
        return planned(problem, policy, config)
    typical = unshared_inputs.typical(problem, policy) if problem.direction == "forward" else problem
    config = config or unshared_halves.heuristic(problem, policy) or heuristic(typical, acc)
    halves = isinstance(config, unshared_halves.HalvesConfig)
    if halves:
        chosen = unshared_halves.kernel(dtype, config, _parameters(acc))
    else:
        chosen = kernel(problem.direction, dtype, acc, config)
    (N, _, H, W), (_, K, P, Q), w = problem.x.shape, problem.y.shape, problem.w
    forward = problem.direction == "forward"
    positions = P * Q * problem.groups
    chunks = -(-N // config.images) if forward else 1
    if not halves:
        chunks = max(1, min(chunks, ENOUGH_BLOCKS // positions))
    scalars = (
        *(chunks, problem.groups, N, K // problem.groups, w.shape[3], (H, W), Q, w.shape[4:]),
        *(tuple(low for low, _ in problem.padding), problem.stride, problem.dilation, int(problem.flip)),
        *(math.prod(w.shape[3:]), problem.x.strides, w.strides[:3], problem.y.strides, problem.alpha, problem.beta),
    )
    grid = (positions * chunks, 1, 1)
    shared = config.shared_bytes if halves else 0
    launch = chosen.prepare(policy.device, grid, (config.threads, 1, 1), scalars, shared)
    fixed = not forward or typical is not problem
    arithmetic, level = "tensor_core" if halves else "ieee", "gpu_to_gpu" if fixed and not halves else "run_to_run"
    return one_launch(chosen, launch, config, arithmetic, level, SEQUENCE)


def _rank(problem: ConvProblem) -> float:
    """Microseconds, from an H200, of what the default policy runs: half the speed of a copy, and what each image adds."""
    if not problem.unshared:
        return math.inf
    if problem.direction == "grad_inputs":
        found = kernel_of_images(problem, Policy())
        return OF_IMAGES[type(found)][1](problem, found) if found else unshared_inputs.rank(problem)
    if config := several_places(problem, Policy()):
        single = problem.w.itemsize == 4 or isinstance(config, unshared_box.BoxConfig | unshared_box_many.ManyConfig)
        rate = 6.0e7 if single else 2.0e8
        return 4 + problem.bytes / 2.6e6 + problem.flops / rate
    if unshared_halves.heuristic(problem, Policy()):
        return unshared_halves.rank(problem)
    rate = 1.5e7 if problem.direction == "forward" else 8e6 if problem.x.shape[0] > 2 * MOST_IMAGES else 3.0e7
    return 4 + problem.bytes / 2.2e6 + problem.flops / rate


def kernels() -> Iterator[Kernel]:
    """Both directions, each dtype and several numbers of images."""
    for direction, dtype, config in (
        ("forward", "float32", UnsharedConfig(8, 4, 288, 4, 4)),
        ("forward", "bfloat16", UnsharedConfig(1, 4, 256, 1, 4)),
        ("forward", "float64", UnsharedConfig(4, 2, 128, 1, 4)),
        ("grad_weights", "bfloat16", UnsharedConfig(16, 4, 256, 2, 4)),
        ("grad_weights", "float32", UnsharedConfig(8, 8, 96, 4, 3, 5, 32)),
    ):
        yield kernel(direction, dtype, "float64" if dtype == "float64" else "float32", config)
    yield from unshared_halves.kernels(_parameters("float32"))
    yield from unshared_places.kernels()
    yield from unshared_weights_halves.kernels()
    yield from unshared_weights_many.kernels()
    yield from unshared_places_many.kernels()
    yield from unshared_places_ring.kernels()
    yield from unshared_box.kernels()
    yield from unshared_box_many.kernels()
    yield from unshared_products.kernels()
    yield from unshared_turned.kernels()
    yield from unshared_inputs.kernels()
    yield from unshared_inputs_halves.kernels()


for _op in ("conv2d", "conv2d_grad_wrt_inputs", "conv2d_grad_wrt_weights", "causal_conv1d"):
    register(Impl(_op, "numba", "numba.unshared", _supports, _plan, _rank, "ieee", "gpu_to_gpu"))
