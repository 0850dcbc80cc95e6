"""Instructions that a kernel needs and Numba does not have, each a small intrinsic beside its twin for the CUDA simulator.

Needs sm_80 or later.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir

from numbadnn.kernels.lang.cuda import SIMULATED, device, f32, i32, u32
from numbadnn.kernels.lang.intrinsics import emitted, instruction
from numbadnn.kernels.lang.llvm import _FLOAT, _I32, _asm

#: the lowest finite value: where a maximum starts whose differences must not be inf - inf
LOWEST = {"float32": -3.4028234663852886e38, "float64": -1.7976931348623157e308}


#: ``high_product(a, b)``: the upper 32 bits of the product of two unsigned words
high_product = (
    (lambda a, b: (int(a) * int(b)) >> 32)
    if SIMULATED
    else instruction("mul.hi.u32 $0, $1, $2;", (u32,), (u32, u32), True)
)


@device
def quotient(number, by):
    """number // divisor, ``by`` is its ``reciprocal``: a tenth of the instructions of a division."""
    return i32(high_product(u32(2 * u32(number)), u32(by[0])) >> u32(by[1]))


#: 1/x within 2**-22, otherwise as the GPU likes
rough_reciprocal = (lambda x: 1 / x) if SIMULATED else instruction("rcp.approx.ftz.f32 $0, $1;", (f32,), (f32,), True)


def _divided() -> Callable[..., Any]:
    if SIMULATED:
        return lambda value, n, part: value / n
    template = (
        "{.reg .pred p; .reg .f32 rest, less; mul.rn.f32 $0, $1, $3; neg.f32 less, $2; fma.rn.f32 rest, less, $0, $1; "
        "setp.num.f32 p, rest, rest; @p fma.rn.f32 $0, $3, rest, $0;}"
    )

    @emitted(f32, f32, f32, f32)
    def divide(builder, value, n, part):
        return _asm(builder, template, "=&f,f,f,f", _FLOAT, [value, n, part])

    return divide


#: ``divided(value, n, part)``: value / n, but 0 for -0, by an integer n below 2**14 whose reciprocal is ``part`` within 2**-20.
#: A product, and a correction by the exact remainder, where that is a number: it is not for infinities and NaN. Of a quotient
#: that is not itself a float32, the nearest middle of two is 1 / (2 * n) of their distance away, far more than the error
#: before the last rounding (tried with every float32, n up to 128); only quotients below 2**-126 can be such a middle, and may
#: round to the odd one.
divided = _divided()
#: flushes results below 2**-126 to 0
exp2 = np.exp2 if SIMULATED else instruction("ex2.approx.ftz.f32 $0, $1;", (f32,), (f32,), True)
exp = np.exp if SIMULATED else math.exp
log = np.log if SIMULATED else math.log
_LOG2E = 1.4426950408889634


def exponential(dtype: str) -> Callable[..., Any]:
    """``exp(x)`` for values stored as ``dtype``: within 2 ulp; for 16-bit types by exp2 alone.

    exp2(x * log2 e) has a relative error of about |x| * 2**-24: at the |x| < 104 where a 16-bit result is not 0 that is
    below 2**-17, far inside its rounding. float32 and float64 need the function that reduces its argument.
    """
    if dtype not in ("float16", "bfloat16"):
        return exp

    @device
    def power(x):
        return exp2(f32(x * f32(_LOG2E)))

    return power


_maximum_f32 = np.maximum if SIMULATED else instruction("max.NaN.f32 $0, $1, $2;", (f32,), (f32, f32), True)


@device
def _maximum_f64(a, b):
    return a if a > b or a != a else b


def maximum(acc: str) -> Callable[..., Any]:
    """``maximum(a, b)``, NaN if either is."""
    return _maximum_f32 if acc == "float32" else _maximum_f64


def _fence(template: str) -> Callable[[], None]:
    """An instruction without operands, that no access to memory is moved across; sm_80 goes without (``Kernel.ptx``)."""
    return (lambda: None) if SIMULATED else instruction(template)


#: from here on the next kernel may start, once all blocks have come here
let_next_start = _fence("griddepcontrol.launch_dependents;")
#: what the kernel before wrote is there behind this, and it has ended
wait_for_previous = _fence("griddepcontrol.wait;")


def _here(register: str, twin: Callable[[Any], Any]) -> Callable[[], Any]:
    if SIMULATED:
        return lambda: twin(threading.current_thread())

    @emitted(i32)
    def read(builder):
        template = f"mov.u32 $0, %{register};"
        assembly = ir.InlineAsm(ir.FunctionType(_I32, []), template, "=r", side_effect=True)
        return builder.call(assembly, [])

    return read


#: ``thread_here()``: threadIdx.x, read here: what is made of it is made here as well, and holds no registers all the time
thread_here = _here("tid.x", lambda thread: thread.thread_id)
#: ``block_here()``: the same of blockIdx.x
block_here = _here("ctaid.x", lambda thread: thread.blockIdx.x)
