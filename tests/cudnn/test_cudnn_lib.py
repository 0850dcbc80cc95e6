"""Finding and loading libcudnn: the places in order, the trail, wrong files, versions; handles and their pool."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from fake_cudnn import FakeCudnn
from folders import SUPPORT

from numbadnn import config, cudnn
from numbadnn.cudnn import _find, lib
from numbadnn.errors import BackendUnavailableError

WHEEL = [Path(f) / "lib" / _find.SONAME for f in _find.wheel_folders()]
needs_wheel = pytest.mark.skipif(not any(p.is_file() for p in WHEEL), reason="no cuDNN wheel is installed")


@pytest.fixture
def fresh(monkeypatch):
    """Nothing loaded, nothing mapped, no variables, no wheel."""
    monkeypatch.setattr(lib, "_LOADED", None)
    monkeypatch.setattr(lib, "_FAILED", {})
    monkeypatch.setattr(_find, "mapped", lambda *a, **k: [])
    monkeypatch.setattr(_find, "wheel_folders", lambda: [])
    for variable in ("NUMBADNN_CUDNN_LIBRARY", "CUDA_PATH", "CUDA_HOME", "LD_LIBRARY_PATH"):
        monkeypatch.delenv(variable, raising=False)
    return monkeypatch


def folder_with_library(root, name, text=""):
    folder = root / name
    folder.mkdir(parents=True)
    (folder / _find.SONAME).write_text(text)
    return folder


def test_places_in_order(fresh, tmp_path):
    wheel = folder_with_library(tmp_path, "wheel/lib").parent
    cuda = folder_with_library(tmp_path, "cuda/lib64").parent
    loader = folder_with_library(tmp_path, "ld")
    fresh.setattr(_find, "wheel_folders", lambda: [str(wheel)])
    fresh.setenv("CUDA_PATH", str(cuda))
    fresh.setenv("LD_LIBRARY_PATH", f"{tmp_path / 'empty'}:{loader}")
    found = [path for _, path in _find.places()]
    name = _find.SONAME
    assert [p for p in found if p] == [
        str(wheel / "lib" / name), str(cuda / "lib64" / name), str(loader / name), name
    ]  # fmt: skip
    assert found[0] is None, "nothing was mapped"
    assert list(_find.places("/my/lib.so")) == [("NUMBADNN_CUDNN_LIBRARY=/my/lib.so", "/my/lib.so")]
    fresh.setattr(_find, "mapped", lambda *a, **k: ["/mapped/libcudnn.so.9"])
    assert list(_find.places()) == [("already mapped in this process", "/mapped/libcudnn.so.9")]


def test_reading_the_memory_map(tmp_path):
    maps = tmp_path / "maps"
    head = "7f00-7f01 r-xp 0000 08:01 123   "
    names = [
        "/a b/libcudnn.so.9",
        "/a b/libcudnn_graph.so.9.1.0",
        "/c/libcudnn_frontend.py",
        "/c/libcudnnx.so",
        "[heap]",
    ]
    maps.write_text("\n".join(head + n for n in names) + "\n7f02-7f03 rw-p 0000 00:00 0\n")
    assert _find.mapped(str(maps)) == ["/a b/libcudnn.so.9"]
    assert len(_find.mapped(str(maps), every=True)) == 2
    assert _find.directories(str(maps)) == ["/a b"]
    maps.write_text(maps.read_text() + head + "/other/libcudnn_ops.so.9\n")
    assert _find.directories(str(maps)) == ["/a b", "/other"]


def test_a_mapped_name_need_not_be_utf8(tmp_path):
    maps = tmp_path / "maps"
    head = b"7f00-7f01 r-xp 0000 08:01 123   "
    maps.write_bytes(
        b"\n".join([head + b"/caf\xe9.bin", head + b"/b\xfcro/libcudnn.so.9", head + b"/a\x0b/libcudnn_ops.so.9"])
    )
    assert _find.mapped(str(maps)) == [os.fsdecode(b"/b\xfcro/libcudnn.so.9")]
    assert len(_find.mapped(str(maps), every=True)) == 2


@needs_wheel
def test_a_library_below_a_folder_that_is_not_utf8(tmp_path):
    """It is found, loaded and named, while a file of such a name is mapped; the command line shows what it can of the name."""
    folder = os.fsencode(tmp_path) + b"/caf\xe9"
    other = folder + b".bin"
    os.symlink(os.fsencode(WHEEL[0].parent), folder)
    with open(other, "wb") as file:
        file.write(bytes(4096))
    code = (
        "import mmap, sys, numbadnn\nfrom numbadnn.__main__ import main\n"
        "file = open(sys.argv[1], 'rb')\n"
        "kept = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)\n"
        "assert numbadnn.cudnn.available() and numbadnn.cudnn.version(raises=False) >= 90000\n"
        "main(['info'])"
    )
    environment = {"LD_LIBRARY_PATH": os.fsdecode(folder), "PYTHONUTF8": "1"}
    hidden = "import numbadnn.cudnn._find as f\nf.wheel_folders = lambda: []\n"
    printed = in_a_process(hidden + code, os.fsdecode(other), **environment)
    assert f"LD_LIBRARY_PATH: {tmp_path}/caf\\udce9: version 9" in printed


def test_installed_below_a_folder_that_is_not_utf8(tmp_path):
    """Numba cannot keep builds of such sources where NUMBA_CACHE_DIR says; they serve their process."""
    folder = os.fsencode(tmp_path) + b"/caf\xe9"
    os.mkdir(folder)
    os.symlink(os.path.dirname(os.fsencode(config.__file__)), folder + b"/numbadnn")
    code = (
        "import numbadnn.cudnn._compiled as c, os\nassert b'caf\\xe9' in os.fsencode(c.__file__)\n"
        "print(len(c.call_c.signatures))"
    )
    where = {"PYTHONPATH": os.fsdecode(folder), "PYTHONSAFEPATH": "1", "NUMBA_CACHE_DIR": str(tmp_path / "n")}
    assert in_a_process(code, **where) == "1"


def test_absent_everywhere_is_a_reason_with_the_trail(fresh, tmp_path):
    fresh.setattr(_find, "SONAME", "libcudnn_that_does_not_exist.so.9")
    fresh.setenv("LD_LIBRARY_PATH", str(tmp_path))
    state = cudnn.available()
    assert not state
    for place in (
        "already mapped",
        "wheel nvidia-cudnn",
        "CUDA_PATH",
        "CUDA_HOME",
        f"{tmp_path}: none",
        "system loader",
    ):
        assert place in state.reason, place
    assert cudnn.version(raises=False) == -1
    with pytest.raises(RuntimeError, match="no usable cuDNN 9 was found; `pip install nvidia-cudnn-cu12`"):
        cudnn.version()


def test_the_option_beats_the_environment(fresh):
    asked = []

    def found(explicit):
        asked.append(explicit)
        raise BackendUnavailableError("none")

    fresh.setattr(lib, "search", found)
    fresh.setenv("NUMBADNN_CUDNN_LIBRARY", "/a")
    with config.using(cudnn_library="/b"):
        assert not cudnn.available() and asked == ["/b"]
    assert not cudnn.available() and asked == ["/b", "/a"]
    fresh.delenv("NUMBADNN_CUDNN_LIBRARY")
    for mapped in (
        [],
        [],
        ["/c/libcudnn.so.8"],
        ["/c/libcudnn.so.8"],
    ):  # what others have brought since is looked for, once
        fresh.setattr(_find, "mapped", lambda *more, mapped=mapped, **named: mapped)
        assert not cudnn.available()
    assert asked[2:] == [None, None]
    fresh.setenv("NUMBADNN_CUDNN_LIBRARY", "/c")
    with config.using(cudnn_library=None):
        assert not cudnn.available() and asked[4:] == []


def test_a_file_that_is_no_library(fresh, tmp_path):
    path = tmp_path / "libcudnn.so.9"
    path.write_text("this is not a library")
    with pytest.raises(BackendUnavailableError, match="cannot be loaded") as caught:
        lib.load(str(path))
    assert f"NUMBADNN_CUDNN_LIBRARY={path}" in str(caught.value)
    fresh.setenv("NUMBADNN_CUDNN_LIBRARY", str(path))
    assert "cannot be loaded" in cudnn.available().reason


def test_a_library_that_is_not_cudnn(fresh):
    import _ctypes

    if not getattr(_ctypes, "__file__", "").endswith(".so"):
        pytest.skip("this Python has _ctypes built in")
    with pytest.raises(BackendUnavailableError, match="is not cuDNN: it has no cudnnGetVersion"):
        lib.load(_ctypes.__file__)


@pytest.mark.parametrize(
    ("version", "says"), [(8907, "is cuDNN 8 (version 8907)"), (100100, "is cuDNN 10"), (91900, "lacks a function")]
)
def test_another_major_version(fresh, tmp_path, version, says):
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    source = tmp_path / "v.c"
    source.write_text(f"unsigned long cudnnGetVersion(void) {{ return {version}; }}\n")
    library = tmp_path / "libcudnn.so.9"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    fresh.setattr(_find, "places", lambda explicit=None: iter([("here", str(library))]))
    with pytest.raises(BackendUnavailableError) as caught:
        lib.load()
    assert says in str(caught.value)


def test_never_a_second_libcudnn(fresh, tmp_path):
    mine = folder_with_library(tmp_path, "mine") / _find.SONAME
    fresh.setattr(_find, "mapped", lambda *a, **k: ["/torch/libcudnn.so.9"])
    with pytest.raises(BackendUnavailableError, match="not loaded: this process already uses /torch/libcudnn.so.9"):
        lib.load(str(mine))
    fresh.setattr(lib, "_LOADED", FakeCudnn().library)
    with pytest.raises(BackendUnavailableError, match=r"cuDNN is /fake/libcudnn.so.9 in this process"):
        lib.load(str(mine))


def test_parts_from_two_folders_are_refused(fresh):
    fresh.setattr(_find, "directories", lambda *a: ["/a", "/b"])
    with pytest.raises(BackendUnavailableError, match="several folders: /a, /b"):
        lib.check_single_folder()


@pytest.mark.parametrize("stated", [91900, 91800, None])
def test_version_is_compared_with_the_header_beside_the_library(fresh, tmp_path, stated):
    fake = FakeCudnn().library
    fake.path = str(tmp_path / "lib" / "libcudnn.so.9")
    fresh.setattr(lib, "_LOADED", fake)
    if stated:
        (tmp_path / "include").mkdir()
        lines = f"#define CUDNN_MAJOR 9\n#define CUDNN_MINOR {stated // 100 % 100}\n#define CUDNN_PATCHLEVEL 0\n"
        (tmp_path / "include" / "cudnn_version.h").write_text(lines)
    if stated == 91800:
        with pytest.raises(RuntimeError, match="is version 91900, but the cudnn_version.h beside it states 91800"):
            cudnn.version()
    else:
        assert cudnn.version() == 91900


# ---- the real library; a process of its own, for what is loaded cannot be unloaded -----------------------------------


def in_a_process(code, *arguments, **environment):
    kept = {k: v for k, v in os.environ.items() if k not in ("NUMBADNN_CUDNN_LIBRARY", "LD_LIBRARY_PATH")}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        env={**kept, **environment},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@needs_wheel
def test_the_wheel_is_found_and_its_version_agrees_with_its_headers():
    code = (
        "from numbadnn import cudnn\nfrom numbadnn.cudnn import lib, _find\n"
        "assert not _find.mapped(every=True)\n"
        "assert cudnn.available() and cudnn.version() >= 90000\n"
        "l = lib.load()\nassert len(_find.directories()) == 1\n"
        "assert l.version == _find.header_version(l.path)\n"
        "print(l.path, '|', l.trail[-1][0])"
    )
    path, place = in_a_process(code).split(" | ")
    assert Path(path) == WHEEL[0].resolve()
    assert place.startswith("wheel nvidia-cudnn-cu1")


@needs_wheel
def test_a_mapped_library_is_taken_before_the_variables(tmp_path):
    code = (
        f"import ctypes; ctypes.CDLL({str(WHEEL[0])!r})\n"
        "from numbadnn.cudnn import lib\nl = lib.load()\nprint(l.path, '|', l.trail[-1][0])"
    )
    path, place = in_a_process(code, LD_LIBRARY_PATH=str(tmp_path)).split(" | ")
    assert Path(path) == WHEEL[0].resolve()
    assert place == "already mapped in this process"


def test_importing_loads_nothing():
    code = (
        "import sys, numbadnn.cudnn.conv, numbadnn.cudnn.softmax\nfrom numbadnn.cudnn import _find\n"
        "heavy = [m for m in ('numba', 'llvmlite', 'cuda.bindings', 'scipy') if m in sys.modules]\n"
        "print(_find.mapped(every=True), heavy)"
    )
    assert in_a_process(code) == "[] []"


# ---- handles ---------------------------------------------------------------------------------------------------------


def test_one_handle_a_thread_and_device_and_back_to_the_pool(monkeypatch):
    fake = FakeCudnn().install(monkeypatch)
    mine = lib.handle(fake.library, 0)
    assert lib.handle(fake.library, 0) is mine
    assert lib.handle(fake.library, 1) is not mine

    def in_a_thread():
        out = []

        def work():
            held = lib.handle(fake.library, 0)
            held.set_stream(9)
            out.append(held.value)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        gc.collect()
        return out[0]

    first = in_a_thread()
    assert first != mine.value
    assert in_a_thread() == first, "the handle of the thread that ended serves the next"
    assert fake.names().count("cudnnCreate") == 3
    # the stream of the first thread may be gone, and its number in use again
    assert [c[2] for c in fake.calls if c[0] == "cudnnSetStream"] == [9, 9]


@pytest.mark.parametrize(("before_exit", "printed"), [("", "made"), ("del keep", "made destroyed")])
def test_nothing_is_destroyed_at_exit(before_exit, printed):
    code = f"""
import os, sys
sys.path.insert(0, {str(SUPPORT)!r})
from fake_cudnn import FakeCudnn
from numbadnn.cudnn import lib
from numbadnn.cudnn.graph import plan
from numbadnn.problem import Spec
fake = FakeCudnn()
fake.functions.cudnnBackendDestroyDescriptor = lambda pointer: os.write(1, b" destroyed")
keep = plan.tensor(fake.library, Spec.of("float32", (1, 1, 2, 2)), 1)
lib.handle(fake.library, 0)
os.write(1, b"made")
{before_exit}
"""
    assert in_a_process(code) == printed
