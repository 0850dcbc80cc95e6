"""Every own kernel compiled to PTX for three architectures and assembled by ptxas: it ran, and nothing spilled."""

import contextlib
import gc
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from folders import ROOT

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")

from numbadnn.errors import NumbaDNNError
from numbadnn.kernels import all_kernels
from numbadnn.kernels.build import assemble as _assemble
from numbadnn.kernels.build import compile as _compile
from numbadnn.kernels.build import launch as _launch
from numbadnn.kernels.build.launch import Kernel, arch_name
from numbadnn.kernels.conv.line import f32x2 as line_f32x2
from numbadnn.kernels.conv.line.f32x2 import F32x2Config
from numbadnn.kernels.conv.unshared.weights import many as unshared_weights_many
from numbadnn.kernels.conv.unshared.weights.many_config import WeightsManyConfig
from numbadnn.kernels.pool import walk as pool_walk
from numbadnn.problems.pool import PoolProblem

ARCHITECTURES = ((8, 0, ""), (9, 0, "a"), (10, 0, ""))
PTXAS = _assemble.find_ptxas()
COUNTED = re.compile(r"\b_ZN|_cudapy|\bB\d+v\d+")  # names that hold how many functions the process compiled before
CLEAN = "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads"

needs_ptxas = pytest.mark.skipif(not PTXAS, reason="ptxas is not installed")


@contextlib.contextmanager
def lowered_once() -> Iterator[None]:
    """Inside, a kernel's LLVM IR is made for the first architecture that asks; NVVM makes each one's PTX of it.

    Typing and lowering are nine tenths of a compilation, and know of no architecture.
    """
    from numba.cuda import compiler

    make: Any = getattr(
        compiler, "_compile_pyfunc_with_fixup", None
    )  # private: without it there are three compilations
    made: list[Any] = []

    def once(*args: Any, **options: Any) -> Any:
        if not made:
            made.append(make(*args, **options))
        return made[0]

    with pytest.MonkeyPatch.context() as patch:
        if make:
            patch.setattr(compiler, "_compile_pyfunc_with_fixup", once)
        yield


def codes(kernel: Kernel) -> list[str]:
    with lowered_once():
        return [kernel.ptx(arch) for arch in ARCHITECTURES]


@pytest.mark.slow
@needs_ptxas
@pytest.mark.parametrize("kernel", list(all_kernels()), ids=lambda k: k.name.replace(" ", "-"))
def test_compiles_without_spills(kernel: Kernel) -> None:
    for arch, ptx in zip(ARCHITECTURES, codes(kernel), strict=True):
        assert f".target {arch_name(arch)}" in ptx
        assert f".entry {kernel.entry}(" in ptx
        assert "griddepcontrol.wait" in ptx or not kernel.early or arch < (9,), "starts early and never waits"
        assert not COUNTED.search(ptx)
        made = _assemble.by_ptxas(ptx, arch_name(arch), PTXAS)
        assert made.image.startswith(b"\x7fELF")
        assert kernel.entry in made.log, made.log
        assert CLEAN in made.log, f"{arch_name(arch)}: {made.log}"


@pytest.mark.slow
@needs_ptxas
@pytest.mark.parametrize("arch", ARCHITECTURES, ids=arch_name)
@pytest.mark.parametrize(
    "line",
    [
        "x=float16:128x64x112x112 window=3x3 stride=2x2 pad=1x1",
        "x=float16:128x64x112x112:nhwc window=3x3 stride=2x2 pad=1x1",
        "x=float16:128x192x56x56:nhwc window=3x3 stride=1x1 pad=1x1",
        "x=float16:128x64x56x56:nhwc window=2x2 stride=1x1",
        "x=float16:128x64x56x56 window=5x5 stride=2x2 pad=2x2",
    ],
)
def test_the_widest_gradient_of_overlapping_maxima_is_one_that_does_not_spill(
    line: str, arch: tuple[int, int, str]
) -> None:
    problem = PoolProblem.parse(f"pool_grad {line}")
    config = pool_walk.possible(problem, pool_walk.space(problem)[0], "float32", arch[:2])
    made = _assemble.by_ptxas(pool_walk.kernel("float16", "float32", config).ptx(arch), arch_name(arch), PTXAS)
    assert CLEAN in made.log, made.log


@pytest.mark.slow
@needs_ptxas
@pytest.mark.parametrize(
    "kernel",
    [
        unshared_weights_many.kernel("float32", WeightsManyConfig(32, 4, 4, 1, 4, True, 1, 4, 36)),
        unshared_weights_many.kernel("float16", WeightsManyConfig(32, 2, 4, 2, 8, True, 2, 4, 36)),
        line_f32x2.kernel("float32", F32x2Config(8, 2, 2, 2, 1, 3, 4, 5, True, True)),
    ],
    ids=lambda k: k.name.replace(" ", "-"),
)
def test_kernels_of_many_sums_do_not_spill_on_hopper(kernel: Kernel) -> None:
    """Those that other architectures' compilers leave some sums of in memory."""
    made = _assemble.by_ptxas(kernel.ptx((9, 0, "a")), "sm_90a", PTXAS)
    assert CLEAN in made.log, made.log


@pytest.mark.parametrize("family", ["dropout_tiles float16", "softmax_rows bfloat16", "gemm_async float64"])
def test_one_lowering_is_that_of_every_architecture(family: str) -> None:
    kernel = next(k for k in all_kernels() if k.name.startswith(family))
    alone = [kernel.ptx(arch) for arch in ARCHITECTURES]
    assert codes(kernel) == alone


@pytest.mark.parametrize("family", ["depthwise", "conv2d forward", "pool_tiles float16", "grouped_halves_weights"])
def test_what_numba_repeats_is_left_out_and_the_code_is_the_same(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import numba_cuda

    kernel = next(k for k in all_kernels() if k.name.startswith(family))

    def code() -> str:
        return kernel.ptx((9, 0, "a"))

    quick = code()
    monkeypatch.setattr(numba_cuda, "__version__", "0.99.0")  # one that is not known is left as it is
    assert code() == quick


ANYWHERE = """
import hashlib, sys
from numba import cuda, types
from numbadnn.kernels import all_kernels
for i in range(int(sys.argv[1])):
    cuda.compile(eval(f"lambda x: x + {i}"), types.int32(types.int32), device=True, cc=(8, 0))
named = {k.name: k for k in all_kernels()}
for family in sys.argv[:1:-1] if sys.argv[1] != "0" else sys.argv[2:]:
    ptx = next(k for name, k in sorted(named.items()) if name.startswith(family)).ptx((9, 0, "a"))
    print(family, hashlib.sha256(ptx.encode()).hexdigest())
"""


def test_the_code_is_the_same_in_any_process() -> None:
    """Whatever was compiled before, and in any order."""
    families, found = ("conv2d forward", "softmax_rows", "implicit_total", "unshared grad_weights"), []
    for before in ("0", "7"):
        command = [sys.executable, "-c", ANYWHERE, before, *families]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        found.append(sorted(done.stdout.splitlines()))
    assert found[0] == found[1] and len(found[0]) == len(families)


def test_nvvm_makes_one_code_of_the_sampler() -> None:
    """Of sums of three addresses NVVM hoisted two shifts in either order, one time in six, from the very same LLVM code."""
    kernel = next(k for k in all_kernels() if k.name.startswith("spatial_sampler planes float32"))
    assert len({kernel.ptx((9, 0, "a")) for _ in range(8)}) == 1


def test_numba_is_as_it_was_after_a_kernel_is_compiled() -> None:
    replaced = _compile._replacements()
    before = [vars(owner)[name] for owner, name, _ in replaced]
    with pytest.raises(ZeroDivisionError), _compile.quick():
        assert all(vars(owner)[name] is new for owner, name, new in replaced)
        assert not gc.isenabled()
        raise ZeroDivisionError
    assert all(vars(owner)[name] is old for (owner, name, _), old in zip(replaced, before, strict=True))
    assert not any(old is new for (_, _, new), old in zip(replaced, before, strict=True))
    assert gc.isenabled()


def test_kernels_are_loaded_together_and_compiled_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    families = ("pool_tiles float32", "implicit_total float32", "transpose 4", "fill float32")
    kernels = [next(k for k in all_kernels() if k.name.startswith(f)) for f in families]
    alone = [kernel.ptx((9, 0, "a")) for kernel in kernels]
    compiled: dict[str, str] = {}

    def assemble(ptx: str, arch: str) -> _assemble.Assembled:
        entry = re.findall(r"\.entry (\w+)", ptx)[0]
        assert entry not in compiled
        compiled[entry] = ptx
        return _assemble.Assembled(entry.encode(), "nobody", "")

    monkeypatch.setattr(_launch, "assemble", assemble)
    monkeypatch.setattr(_launch, "_loaded", {})
    monkeypatch.setattr(_launch, "_load", lambda binary: len(binary.image))
    monkeypatch.setattr(_launch, "ensure_context", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(_launch._driver, "compute_capability", lambda device: (9, 0))
    monkeypatch.setattr(_launch, "_folder", tmp_path / "kernels")
    kernels[0].load(0)
    _launch._loaded.clear()  # another process, that finds one on disk
    _launch.load_together(0, *kernels)
    assert [compiled[kernel.entry] for kernel in kernels] == alone
    assert [kernel.load(0) for kernel in kernels] == [len(kernel.entry) for kernel in kernels]


KEPT = """
import ctypes, gc
class Info(ctypes.Structure):
    _fields_ = [(n, ctypes.c_size_t) for n in "a b c d mapped e f used g h".split()]  # mallinfo2(3)
info = ctypes.CDLL(None).mallinfo2
info.restype = Info
from numbadnn.kernels import all_kernels
for kernel in [k for k in all_kernels() if k.name.startswith("implicit_tiles float32")][:3]:
    gc.collect()
    before = info().used + info().mapped
    kernel.ptx((9, 0, "a"))
gc.collect()
print(info().used + info().mapped - before)
"""


@pytest.mark.slow
def test_what_a_compilation_learns_is_not_kept() -> None:
    """The first loads Numba; each further one would keep all types it met, 3.5 MB for this kernel."""
    environment = {**os.environ, "PYTHONMALLOC": "malloc", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", KEPT], capture_output=True, text=True, check=True, env=environment)
    assert int(done.stdout) < 1 << 20


def test_names_are_unique() -> None:
    names = [kernel.entry for kernel in all_kernels()]
    assert len(set(names)) == len(names)


@needs_ptxas
def test_ptxas_says_why_it_refuses() -> None:
    with pytest.raises(NumbaDNNError, match=r"Missing \.version"):
        _assemble.by_ptxas("nothing", "sm_90a", PTXAS)


def test_nvjitlink_assembles_too() -> None:
    pytest.importorskip("cuda.bindings.nvjitlink", reason="cuda.bindings is not installed")
    kernel = next(all_kernels())
    made = _assemble.by_nvjitlink(kernel.ptx((9, 0, "a")), "sm_90a")
    assert made.image.startswith(b"\x7fELF")
    assert made.by.startswith("nvJitLink")
    with pytest.raises(NumbaDNNError, match="nvJitLink"):
        _assemble.by_nvjitlink("nothing", "sm_90a")


def test_without_an_assembler_the_driver_gets_the_ptx(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(ptx: str, arch: str) -> _assemble.Assembled:
        raise ImportError("no nvJitLink")

    monkeypatch.setattr(_assemble, "find_ptxas", lambda: "")
    monkeypatch.setattr(_assemble, "by_nvjitlink", refuse)
    made = _assemble.assemble("some ptx", "sm_90a")
    assert (made.image, made.by, made.log) == (b"some ptx\0", "driver", "no nvJitLink")
