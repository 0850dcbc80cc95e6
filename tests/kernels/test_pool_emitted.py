"""The code that pooling's kernels emit themselves, run on the CPU, where LLVM stands in for each instruction of PTX.

The simulator runs twins instead, so that a wrong shift or selector would show on a GPU alone.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")
import llvmlite.binding as llvm
from llvmlite import ir

from numbadnn.kernels.lang.access import _numpy_type
from numbadnn.kernels.pool import tiles
from numbadnn.kernels.pool.device import argmax, argmax_keys, maxima_grad
from numbadnn.problems.pool import PoolProblem

I32, FLOAT = ir.IntType(32), ir.FloatType()
RNG = np.random.default_rng(8)


class Pointed:
    """An array among the operands of what is emitted."""

    def __init__(self, builder: Any, pointer: Any) -> None:
        self.builder, self.pointer = builder, pointer

    def slot(self, start: Any, i: int = 0) -> Any:
        return self.builder.gep(self.pointer, [self.builder.add(start, I32(i))])

    def get(self, start: Any, i: int = 0) -> Any:
        return self.builder.load(self.slot(start, i))

    def put(self, start: Any, i: int, value: Any) -> None:
        self.builder.store(value, self.slot(start, i))


def instruction(builder: Any, template: str, constraints: str, result: Any, values: list[Any]) -> Any:
    """What PTX says of each template, in LLVM's own words."""
    if found := re.fullmatch(r"prmt\.b32 \$0, \$1, \$2, (0x[0-9a-f]+);", template):
        word = I32(0)
        for i in range(4):
            nibble = int(found[1], 16) >> 4 * i & 15
            byte = builder.and_(builder.lshr(values[(nibble & 7) // 4], I32(8 * (nibble & 3))), I32(255))
            if nibble & 8:
                byte = builder.select(builder.icmp_unsigned(">", byte, I32(127)), I32(255), I32(0))
            word = builder.or_(word, builder.shl(byte, I32(8 * i)))
        return word
    for dtype, text in argmax_keys._PLUS_ZERO.items():
        if template == text:
            word = I32(0)
            for i in range(2):
                half = builder.and_(builder.lshr(values[0], I32(16 * i)), I32(0xFFFF))
                magnitude = builder.and_(half, I32(0x7FFF))
                nan = builder.icmp_unsigned(">", magnitude, I32(argmax_keys._NAN[dtype]))
                half = builder.select(builder.icmp_unsigned("==", magnitude, I32(0)), I32(0), half)
                word = builder.or_(word, builder.shl(builder.select(nan, I32(0x7FFF), half), I32(16 * i)))
            return word
    if "setp.nan" in template:  # joined: (earlier, its code, best, its code)
        earlier, code, best, other = values
        taken = builder.or_(builder.fcmp_ordered(">=", earlier, best), builder.fcmp_unordered("uno", earlier, earlier))
        pair = builder.insert_value(ir.Constant(result, ir.Undefined), builder.select(taken, earlier, best), 0)
        return builder.insert_value(pair, builder.select(taken, code, other), 1)
    assert "@p add.rn.f32 $0, $0, $2" in template
    old, share, word, number = values
    if "and.b32 t, $3, $4; setp.ne.u32 p, t, 0" in template:
        here = builder.icmp_unsigned("!=", builder.and_(word, number), I32(0))
    else:
        assert "setp.eq.s32 p, $3, $4" in template
        here = builder.icmp_signed("==", word, number)
    return builder.select(here, builder.fadd(old, share), old)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """``run(write, *operands)``: what ``write`` emits, on NumPy arrays and integers."""
    for module in (argmax, argmax_keys, maxima_grad):
        monkeypatch.setattr(module, "emitted", lambda *types: lambda write: write)
        monkeypatch.setattr(module, "_asm", instruction)
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()

    def run(write: Callable[..., None], *operands: Any) -> None:
        kinds = [
            I32 if isinstance(o, int) else (FLOAT if o.dtype == np.float32 else I32).as_pointer() for o in operands
        ]
        module = ir.Module()
        function = ir.Function(module, ir.FunctionType(ir.VoidType(), kinds), "f")
        builder = ir.IRBuilder(function.append_basic_block())
        write(
            builder,
            *(a if isinstance(o, int) else Pointed(builder, a) for a, o in zip(function.args, operands, strict=False)),
        )
        builder.ret_void()
        target = llvm.Target.from_default_triple().create_target_machine(opt=0)
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(str(module)), target)
        engine.finalize_object()
        types = [ctypes.c_int32 if isinstance(o, int) else ctypes.c_void_p for o in operands]
        call = ctypes.CFUNCTYPE(None, *types)(engine.get_function_address("f"))
        call(*(o if isinstance(o, int) else o.ctypes.data for o in operands))

    return run


def configs(line: str) -> tuple[Any, Any]:
    problem = PoolProblem.parse(f"pool_grad {line}")
    return tiles.choosing(problem), tiles.space(problem)[:2]


LINES = (
    "x=T:1x2x5x6x16 window=3x3x3 stride=2x2x2 pad=1x1x1",
    "x=T:1x8x5x6x7:nhwc window=3x3x3 stride=2x2x2 pad=1x1x1",
    "x=T:1x2x6x8 window=5x3 stride=1x1 pad=2x1",
)


def numbers(count: int, dtype: str) -> np.ndarray:
    """Few, so that there are equals, both zeros, and what is not finite."""
    found = RNG.integers(-2, 3, count).astype(np.float32)
    found[RNG.random(count) < 0.1] = -0.0
    found[RNG.random(count) < 0.2] = -np.inf
    found[RNG.random(count) < 0.03] = np.nan
    return found.astype(_numpy_type(dtype))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("line", LINES)
def test_keys_find_the_first_maximum(machine: Callable[..., None], line: str, dtype: str) -> None:
    for config in {c.deep: c for c in reversed(configs(line.replace("T", dtype))[0]) if c.deep < 4}.values():
        (kd, kh, kw), (sd, sh, sw), made = config.window, config.stride, config.rows * config.columns * config.lanes
        spots, room = argmax_keys._spots(config)
        best = np.full(config.deep * made, argmax_keys.LOWEST, np.int32)
        planes = [numbers(2 * config.x_rows * room, dtype) for _ in range((config.deep - 1) * sd + kd)]
        for z, plane in enumerate(planes):
            machine(argmax_keys.looker(dtype, config, z), best, plane.view(np.int32).copy(), 0, 0, 0)
        found = np.empty_like(best)
        machine(argmax_keys.finder(config), found, best)
        for n in range(best.size):
            o, rest = divmod(n, made)
            p, q, e = (
                rest // (config.columns * config.lanes),
                rest // config.lanes % config.columns,
                rest % config.lanes,
            )
            seen = [
                float(planes[o * sd + z][2 * ((p * sh + r) * room + word) + half])
                for z in range(kd)
                for r in range(kh)
                for word, half in [spots[q * sw + k][e] for k in range(kw)]
            ]
            assert found[n] == np.argmax(seen), (config, n)


@pytest.mark.parametrize("line", LINES)
def test_places_before_the_image_come_last(machine: Callable[..., None], line: str) -> None:
    """Of equal numbers the first place inside has a window: behind h rows and w columns, in the second plane."""
    config = configs(line.replace("T", "float16"))[0][0]
    (kd, kh, kw), (_, sh, sw), (_, ph, pw) = config.window, config.stride, config.pad
    _, room = argmax_keys._spots(config)
    best = np.full(config.rows * config.columns * config.lanes, argmax_keys.LOWEST, np.int32)
    same, found = np.zeros(config.x_rows * room, np.int32), np.empty_like(best)
    for z in range(kd):
        late = argmax_keys.LATER[0] if z == 0 and kd > 1 else 0
        machine(argmax_keys.looker("float16", config, z), best, same, late, -ph, -pw)
    machine(argmax_keys.finder(config), found, best)
    for n, code in enumerate(found):
        p, q = n // (config.columns * config.lanes), n // config.lanes % config.columns
        first = (kd > 1, max(ph - p * sh, 0), max(pw - q * sw, 0))
        assert code == (first[0] * kh + first[1]) * kw + first[2]


@pytest.mark.parametrize("line", LINES)
def test_comparisons_find_the_first_maximum(machine: Callable[..., None], line: str) -> None:
    for config in configs(line.replace("T", "float32"))[0][:1]:
        (kd, kh, kw), (_, sh, sw), lanes = config.window, config.stride, config.lanes
        room, made = config.x_piece().capacity, config.rows * config.columns * lanes
        best, found = np.full(made, -np.inf, np.float32), np.zeros(made, np.int32)
        planes = [numbers(config.x_rows * room * lanes, "float32") for _ in range(kd)]
        for z in reversed(range(kd)):
            machine(argmax.looker("float32", config), best, found, planes[z], z * kh * kw)
        for n in range(made):
            p, q, e = n // (config.columns * lanes), n // lanes % config.columns, n % lanes
            seen = [
                planes[z][((p * sh + r) * room + q * sw + k) * lanes + e]
                for z in range(kd)
                for r in range(kh)
                for k in range(kw)
            ]
            assert found[n] == np.argmax(seen), (config, n)


@pytest.mark.parametrize("line", (*LINES, "x=T:1x2x6x6x16 window=4x3x3 stride=2x2x2 pad=1x1x1"))
def test_windows_give_to_the_element_of_their_code(machine: Callable[..., None], line: str) -> None:
    for config in configs(line.replace("T", "float32"))[1]:
        lanes, room, wide = config.lanes, config.y_piece().capacity, config.columns * config.stride[2]
        held, total = config.many_rows * room * lanes, np.zeros(config.own, np.float32)
        right = np.zeros((config.stride[0], config.tall, wide, lanes), np.float32)
        for m in range(config.many_planes):
            ys = RNG.integers(1, 9, held).astype(np.float32)
            codes = RNG.integers(0, np.prod(config.window), held).astype(np.int32)
            machine(maxima_grad.giver("float32", config, m), total, ys, codes)
            for n in range(held):
                t, u, e = n // (room * lanes), n // lanes % room, n % lanes
                code = np.unravel_index(codes[n], config.window)
                at = [config.start(axis, (m, t, u)[axis]) + code[axis] for axis in range(3)]
                if u < config.y_piece().length and all(0 <= a < n for a, n in zip(at, right.shape, strict=False)):
                    right[(*at, e)] += ys[n]
        np.testing.assert_array_equal(total, right.ravel())
