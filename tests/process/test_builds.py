"""Builds on disk: found again for the same code, types and flags, by any process; else compiled, and kept where that can be."""

from __future__ import annotations

import compileall
import contextlib
import errno
import os
import pickle
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from folders import ROOT

import numbadnn
from numbadnn.call import info
from numbadnn.host import builds, private, sources
from numbadnn.host import files as stored
from numbadnn.host.builds import compiled
from numbadnn.host.hostcall import kept
from numbadnn.kept import machine
from numbadnn.kernels.build import cache


def body(x):
    return x + 1


def hits(build) -> int:
    return sum(build.stats.cache_hits.values())


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with numbadnn.using(cache_dir=tmp_path):
        yield tmp_path / "builds"


@contextlib.contextmanager
def warns_once(monkeypatch: pytest.MonkeyPatch, text: str) -> Iterator[None]:
    """Inside, there is one warning that compiled code is not kept, at a line of this file."""
    monkeypatch.setattr(private, "_said", set())
    with pytest.warns(RuntimeWarning, match=re.escape(text)) as caught:
        yield
    assert [warning.filename for warning in caught] == [__file__]


def flipped(whole: bytes, part: float) -> bytes:
    """One bit is another."""
    at = int(len(whole) * part)
    return whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]


def python(code: str, folder: Path, **environment: str) -> subprocess.Popen[str]:
    environment = os.environ | {"NUMBADNN_CACHE_DIR": str(folder)} | environment
    return subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)


def test_a_damaged_file_is_replaced(folder: Path) -> None:
    kept("int64(int64)")(body)
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    for left in (b"", whole[:-1], b"\x80garbage", bytes(len(whole)), *(flipped(whole, i / 9) for i in range(9))):
        file.write_bytes(left)
        build = kept("int64(int64)")(body)
        assert build(41) == 42 and hits(build) == 0
        again = kept("int64(int64)")(body)
        assert again(41) == 42 and hits(again) == 1


def test_code_under_another_builds_name_is_not_believed(folder: Path) -> None:
    for signature in ("int64(int64)", "float64(float64)"):
        kept(signature)(body)
    first, second = folder.iterdir()
    first.write_bytes(second.read_bytes())
    second.write_bytes(first.read_bytes())
    builds = [kept("int64(int64)")(body), kept("float64(float64)")(body)]
    assert [type(b(41)) for b in builds] == [int, float] and sum(map(hits, builds)) == 1


def test_code_of_other_sources_is_not_believed(folder: Path) -> None:
    compiled(body, "old")(41)
    (old,) = folder.iterdir()
    compiled(body, "new")(41)
    (new,) = set(folder.iterdir()) - {old}
    new.write_bytes(old.read_bytes())
    build = compiled(body, "new")
    assert build(41) == 42 and hits(build) == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [("DEBUGINFO", "1"), ("OPT", "1"), ("BOUNDSCHECK", "1"), ("LOOP_VECTORIZE", "0"), ("SLP_VECTORIZE", "1")],
)
def test_code_of_other_flags_is_not_believed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    kept("int64(int64)")(body)
    with monkeypatch.context() as patch:
        patch.setenv(f"NUMBA_{name}", value)
        build = kept("int64(int64)")(body)
        assert build(41) == 42 and hits(build) == 0
    assert hits(kept("int64(int64)")(body)) == 1


def test_code_is_found_whether_pyyaml_is_installed_or_not(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from numba.core import config

    kept("int64(int64)")(body)
    monkeypatch.setattr(config, "_HAVE_YAML", not config._HAVE_YAML)
    assert hits(kept("int64(int64)")(body)) == 1


def test_code_of_other_options_or_enclosed_values_is_not_believed(folder: Path) -> None:
    def adder(n):
        return lambda x: x + n

    assert [compiled(adder(n), "same", fastmath=fast)(40) for n in (1, 2) for fast in (False, True)] == [41, 41, 42, 42]
    assert len(list(folder.iterdir())) == 4
    again = compiled(adder(2), "same", fastmath=True)
    assert again(40) == 42 and hits(again) == 1


def refuse(monkeypatch: pytest.MonkeyPatch, name: str, number: int) -> None:
    def refused(*args: object, **named: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(name, refused)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_disk_that_refuses_stops_nothing_and_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    why = f"{folder} cannot be written: {os.strerror(number)}: make room there, or set NUMBADNN_CACHE_DIR"
    for name in ("tempfile.mkstemp", "os.replace"):
        with monkeypatch.context() as patch:
            refuse(patch, name, number)
            with warns_once(monkeypatch, why):
                assert [kept("int64(int64)")(body)(41) for _ in range(2)] == [42, 42]
            assert os.strerror(number) in cache.write(folder, "key", cache.Binary(b"code", "entry", "ptxas"))
        assert not list(folder.iterdir())
    kept("int64(int64)")(body)
    assert hits(kept("int64(int64)")(body)) == 1


def test_what_a_process_lacks_for_a_moment_is_not_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private, "_said", set())
    refuse(monkeypatch, "tempfile.mkstemp", errno.EMFILE)
    assert kept("int64(int64)")(body)(41) == 42 and not list(folder.iterdir())


def test_shims_of_processes_that_begin_together_in_a_damaged_folder(tmp_path: Path) -> None:
    """And of one that has another number of threads."""
    code = (
        "from numbadnn.kernels.build import shim as _shim\n"
        "from numbadnn.cudnn import _compiled as graph\n"
        "builds = [_shim.launch_shim, graph.execute_plan]\n"
        "print(sum(sum(b.stats.cache_hits.values()) for b in builds))"
    )
    for damaged in (False, True):
        for file in tmp_path.rglob("*.build"):
            file.write_bytes(file.read_bytes()[: 100 if damaged else None])
        together = [python(code, tmp_path), python(code, tmp_path)]
        assert [p.communicate()[1] or p.returncode for p in together] == [0, 0]
        alone = python(code, tmp_path, NUMBA_NUM_THREADS="1")
        assert alone.communicate()[0] == "2\n" and alone.returncode == 0


# ---- where they lie


class Payload:
    """Unpickled, it leaves a mark."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o777, 0o1777])
def test_nothing_is_read_from_a_folder_that_others_may_use(
    folder: Path, tmp_path: Path, mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept("int64(int64)")(body)
    (file,) = folder.iterdir()
    private.write(file, builds._FORMAT, file.stem, pickle.dumps(Payload(tmp_path / "mark")))
    folder.chmod(mode)
    with warns_once(monkeypatch, "mode 0700: make room there, or set NUMBADNN_CACHE_DIR"):
        assert compiled(body, "any")(41) == 42 and kept("int64(int64)")(body)(41) == 42
    assert list(folder.iterdir()) == [file] and not (tmp_path / "mark").exists()
    folder.chmod(0o700)
    kept("int64(int64)")(body)
    assert (tmp_path / "mark").exists()  # that is, the payload would have worked


def test_what_another_user_made_is_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept("int64(int64)")(body)
    monkeypatch.setattr(os, "getuid", lambda: folder.stat().st_uid + 1)
    with warns_once(monkeypatch, "mode 0700"):
        assert hits(kept("int64(int64)")(body)) == 0


def test_a_folder_of_numba_that_users_share_gives_each_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    tmp_path.chmod(0o1777)
    with numbadnn.using(cache_dir=None):
        kept("int64(int64)")(body)
        assert hits(kept("int64(int64)")(body)) == 1
    (own,) = tmp_path.iterdir()
    assert own.name == f"numbadnn-{os.getuid()}" and own.stat().st_mode & 0o777 == 0o700


def test_without_a_home_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as where neither HOME nor a user's entry is
    with numbadnn.using(cache_dir=None):
        with warns_once(monkeypatch, "this user has no home folder"):
            assert compiled(body, "any")(41) == 42
        assert set(info.kept().values()) == {"nowhere: this user has no home folder"}
        with stored.lock_file(machine.lock_name(-1)), stored.lock_folder(tmp_path):
            pass
    assert not list(tmp_path.iterdir())


def test_locks_lie_where_nobody_else_can_hold_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    lock = machine.lock_name(-1)
    assert not lock.is_relative_to(tempfile.gettempdir()) or lock.is_relative_to(tmp_path)
    with stored.lock_file(lock):
        assert lock.exists() and lock.parent.stat().st_mode & 0o777 == 0o700
    lock.unlink()
    lock.parent.chmod(0o777)
    with stored.lock_file(lock):  # what others may hold is not waited for
        assert not lock.exists()
    lock.parent.chmod(0o700)
    lock.mkdir()
    with stored.lock_file(lock):
        pass
    with numbadnn.using(cache_dir=tmp_path / "own"):  # in a home that cannot be written to
        monkeypatch.setenv("XDG_CACHE_HOME", os.devnull)
        assert machine.lock_name(-1).parent == tmp_path / "own" / "locks"


def test_the_page_on_security_names_what_is_executed() -> None:
    page = (ROOT / "SECURITY.md").read_text()
    assert builds._FORMAT in page and cache._FORMAT in page
    for folder in ("builds", "kernels", "locks", "choices", "errata"):
        assert f"`{folder}`" in page


# ---- names


def renamed(file: Path, old: bytes, new: bytes) -> None:
    """A name in the machine code of a build is another of the same length."""
    key = file.stem
    head, image = private.read(file, builds._FORMAT, key) or pytest.fail("no build")
    (name, kind, (code, bitcode)), *rest = pickle.loads(image)
    assert code.count(old) >= 1 and len(old) == len(new)
    made = pickle.dumps(((name, kind, (code.replace(old, new), bitcode)), *rest))
    private.write(file, builds._FORMAT, key, made, function=head["function"])


UNKNOWN = """
import math
from numbadnn.host.builds import compiled
build = compiled(lambda x: math.erf(x), "any")
print(build(0.0), *build.stats.cache_hits.values())
"""


def test_a_build_that_calls_what_the_process_lacks_is_compiled_anew(tmp_path: Path) -> None:
    """LLVM would end the process."""
    assert in_turn(UNKNOWN, tmp_path, (), ()) == ["0.0\n", "0.0 1\n"]
    (file,) = (tmp_path / "builds").iterdir()
    renamed(file, b"\0erf\0", b"\0eRf\0")
    assert in_turn(UNKNOWN, tmp_path, (), ()) == ["0.0\n", "0.0 1\n"]


def symbols(image: bytes) -> Iterator[tuple[str, bytes]]:
    """(name, body) of what a 64-bit ELF object defines for others."""
    (start,), (count,) = struct.unpack_from("<Q", image, 40), struct.unpack_from("<H", image, 60)
    sections = [struct.unpack_from("<IIQQQQIIQQ", image, start + 64 * i) for i in range(count)]
    for table in (s for s in sections if s[1] == 2):
        for at in range(table[4], table[4] + table[5], 24):
            text, about, _, section, value, size = struct.unpack_from("<IBBHQQ", image, at)
            if section and about >> 4:  # defined, and not local
                begin = sections[table[6]][4] + text
                place = sections[section][4] + value if section < count else 0
                yield image[begin : image.index(b"\0", begin)].decode(), image[place : place + size]


def shared_names(folder: Path) -> dict[str, set[bytes]]:
    """Name -> bodies, of all that the builds in a folder define for others; each name holds its build's key."""
    found: dict[str, set[bytes]] = {}
    for file in folder.glob("*.build"):
        ((_, _, (image, _)), *_) = pickle.loads(file.read_bytes().split(b"\n", 1)[1])
        for name, code in symbols(image):
            assert file.stem in name, f"{name} has no part that follows what it is made of"
            found.setdefault(name, set()).add(code)
    return found


NORM = """
import sys, numpy as np, ml_dtypes, numba, numbadnn
first, *names = sys.argv[1:]
for i in range(int(first)):
    numba.njit(eval(f"lambda x: x + {i}"))(1)
for name in names:
    g = np.random.default_rng(0)
    x = np.broadcast_to(g.standard_normal((4, 1, 1, 8)).astype(name), (4, 1, 7, 8))
    p = [np.abs(g.standard_normal((1, 1, 7, 8))).astype("f4") for _ in range(4)]
    y = numbadnn.batch_normalization_test(x, *p, "per-activation", 1e-5).astype("f8")
    f = [a.astype("f8") for a in (x, *p)]
    want = (f[0] - f[3]) * f[1] / np.sqrt(f[4] + 1e-5) + f[2]
    assert np.abs(y - want).max() < 0.01 * np.abs(want).max(), name
"""
FUZZ = """
import sys, numba
from numbadnn.cpu.lang import parallel as _parallel
from numbadnn.validate.fuzz.garbage import run_once
for i in range(int(sys.argv[1])):
    numba.njit(eval(f"lambda x: x + {i}"))(1)
for number in sys.argv[2:]:
    run_once(int(number), 2, -1)
builds = [b for k in _parallel._kernels.values() for b in (k._serial, k._parallel) if b is not None]
print(sum(sum(b.stats.cache_misses.values()) for b in builds), "compiled")
"""


def in_turn(code: str, folder: Path, *calls: tuple[object, ...]) -> list[str]:
    """What each of several processes printed, one after the other."""
    environment, printed = os.environ | {"NUMBADNN_CACHE_DIR": str(folder)}, []
    for call in calls:
        command = [sys.executable, "-c", code, *map(str, call)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout)
    return printed


@pytest.mark.slow(40)
def test_builds_of_processes_with_other_counters_are_not_mixed_up(tmp_path: Path) -> None:
    """One factory's inner functions had one name in two builds: whichever was loaded first ran for both."""
    in_turn(NORM, tmp_path, (0, "float16"), (13, "bfloat16"), (0, "bfloat16", "float16"), (0, "float16", "bfloat16"))
    names = shared_names(tmp_path / "builds")
    assert len(names) >= 8 and all(len(bodies) == 1 for bodies in names.values())


@pytest.mark.slow(60)
def test_builds_of_random_calls_are_not_mixed_up(tmp_path: Path) -> None:
    *_, last = in_turn(FUZZ, tmp_path, (0, 1, 2), (13, 3, 2), (5, 3, 1))
    assert last == "0 compiled\n"
    names = shared_names(tmp_path / "builds")
    assert len(names) > 20 and all(len(bodies) == 1 for bodies in names.values())


RAISES = """
import sys, numba
from numbadnn.host.builds import compiled
@numba.njit
def raises(x):
    if x > 40:
        raise ValueError("more than", x)
    return x
def calls(x):
    return raises(x)
for i in range(int(sys.argv[1])):
    numba.njit(eval(f"lambda x: x + {i}"))(1)
build = compiled(calls, "any")
try:
    build(41)
except ValueError as error:
    print(error.args, *build.stats.cache_hits.values())
"""


def test_a_build_that_reads_objects_of_python_finds_them(tmp_path: Path) -> None:
    """Numba finds them by a name that the counter is in too."""
    assert in_turn(RAISES, tmp_path, (0,), (3,)) == ["('more than', 41)\n", "('more than', 41) 1\n"]


PARALLEL = """
import sys, numba, numpy as np
from numbadnn.cpu.lang.parallel import Kernel
def doubled(x, threads):
    for i in numba.prange(threads):
        for j in range(i, x.size, threads):
            x[j] = 2 * x[j]
for i in range(int(sys.argv[1])):
    numba.njit(eval(f"lambda x: x + {i}"))(1)
kernel, x = Kernel(doubled), np.arange(9.0)
kernel(2, x)
print(np.array_equal(x, 2 * np.arange(9.0)), *kernel._parallel.stats.cache_hits.values())
"""


def test_a_build_for_several_threads_is_kept(tmp_path: Path) -> None:
    """It was not, for the body of a ``prange`` has a module without a name: each process compiled all of them anew."""
    assert in_turn(PARALLEL, tmp_path, (0,), (3,)) == ["True\n", "True 1\n"]


def test_arrays_that_a_body_encloses_are_part_of_the_key(folder: Path) -> None:
    def reader(table):
        return lambda i: table[i]

    assert [compiled(reader(np.array([n, 2])), "any")(0) for n in (1, 5, 1)] == [1, 5, 1]
    assert len(list(folder.iterdir())) == 2


# ---- without sources


PACKAGE = {
    "__init__.py": "",
    "a.py": "A = 1",
    "below/__init__.py": "",
    "below/b.py": "def f():\n    return frozenset('abc')",
}
DIGEST = """
import sys; sys.path.insert(0, sys.argv[1])
import pack; from numbadnn.host import sources; print(sources.package("pack"))
"""
FROZEN = """
import sys
from importlib.machinery import PathFinder
class Loader:
    def __init__(self, real): self.real = real
    def create_module(self, spec): return None
    def exec_module(self, module): exec(self.get_code(module.__name__), module.__dict__)
    def get_code(self, name): return self.real.get_code(name)
def froze(find):
    def found(self, name, target=None):
        spec = find(self, name, target)
        if spec and name.startswith("pack"):
            spec.loader, spec.has_location = Loader(spec.loader), False
        return spec
    return found
from importlib.machinery import FileFinder
FileFinder.find_spec = froze(FileFinder.find_spec)
"""


def digest(folder: Path, *, zipped: bool = False, bytecode: bool = False, frozen: bool = False) -> str:
    """Of ``pack`` in a folder, as another process sees it."""
    place = folder.parent / "place"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(folder, place / "pack")
    if bytecode:
        compileall.compile_dir(place, legacy=True, quiet=1)
        for file in place.rglob("*.py"):
            file.unlink()
    if zipped:
        shutil.make_archive(str(place / "app"), "zip", place, "pack")
        shutil.rmtree(place / "pack")
    command = [sys.executable, "-c", (FROZEN if frozen else "") + DIGEST, str(place / "app.zip" if zipped else place)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    "how", [{}, {"zipped": True}, {"bytecode": True}, {"zipped": True, "bytecode": True}, {"frozen": True}]
)
def test_the_digest_of_a_package_follows_its_code(tmp_path: Path, how: dict[str, bool]) -> None:
    folder = tmp_path / "sources"
    for name, text in PACKAGE.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        os.utime(file, (10**9, 10**9))
    found = [digest(folder, **how), digest(folder, **how)]
    changed = folder / "below" / "b.py"
    changed.write_text(PACKAGE["below/b.py"].replace("abc", "abd"))
    os.utime(changed, (10**9, 10**9))
    found.append(digest(folder, **how))
    assert found[0] == found[1] != found[2] and all(len(f) == 65 for f in found)


@pytest.mark.parametrize("name", ["numbadnn.cpu", "numbadnn.kernels"])
def test_no_file_is_left_out_of_the_digest(name: str) -> None:
    import importlib

    (place,) = importlib.import_module(name).__path__
    read = {content for _, content in sources._package(name)}
    assert {f.read_bytes() for f in Path(place).rglob("*.py")} == read and len(sources.package(name)) == 64


@pytest.mark.skipif(os.name != "posix", reason="needs symbolic links")
def test_links_that_lead_nowhere_are_not_in_the_digest_or_forbid_it(tmp_path: Path) -> None:
    """An editor locks ``a.py`` by such a link of another name; one without end is no reason for a call to fail."""
    (tmp_path / "a.py").write_text("A = 1")
    (tmp_path / ".#a.py").symlink_to("user@host.1")
    assert list(sources._files(str(tmp_path), "pack.")) == [("pack.a.py", b"A = 1")]
    (tmp_path / "below").symlink_to("below")
    assert None in [content for _, content in sources._files(str(tmp_path), "pack.")]
