"""The intrinsics that call C by address: right values and types, cacheable, and no GIL held."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import numpy as np
import pytest
from numba import float32, float64, int32, int64, njit

from numbadnn.host.entry import address_of
from numbadnn.host.hostcall import (
    call_address,
    call_address_64,
    load_u32,
    load_u64,
    store_f32,
    store_f64,
    store_u32,
    store_u64,
)

LIBC = ctypes.CDLL(None)


def test_integer_results_of_both_widths():
    @njit("int64(int64, int64)", nogil=True)
    def wide(f, x):
        return call_address_64(f, x)

    @njit("int32(int64, int64)", nogil=True)
    def narrow(f, x):
        return call_address(f, int32(x))

    assert wide(address_of(LIBC, "labs"), -(2**40)) == 2**40
    assert narrow(address_of(LIBC, "abs"), -7) == 7


def test_memcpy_and_memory_access():
    @njit("void(int64, int64, int64)", nogil=True)
    def copy(f, source, target):
        store_u64(source, 0x1122334455667788)
        store_u32(source + 8, 5)
        store_f32(source + 12, 1.5)
        store_f64(source + 16, -2.25)
        call_address_64(f, target, source, int64(24))
        store_u64(source, load_u64(target) + load_u32(target + 8))

    source, target = np.zeros(3, np.uint64), np.zeros(3, np.uint64)
    copy(address_of(LIBC, "memcpy"), source.ctypes.data, target.ctypes.data)
    assert target[0] == 0x1122334455667788
    assert source[0] == 0x112233445566778D
    assert target.view(np.uint32)[2] == 5
    assert target.view(np.float32)[3] == 1.5
    assert target.view(np.float64)[2] == -2.25


def test_mixed_arguments_reach_a_c_callback_in_order():
    seen = []
    kind = ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.c_int, ctypes.c_float, ctypes.c_int64, ctypes.c_double, *[ctypes.c_int64] * 6
    )
    callback = kind(lambda *args: seen.append(args) or 42)
    address = ctypes.cast(callback, ctypes.c_void_p).value

    # without nogil, so that the Python callback may run
    @njit("int32(int64, int64)")
    def shim(f, x):
        return call_address(f, int32(x), float32(0.5), int64(-3), float64(0.25), x, x + 1, x + 2, x + 3, x + 4, x + 5)

    assert shim(address, 2**20 + 7) == 42
    x = 2**20 + 7
    assert seen == [(x, 0.5, -3, 0.25, x, x + 1, x + 2, x + 3, x + 4, x + 5)]


@pytest.mark.parametrize("value", ["'text'", "(1, 2)"])
def test_anything_but_numbers_is_refused_at_compile_time(value):
    from numba.core.errors import TypingError

    scope = {"call_address": call_address}
    exec(f"def shim(f):\n    return call_address(f, {value})", scope)
    with pytest.raises(TypingError):
        njit("int32(int64)")(scope["shim"])


def test_cached_between_processes(tmp_path):
    module = tmp_path / "cached_shim.py"
    module.write_text(
        "from numba import njit\nfrom numbadnn.host.hostcall import call_address_64\n"
        "@njit('int64(int64, int64)', nogil=True, cache=True)\n"
        "def shim(f, x):\n    return call_address_64(f, x)\n"
    )
    code = (
        "import sys, ctypes; sys.path.insert(0, sys.argv[1])\n"
        "from cached_shim import shim\nfrom numbadnn.host.entry import address_of\n"
        "assert shim(address_of(ctypes.CDLL(None), 'labs'), -5) == 5\n"
        "print(sum(shim.stats.cache_hits.values()))"
    )
    hits = [
        subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)], check=True, capture_output=True, text=True
        ).stdout.strip()
        for _ in range(2)
    ]
    assert hits == ["0", "1"]


def test_shims_are_compiled_where_nothing_can_be_kept():
    code = (
        "from numba.core import caching\n"
        "caching.CodeLibraryCacheImpl._locator_classes = caching.CompileResultCacheImpl._locator_classes = []\n"
        "from numbadnn.kernels.build import shim as _shim\n"
        "from numbadnn.cudnn import _compiled as graph\n"
        "print(len(_shim._check.signatures), len(graph._check_context.signatures))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "1 1\n"), done.stderr
