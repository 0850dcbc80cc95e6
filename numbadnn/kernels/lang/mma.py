"""Tensor-core products of a warp, and writes to shared memory of chosen width, each beside its twin for the simulator.

``product(kind, terms, whole)`` is m16n8k8 for TF32 and float64, m16n8k16 for float64 and 16-bit types: lane l = 4*g + t
holds a = (g,t), (g+8,t), (g,t+4), (g+8,t+4) ... of A, b = (t,g), (t+4,g) ... of B and c = (g,2t), (g,2t+1), (g+8,2t),
(g+8,2t+1) of C; of 16-bit types a word is two neighbouring terms, and t counts words. Every thread of the block must take
part. Needs sm_80.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir

from numbadnn.kernels.lang.access import _numpy_type
from numbadnn.kernels.lang.cuda import SIMULATED, f32, f64, i32
from numbadnn.kernels.lang.intrinsics import ARRAY, emitted
from numbadnn.kernels.lang.llvm import _DOUBLE, _FLOAT, _I32, _asm, _vector
from numbadnn.kernels.lang.warp import _EXCHANGE

_TF32 = "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32"
_HALVES = {
    "float16": "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
    "bfloat16": "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
}


@functools.cache
def product(kind: str, terms: int, whole: bool = True) -> Callable[..., None]:
    """``product(sums, at, a, i, b, j)``: sums[at:at+4] += a[i:] times b[j:], of ``terms`` terms.

    ``kind`` is "tf32", "float64", or "float16" or "bfloat16", whose a and b are words of two. Without ``whole`` float64 is
    several m8n8k4, which is what sm_80 has; sm_90 has the whole.
    """
    if SIMULATED:
        return functools.partial(_product_twin, kind, terms)
    real, acc = (_DOUBLE, f64) if kind == "float64" else (_FLOAT, f32)
    words = terms // 2 if kind in _HALVES else terms  # of a row of A

    @emitted(None, ARRAY, i32, ARRAY, i32, ARRAY, i32)
    def multiply(builder, sums, at, a, i, b, j):
        if sums.kind.dtype != acc:
            raise TypeError(f"expected sums of {acc}, got {sums.kind.dtype}")
        slots = [sums.slot(at, e) for e in range(4)]
        c = [builder.load(slot) for slot in slots]
        x, y = [a.get(i, e) for e in range(words // 2)], [b.get(j, e) for e in range(words // 4)]
        if kind in _HALVES:
            c = _multiply(builder, _HALVES[kind], "f", "r", real, c, x, y)
        elif kind == "tf32":
            x, y = ([builder.bitcast(v, _I32) for v in values] for values in (x, y))
            c = _multiply(builder, _TF32, "f", "r", real, c, x, y)
        elif whole:
            name = f"mma.sync.aligned.m16n8k{terms}.row.col.f64.f64.f64.f64"
            c = _multiply(builder, name, "d", "d", real, c, x, y)
        else:
            name = "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64"
            for step in range(terms // 4):
                upper = _multiply(builder, name, "d", "d", real, c[:2], [x[2 * step]], [y[step]])
                c = upper + _multiply(builder, name, "d", "d", real, c[2:], [x[2 * step + 1]], [y[step]])
        for slot, value in zip(slots, c, strict=True):
            builder.store(value, slot)

    return multiply


def _multiply(builder: Any, name: str, c_code: str, a_code: str, real: Any, c: Any, a: Any, b: Any) -> list[Any]:
    """One instruction: the new values of c."""
    n, numbers = len(c), iter(range(2 * len(c) + len(a) + len(b)))

    def group(count: int) -> str:
        return "{" + ",".join(f"${next(numbers)}" for _ in range(count)) + "}"

    template = f"{name} {group(n)}, {group(len(a))}, {group(len(b))}, {group(n)};"
    constraints = [f"={c_code}"] * n + [a_code] * (len(a) + len(b)) + [c_code] * n
    found = _asm(builder, template, ",".join(constraints), ir.LiteralStructType([real] * n), [*a, *b, *c])
    return [builder.extract_value(found, i) for i in range(n)]


def _product_twin(kind: str, terms: int, sums: Any, at: int, a: Any, i: int, b: Any, j: int) -> None:
    """The simulator has no warps: the 32 threads of one meet here, and the last of them multiplies for all."""
    import threading

    thread: Any = threading.current_thread()
    number, pack = thread.thread_id, 1 + (kind in _HALVES)
    count = terms // pack
    _EXCHANGE[number] = (a[i : i + count // 2], b[j : j + count // 4], np.array(sums[at : at + 4]))
    if thread.meet(~(number >> 5), 32):  # groups of 128 have the numbers from 0 on
        first = number & ~31
        words = zip(*(_EXCHANGE[first + lane] for lane in range(32)), strict=True)
        for lane, found in enumerate(_warp_product(kind, terms, *map(np.array, words))):
            _EXCHANGE[first + lane] = found
    sums[at : at + 4] = _EXCHANGE[number]


def _warp_product(kind: str, terms: int, a: np.ndarray, b: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """Every lane's four sums, of every lane's words of the operands and its sums: a term after the other."""
    halves, acc = kind in _HALVES, np.float64 if kind == "float64" else np.float32
    if halves:
        a, b = (words.astype(np.int32).view(_numpy_type(kind)) for words in (a, b))
    pack = 1 + halves
    left = a.astype(acc).reshape(8, 4, -1, 2, pack).transpose(3, 0, 2, 1, 4).reshape(16, terms)
    right = b.astype(acc).reshape(8, 4, -1, pack).transpose(0, 2, 1, 3).reshape(8, terms)
    total = sums.astype(acc).reshape(8, 4, 2, 2).transpose(2, 0, 1, 3).reshape(16, 8)
    for k in range(terms):
        total = total + np.multiply.outer(left[:, k], right[:, k])
    return total.reshape(2, 8, 4, 2).transpose(1, 2, 0, 3).reshape(32, 4)


def _round_tf32() -> Callable[..., Any]:
    if SIMULATED:

        def twin(value):
            bits = np.float32(value).view(np.uint32)  # to nearest, ties away from zero; NaN and infinity stay
            return (
                f32(value) if not np.isfinite(value) else ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(f32)
            )

        return twin

    @emitted(f32, f32)
    def rounded(builder, value):
        return builder.bitcast(_asm(builder, "cvt.rna.tf32.f32 $0, $1;", "=r,f", _I32, [value]), _FLOAT)

    return rounded


#: a float32 with the precision that TF32 products read
round_tf32 = _round_tf32()


@functools.cache
def write_shared(count: int) -> Callable[..., None]:
    """``write_shared(values, start, shared, at)``: shared[at:at+count] = values[start:start+count], one aligned access.

    Both arrays have elements of one type of four bytes.
    """
    if SIMULATED:

        def twin(values, start, shared, at):
            shared[at : at + count] = values[start : start + count]

        return twin

    @emitted(None, ARRAY, i32, ARRAY, i32)
    def write(builder, values, start, shared, at):
        vector = _vector(builder, [values.get(start, e) for e in range(count)])
        builder.store(vector, builder.bitcast(shared.slot(at), vector.type.as_pointer())).align = 4 * count

    return write


@functools.cache
def load_matrices(transposed: bool) -> Callable[..., None]:
    """``load_matrices(words, start, shared, address)``: four 8 x 8 matrices, the rows of the i-th at lanes 8i to 8i+7."""
    if SIMULATED:
        return functools.partial(_load_twin, transposed)
    name = "ldmatrix.sync.aligned.m8n8.x4" + (".trans" if transposed else "") + ".shared.b16"

    @emitted(None, ARRAY, i32, ARRAY, i32)
    def load(builder, words, start, shared, address):
        kind = ir.LiteralStructType([_I32] * 4)
        # memory is read: the compiler must not move it past a barrier
        constraints = "=r,=r,=r,=r,r,~{memory}"
        found = _asm(builder, f"{name} {{$0,$1,$2,$3}}, [$4];", constraints, kind, [address], pure=False)
        for e in range(4):
            words.put(start, e, builder.extract_value(found, e))

    return load


def _load_twin(transposed: bool, words: Any, start: int, shared: Any, address: int) -> None:
    import threading

    thread: Any = threading.current_thread()
    number = thread.thread_id
    _EXCHANGE[number] = address // 2
    if thread.meet(~(number >> 5), 32):  # the last of the warp reads for all
        first = number & ~31
        rows = np.array([_EXCHANGE[first + lane] for lane in range(32)]).reshape(4, 8, 1)
        tiles = np.asarray(shared.view(np.uint16)[rows + np.arange(8)], np.uint16)
        tiles = np.ascontiguousarray(tiles.swapaxes(1, 2) if transposed else tiles)
        for lane, found in enumerate(tiles.view(np.int32).reshape(4, 32).T):
            _EXCHANGE[first + lane] = found
    words[start : start + 4] = _EXCHANGE[number]
