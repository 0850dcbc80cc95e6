"""A process that finds all on disk computes on device arrays without importing Numba, by keys that Numba's settings are in."""

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import numbadnn
from numbadnn.host import images, kept_images, sources
from numbadnn.host.entry import entry
from numbadnn.kernels.build import support

pytestmark = pytest.mark.skipif(not images.possible(), reason="images are kept for 64-bit x86 under Linux")

PROGRAM = Path(__file__).parents[1] / "support" / "first_call.py"
KERNELS = {"implicit_tables", "implicit_tiles", "implicit_total", "softmax", "pool", "gemm", "fill", "rnn"}


def first_calls(folder: Path, *how: str) -> Any:
    environment = os.environ | {"NUMBADNN_VERBOSE": "quiet", "NUMBADNN_CACHE_DIR": str(folder)}
    done = subprocess.run(
        [sys.executable, str(PROGRAM), *how], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A folder with all that first calls need, and the launches of the process that filled it."""
    if importlib.util.find_spec("numba_cuda") is None:
        pytest.skip("numba_cuda is not installed")
    folder = tmp_path_factory.mktemp("kept")
    folder.chmod(0o700)
    packages, launches = first_calls(folder, "plain", "--compile")
    assert packages == ["llvmlite", "numba", "numba_cuda", "scipy"]
    assert all(any(name in one[0] for one in launches) for name in KERNELS)
    return folder, launches


@pytest.mark.slow(10)
@pytest.mark.parametrize("arrays", ["plain", "torch"])
def test_first_calls_on_device_arrays_import_neither_numba_nor_llvmlite_nor_scipy(kept: Any, arrays: str) -> None:
    """A convolution, softmax, pooling and an LSTM; on PyTorch's tensors too, by the same kernels."""
    if arrays == "torch":
        pytest.importorskip("torch")
    folder, launches = kept
    assert first_calls(folder, arrays) == [[], launches]


@pytest.mark.slow(10)
def test_where_anything_is_missing_numba_is_imported(kept: Any) -> None:
    """The word that Numba can be had, a compiled function, a kernel."""
    folder, launches = kept
    for pattern, packages in (
        ("*.imported", {"numba", "numba_cuda"}),
        ("*.image", {"numba"}),
        ("*.kernel", {"numba", "numba_cuda"}),
    ):
        for path in folder.rglob(pattern):
            path.unlink()
        imported, found = first_calls(folder, "plain", "--compile")
        assert packages <= set(imported) and found == launches
    assert first_calls(folder, "plain") == [[], launches]  # all is there again


def in_a_process(code: str, **settings: str) -> Any:
    environment = os.environ | {"NUMBADNN_VERBOSE": "quiet"} | settings
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


FLAGS = """
import json, sys
from numbadnn.host import sources
alone, without = sources.flags(cuda=True), "numba" not in sys.modules
import numba.cuda
same = sources.flags(cuda=True) == alone
found = [alone, without, same]
for name, value in (("OPT", 0), ("CUDA_DEBUGINFO_DEFAULT", 1), ("BOUNDSCHECK", 1), ("NUMBA_NUM_THREADS", 1)):
    before = getattr(numba.config, name)
    setattr(numba.config, name, value)
    found.append(sources.flags(cuda=True) == alone)
    setattr(numba.config, name, before)
print(json.dumps([*found, sources.flags(cuda=True) == alone]))
"""


def test_keys_of_kernels_are_the_same_with_numba_and_without_it_but_for_what_a_program_sets() -> None:
    pytest.importorskip("numba.cuda")
    plain = in_a_process(FLAGS)
    optimised = in_a_process(FLAGS, NUMBA_OPT="1", NUMBA_CUDA_DEBUGINFO="1")
    threads = in_a_process(FLAGS, NUMBA_NUM_THREADS="1", NUMBA_CUDA_LOG_LEVEL="INFO")
    for found in (plain, optimised, threads):
        assert found[1:] == [True, True, False, found is optimised, False, True, True]
    assert plain[0] == threads[0] != optimised[0]


def test_what_knows_cudnns_numbers_is_imported_where_cudnn_is_asked() -> None:
    """Choosing between own kernels and cuDNN asks for none of them."""
    code = """
import json, sys
from numbadnn.registry import implementations
found = {i.name for i in implementations("conv2d", ["cudnn", "numba"])}
ours = [m for m in sys.modules if m.startswith("numbadnn.cudnn.")]
print(json.dumps([sorted(found & {"cudnn.graph", "cudnn.algorithms"}), ours]))
"""
    names, modules = in_a_process(code)
    assert names == ["cudnn.algorithms", "cudnn.graph"] and "numbadnn.cudnn.conv" in modules
    assert not {"numbadnn.cudnn._enums", "numbadnn.cudnn._conv_calls", "numbadnn.cudnn.algorithms"} & set(modules)


def test_a_file_of_settings_is_read_by_numba(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("yaml", reason="PyYAML is not installed: Numba reads no file of settings")
    before = sources.flags(cuda=True)
    monkeypatch.chdir(tmp_path)
    (tmp_path / sources.NUMBAS_FILE).write_text("opt: '1'\n")
    found = sources.flags(cuda=True)
    assert found != before and "OPT=" in found
    monkeypatch.chdir("/")
    assert sources.flags(cuda=True) == before


def test_numba_makes_the_same_of_what_is_left_out_of_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every variable that Numba reads and that is no part of a key: no setting that code depends on follows from it."""
    import numba

    names = set(re.findall(r"NUMBA_[A-Z_0-9]+", Path(numba.config.__file__).read_text()))
    left_out = {name for name in names if not sources.is_of_code(name[6:])}
    assert len(left_out) > 20 and "NUMBA_ENABLE_PROFILING" not in left_out  # of which debugging information follows
    for name in names:
        monkeypatch.delenv(name, raising=False)
    plain = sources._spelled(sources._of_environment(()))
    for name in left_out:
        for value in ("0", "1"):
            with monkeypatch.context() as patch:
                patch.setenv(name, value)
                assert sources._spelled(sources._of_environment(((name, value),))) == plain, name
    monkeypatch.setenv("NUMBA_ENABLE_PROFILING", "1")
    assert sources._spelled(sources._of_environment((("NUMBA_ENABLE_PROFILING", "1"),))) != plain


SHIMS = """
import ctypes, json, sys
from numbadnn.host.entry import address_of, entry
from numbadnn.cudnn import _call, _shim
here = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_uint64))(lambda target: target.__setitem__(0, 7) or 0)
calls = []
function = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)(lambda *given: calls.append(given) or 3)
address = lambda found: ctypes.cast(found, ctypes.c_void_p).value
words = (11, _call.POINTER[1], 12, _call.POINTER[0])
codes = []
for context in (7, 8):
    table = _call.table_of(address(here), context, address(function), words)
    codes.append(entry(_shim.COMPILED, "call_c")(ctypes.addressof(table), 21, 22, *[0] * 6))
entry(_shim.COMPILED, "execute_plan")
many = entry("numbadnn.kernels.build.shim", "launch_shim_of_many")
one = entry(_shim.COMPILED, "call_c")
for called, bad in ((one, (1,)), (one, (1,) * 10), (one, ("x",) * 9), (many, (0, 0, (1, 2))), (many, (0, 0, 1))):
    try:
        called(*bad)
    except Exception as error:
        codes.append(type(error).__name__)
print(json.dumps([codes, calls, "numba" in sys.modules]))
"""


def test_compiled_functions_that_call_cudnn_need_no_numba(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    first, second = (in_a_process(SHIMS, NUMBADNN_CACHE_DIR=str(tmp_path)) for _ in range(2))
    assert first[2] and not second[2]
    refused = ["TypeError", "TypeError", "ValueError", "IndexError", "SystemError"]
    assert first[:2] == second[:2] == [[(8 << 32) + 3, -1, *refused], [[11, 22, 12, 21]]]


@pytest.fixture
def unknown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], str]:
    """``compiler_reason`` of a new process with an empty folder, where numba-cuda cannot be imported."""
    tmp_path.chmod(0o700)
    monkeypatch.setattr(support.files, "builds_folder", lambda: tmp_path)

    def fail(cuda: bool = False) -> None:
        raise ImportError("broken")

    monkeypatch.setattr(support, "load_numba", fail)

    def ask() -> str:
        monkeypatch.setattr(support, "_importable", False)
        return support.compiler_reason()

    return ask


def test_numba_cuda_is_believed_to_be_there_once_it_was(
    unknown: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert unknown() == unknown() == "numba-cuda cannot be imported: broken"
    with monkeypatch.context() as patch:
        patch.setattr(support, "load_numba", lambda cuda: None)
        assert unknown() == ""
    assert (unknown() == "") is bool(support._versions())
    installed = kept_images.installed
    monkeypatch.setattr(kept_images, "installed", lambda name: installed(name) and installed(name) + " newer")
    assert unknown() == "numba-cuda cannot be imported: broken"


def test_a_function_is_compiled_once_for_a_code_of_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setattr(kept_images.files, "builds_folder", lambda: tmp_path)
    package = sources.package
    for version in ("one", "other"):
        with monkeypatch.context() as patch:
            patch.setattr(sources, "package", lambda name, version=version: package(name) + version)
            kept_images._fixed.cache_clear()
            for _ in range(2):
                entry.__wrapped__("numbadnn.kernels.build.shim", "launch_shim")
    kept_images._fixed.cache_clear()
    assert len(list(tmp_path.glob("*.image"))) == 2


def for_the_device(module: str) -> bool:
    """Whether a module imports Numba, or is one of those that do."""
    parts = module.split(".")
    return parts[0] in ("numba", "llvmlite") or (
        parts[:2] == ["numbadnn", "kernels"] and ("device" in parts or "lang" in parts)
    )


def imports_outside_build(tree: ast.AST) -> Iterator[str]:
    """The modules that are imported by a module or by its functions, those called ``build`` left out: they compile."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{name.name}" for name in node.names)
        elif not (isinstance(node, ast.FunctionDef) and node.name == "build"):
            yield from imports_outside_build(node)


def test_a_plan_of_kernels_imports_no_module_that_imports_numba() -> None:
    """Not to know a tile's size either: what both sides know is in modules of the host."""
    root = Path(numbadnn.__file__).parent / "kernels"
    hosts = [
        p
        for p in root.rglob("*.py")
        if p.relative_to(root).parts[0] not in ("build", "lang") and "device" not in p.parts
    ]
    found = {
        str(p): [name for name in imports_outside_build(ast.parse(p.read_text())) if for_the_device(name)]
        for p in hosts
    }
    assert len(hosts) > 80 and not {name: names for name, names in found.items() if names}


ON_GPU = """
import hashlib, json, sys
import torch, numbadnn
torch.manual_seed(0)
before, block = set(sys.modules), numbadnn.RNNBlock("float32", 64, 1, "lstm")
shapes = [(8, 64, 28, 28), (64, 64, 3, 3), (512, 1000), (block.get_param_size((8, 64)),), (5, 8, 64), (1, 8, 64), (1, 8, 64)]
x, w, wide, *states = (torch.randn(s).cuda() * 0.1 for s in shapes)
made = [numbadnn.conv2d(x, w), numbadnn.softmax(wide), numbadnn.pool(x, (2, 2)), *block.apply(*states)]
bits = hashlib.sha256(b"".join(y.cpu().numpy().tobytes() for y in made)).hexdigest()
new = {n.partition(".")[0] for n in set(sys.modules) - before}
print(json.dumps([bits, sorted(new & {"numba", "numba_cuda", "llvmlite", "scipy"})]))
"""


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["auto", "numba", "cudnn"])
def test_on_a_gpu_the_second_process_has_the_same_bits_without_numba(backend: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    tmp_path.chmod(0o700)
    settings = {"NUMBADNN_CACHE_DIR": str(tmp_path)} | ({} if backend == "auto" else {"NUMBADNN_BACKEND": backend})
    first, second = (in_a_process(ON_GPU, **settings) for _ in range(2))
    assert "numba" in first[1] and second == [first[0], []]
