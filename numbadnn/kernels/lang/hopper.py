"""Hopper's instructions as functions: barriers in shared memory, the tensor copy engine (TMA), and wgmma.

Shared memory is addressed by 32-bit numbers, from ``shared_start()`` on. Each instruction has a twin in
``hopper_twins.py`` for the CUDA simulator, which moves real bytes: the same kernel source runs there. Needs sm_90a.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from llvmlite import ir

from numbadnn.kernels.lang.cuda import SIMULATED, f32, i32, i64, u32, u64
from numbadnn.kernels.lang.intrinsics import ARRAY, emitted, instruction
from numbadnn.kernels.lang.llvm import _I32, _asm

if SIMULATED:
    from numbadnn.kernels.lang import hopper_twins as twins

#: element types of local arrays
WORD, ADDRESS = (np.dtype("int32"), np.dtype("int64")) if SIMULATED else (i32, i64)


def _or_twin(name: str, *description: Any) -> Any:
    return getattr(twins, name) if SIMULATED else instruction(*description)


# ---- shared memory and its barriers


def _shared_start() -> Any:
    if SIMULATED:
        return twins.shared_start

    @emitted(u32)
    def shared_start(builder):
        found = builder.module.globals.get("numbadnn_shared")
        if found is None:
            kind = ir.ArrayType(ir.IntType(8), 0)
            found = ir.GlobalVariable(builder.module, kind, "numbadnn_shared", addrspace=3)
            found.linkage, found.align = "external", 1024
        return builder.ptrtoint(found, ir.IntType(32))

    return shared_start


#: ``shared_start() -> u32``: where dynamic shared memory begins
shared_start = _shared_start()
#: ``barrier_init(barrier, arrivals)``
barrier_init = _or_twin("barrier_init", "mbarrier.init.shared::cta.b64 [$0], $1;", (), (u32, u32))
#: ``barrier_expect(barrier, bytes)``: arrive, and wait for so many bytes of copies too
barrier_expect = _or_twin("barrier_expect", "mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;", (), (u32, u32))
barrier_arrive = _or_twin("barrier_arrive", "mbarrier.arrive.shared::cta.b64 _, [$0];", (), (u32,))
#: ``barrier_follow(barrier)``: arrive once all that this thread has begun to copy asynchronously is there
barrier_follow = _or_twin("barrier_arrive", "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [$0];", (), (u32,))
#: ``barrier_wait(barrier, parity)``: until the phase of this parity is complete
barrier_wait = _or_twin(
    "barrier_wait",
    "{.reg .pred done; AGAIN: mbarrier.try_wait.parity.shared::cta.b64 done, [$0], $1; @done bra READY; bra AGAIN; READY: }",
    (),
    (u32, u32),
)
#: barriers that were initialised are visible to the copy engine
fence_barriers = _or_twin("nothing", "fence.mbarrier_init.release.cluster; fence.proxy.async;")
#: the same, where all threads of the block meet before the first copy: a fence less to wait for
fence_started = _or_twin("nothing", "fence.mbarrier_init.release.cluster;")


@functools.cache
def set_registers(count: int, increase: bool) -> Any:
    """From here on a thread has ``count`` registers (a multiple of 8); all 128 threads of a group call it."""
    return _or_twin("nothing", f"setmaxnreg.{'inc' if increase else 'dec'}.sync.aligned.u32 {count};")


# ---- the copy engine


@functools.cache
def map_address(index: int) -> Any:
    """``map_address(words) -> u64``: where the descriptor lies that is the ``index``-th ``map`` parameter."""
    if SIMULATED:
        return twins.map_address
    template = f"{{.reg .b64 at; mov.b64 at, {placeholder(index)}; cvta.param.u64 $0, at;}}"

    @emitted(u64, ARRAY)
    def address(builder, words):
        return _asm(builder, template, "=l", ir.IntType(64), [])

    return address


@functools.cache
def map_target(index: int) -> Any:
    """``map_target(words) -> i64``: the address of the array that this descriptor describes, its first word."""
    if SIMULATED:
        return twins.map_target

    @emitted(i64, ARRAY)
    def target(builder, words):
        return _asm(builder, f"ld.param.b64 $0, [{placeholder(index)}];", "=l", ir.IntType(64), [])

    return target


#: ``prefetch_map(map)``: have a descriptor brought to where the copy engine wants it
prefetch_map = _or_twin("nothing", "prefetch.tensormap [$0];", (), (u64,))
#: ``copy_box(target, map, x, y, z, barrier)``: begin to copy the box at (x, y, z) to shared memory
copy_box = _or_twin(
    "copy_box",
    "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [$0], [$1, {$2, $3, $4}], [$5];",
    (),
    (u32, u64, i32, i32, i32, u32),
)
#: ``copy_stretch(target, address, size, barrier)``: begin to copy ``size`` bytes, whole aligned 16 of them, to shared memory
copy_stretch = _or_twin(
    "copy_stretch",
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [$0], [$1], $2, [$3];",
    (),
    (u32, i64, i32, u32),
)
#: ``copy_pixels(target, map, channel, x, y, image, barrier, right, down)``: begin to copy channels of the pixels that follow
#: (x, y) of an image in the map's window, each read ``right`` and ``down`` of where it stands (0 to 255)
copy_pixels = _or_twin(
    "copy_pixels",
    "{.reg .b16 r, d; cvt.u16.u32 r, $7; cvt.u16.u32 d, $8; "
    "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
    "[$0], [$1, {$2, $3, $4, $5}], [$6], {r, d};}",
    (),
    (u32, u64, i32, i32, i32, i32, u32, i32, i32),
)
#: ``copy_voxels(target, map, channel, x, y, z, image, barrier, right, down, back)``: the same of images with three axes; what
#: is read lies up to 31 off
copy_voxels = _or_twin(
    "copy_voxels",
    "{.reg .b16 r, d, b; cvt.u16.u32 r, $8; cvt.u16.u32 d, $9; cvt.u16.u32 b, $10; "
    "cp.async.bulk.tensor.5d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
    "[$0], [$1, {$2, $3, $4, $5, $6}], [$7], {r, d, b};}",
    (),
    (u32, u64, i32, i32, i32, i32, i32, u32, i32, i32, i32),
)
#: ``store_box(map, x, y, z, source)``: begin to copy a box from shared memory; what lies outside the array is dropped
store_box = _or_twin(
    "store_box",
    "cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [$0, {$1, $2, $3}], [$4];",
    (),
    (u64, i32, i32, i32, u32),
)
#: the boxes this thread has begun to store since the last commit are one group
commit_boxes = _or_twin("nothing", "cp.async.bulk.commit_group;")
#: what threads wrote to shared memory is visible to the copy engine
fence_shared = _or_twin("nothing", "fence.proxy.async.shared::cta;")


@functools.cache
def wait_boxes(groups: int) -> Any:
    """Until all but the last ``groups`` groups of boxes of this thread are read from shared memory."""
    return _or_twin("nothing", f"cp.async.bulk.wait_group.read {groups};")


#: until all boxes that this thread has begun to store are in memory
wait_stored = _or_twin("nothing", "cp.async.bulk.wait_group 0;")
#: ``meet(barrier)``: the 128 threads of a group wait for each other; ``barrier`` is the group's own number, 1 to 15
meet = _or_twin("meet", "bar.sync $0, 128;", (), (i32,))


# ---- wgmma


@functools.cache
def wgmma(dtype: str, n: int, a_by_rows: bool, b_by_rows: bool, at: int = 0, fresh: bool = False) -> Any:
    """``wgmma(sums, a, b)``: sums += A (64 x 16) times B (16 x n), both in shared memory, by four warps together.

    The sums are sums[at:]; with ``fresh`` they are set. float32 is multiplied as TF32: 8 terms, both by rows.

    ``a`` and ``b`` are matrix descriptors; ``by_rows`` says that neighbours in memory are neighbours along k, as
    opposed to along m or n. Thread t holds row 16*warp + lane//4 (+8), columns 8*j + 2*(lane%4) (+1) in sums[4*j:].
    """
    if SIMULATED:
        return twins.wgmma(dtype, n, a_by_rows, b_by_rows, at, fresh)
    count, kind = n // 2, {"float16": "f16", "bfloat16": "bf16", "float32": "tf32"}[dtype]
    held = ",".join(f"${i}" for i in range(count))
    terms, order = (8, "") if kind == "tf32" else (16, f", {int(not a_by_rows)}, {int(not b_by_rows)}")
    template = (
        f"{{.reg .pred p; setp.ne.b32 p, {int(not fresh)}, 0; "
        f"wgmma.mma_async.sync.aligned.m64n{n}k{terms}.f32.{kind}.{kind} {{{held}}}, "
        f"${2 * count}, ${2 * count + 1}, p, 1, 1{order};}}"
    )
    constraints = ",".join(["=f"] * count + [str(i) for i in range(count)] + ["l", "l", "~{memory}"])

    @emitted(None, ARRAY, u64, u64)
    def multiply(builder, sums, a, b):
        slots = [sums.slot(_I32(0), at + i) for i in range(count)]
        result = ir.LiteralStructType([ir.FloatType()] * count)
        values = [builder.load(slot) for slot in slots]
        found = _asm(builder, template, constraints, result, [*values, a, b], pure=False)
        for i, slot in enumerate(slots):
            builder.store(builder.extract_value(found, i), slot)

    return multiply


wgmma_fence = _or_twin("nothing", "wgmma.fence.sync.aligned;")
wgmma_commit = _or_twin("nothing", "wgmma.commit_group.sync.aligned;")


@functools.cache
def wgmma_wait(groups: int) -> Any:
    """Until at most the last ``groups`` groups are under way."""
    return _or_twin("nothing", f"wgmma.wait_group.sync.aligned {groups};")


# ---- results


@functools.cache
def pack(dtype: str) -> Any:
    """``pack(a, b) -> u32``: two numbers as 16-bit floats, the first in the lower half."""
    if SIMULATED:
        return twins.pack(dtype)
    kind = {"float16": "f16x2", "bfloat16": "bf16x2"}[dtype]
    return instruction(f"cvt.rn.{kind}.f32 $0, $2, $1;", (u32,), (f32, f32), pure=True)


#: ``exchange(word, mask)``: the word of the thread whose lane differs by ``mask``; a whole group of 128 threads takes part
exchange = _or_twin("exchange", "shfl.sync.bfly.b32 $0, $1, $2, 31, -1;", (u32,), (u32, i32))
#: ``store_tiles(address, a, b, c, d)``: a warp's four 8 x 8 tiles of 16-bit numbers to shared memory; lane l has columns 2*(l%4)
#: (+1) of row l//4 of each, and says where row l%8 of tile l//8 goes, 16 aligned bytes
store_tiles = _or_twin(
    "store_tiles", "stmatrix.sync.aligned.m8n8.x4.shared.b16 [$0], {$1, $2, $3, $4};", (), (u32, u32, u32, u32, u32)
)
#: ``store_transposed_tiles(address, a, b, c, d)``: the same, each tile transposed: where its column l%8 goes
store_transposed_tiles = _or_twin(
    "store_transposed_tiles",
    "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [$0], {$1, $2, $3, $4};",
    (),
    (u32, u32, u32, u32, u32),
)
#: ``load_words(address) -> four u32``: 16 aligned bytes of shared memory
load_words = _or_twin("load_words", "ld.shared.v4.b32 {$0, $1, $2, $3}, [$4];", (u32, u32, u32, u32), (u32,))
#: ``store_words(address, a, b, c, d)``: 16 aligned bytes of global memory
store_words = _or_twin("store_words", "st.global.v4.b32 [$0], {$1, $2, $3, $4};", (), (i64, u32, u32, u32, u32))
#: ``keep_words(address, a, b, c, d)``: 16 aligned bytes of shared memory
keep_words = _or_twin("keep_words", "st.shared.v4.b32 [$0], {$1, $2, $3, $4};", (), (u32, u32, u32, u32, u32))
load_word = _or_twin("load_word", "ld.shared.b32 $0, [$1];", (u32,), (u32,))
keep_word = _or_twin("keep_word", "st.shared.b32 [$0], $1;", (), (u32, u32))
keep_pair = _or_twin("keep_pair", "st.shared.v2.b32 [$0], {$1, $2};", (), (u32, f32, f32))
#: ``as_float(word)``: the float32 of these bits
as_float = _or_twin("as_float", "mov.b32 $0, $1;", (f32,), (u32,), True)


def placeholder(index: int) -> str:
    """What stands for the ``index``-th descriptor's parameter in the text of an instruction."""
    return f"NUMBADNN_MAP_{index}"
