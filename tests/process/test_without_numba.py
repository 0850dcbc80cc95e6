"""A process that finds all on disk computes without importing Numba: the same bits, and nothing that is damaged or another's."""

import ast
import importlib
import itertools
import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from folders import ROOT

from numbadnn.cpu.lang import later, native
from numbadnn.host import images, kept_images, layer, private, sources

pytestmark = pytest.mark.skipif(not images.possible(), reason="images are kept for 64-bit x86 under Linux")

CALLS = """
import hashlib, json, os, sys, threading
import numpy as np, numbadnn
random = np.random.default_rng(0)
x, w, wide = (random.standard_normal(s).astype("f4") for s in ((2, 8, 30, 30), (16, 8, 3, 3), (16, 64)))
block = numbadnn.RNNBlock("float32", 8, 1, "lstm")
states = [random.standard_normal(s).astype("f4") for s in (block.get_param_size((2, 4)), (3, 2, 4), (1, 2, 8), (1, 2, 8))]
def compute():
    made = [numbadnn.conv2d(x[:, :, :6, :6], w), numbadnn.conv2d(x, w), numbadnn.softmax(wide), numbadnn.pool(x, (2, 2))]
    made += [numbadnn.pool_grad(x, made[3], made[3], (2, 2), mode=m) for m in ("max", "average_inc_pad")]
    return hashlib.sha256(b"".join(y.tobytes() for y in (*made, *block.apply(*states)))).hexdigest()
first = compute()
packages = sorted({n.split(".")[0] for n in sys.modules} & {"numba", "llvmlite", "scipy"})
if not packages:  # a plan of another shape reads none of Numba's settings, for which it would go through the environment
    from numbadnn.host import sources
    settings, sources.settings = sources.settings, None
    numbadnn.conv2d(x[:, :, :6, :5], w)
    sources.settings = settings
found = []
threads = [threading.Thread(target=lambda: found.append(compute())) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
if not (child := os.fork()):
    os._exit(compute() != first)
found.append(first if os.waitpid(child, 0)[1] == 0 else "another in a forked child")
import numba
found.append(compute())
print(json.dumps([first, packages, set(found) == {first}]))
"""


def run(before: str = "") -> Any:
    environment = os.environ | {"NUMBADNN_VERBOSE": "quiet"}
    done = subprocess.run(
        [sys.executable, "-c", before + CALLS], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow(60)
def test_a_first_call_with_all_on_disk_imports_neither_numba_nor_llvmlite_nor_scipy() -> None:
    """Of convolutions by one thread and by several, softmax, pooling, an LSTM; by threads, a forked child, with Numba later."""
    bits, packages, same = run("from numbadnn.host import images; images.possible = bool\n")  # by Numba
    assert "numba" in packages and same
    run()  # keeps what is not kept yet
    assert run() == [bits, [], True]


FORKS = """
import os, sys
import numpy as np, numbadnn
x = np.random.default_rng(0).standard_normal((4, 32, 96, 96)).astype("f4")
first = numbadnn.pool(x, (2, 2))
alone = "numba" not in sys.modules
def child():
    import faulthandler, numba
    faulthandler.dump_traceback_later(60, exit=True)
    @numba.njit(parallel=True)
    def total(a):
        found = 0.0
        for i in numba.prange(a.size):
            found += a[i]
        return found
    os._exit(0 if total(np.ones(1000)) == 1000 and np.array_equal(numbadnn.pool(x, (2, 2)), first) else 3)
if alone and not (forked := os.fork()):
    child()
print(not alone or os.waitpid(forked, 0)[1] == 0 and np.array_equal(numbadnn.pool(x, (2, 2)), first), alone)
"""


@pytest.mark.slow(10)
def test_a_forked_child_imports_numba_and_runs_parallel_code_of_its_own() -> None:
    """It waited for ever for the parent's threads, which were started without Numba."""
    environment = os.environ | {"NUMBADNN_VERBOSE": "quiet", "NUMBADNN_THREADS": "2", "NUMBA_NUM_THREADS": "2"}
    command = [sys.executable, "-c", FORKS]
    for _ in range(2):  # the first keeps the build
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"], done.stderr


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, str, Callable[..., Any]]:
    """The object of a kernel, its wrapper's name, and Numba's own function."""
    from numbadnn.cpu.lang.parallel import _compile
    from numbadnn.host import symbols

    def body(x, y, n, factor):
        for i in range(n):
            y[i] = np.exp(x[i] * factor)

    build = _compile(body, parallel=False)
    build(np.zeros(1), np.zeros(1), 1, 1.0)
    (found,) = build.overloads.values()
    return symbols.image_of(found.library), found.fndesc.llvm_cpython_wrapper_name, build


def asked() -> Iterator[tuple[str, str]]:
    """(module, name) of all that plans ask ``later`` for."""
    for path in sorted((ROOT / "numbadnn" / "cpu").rglob("*.py")):
        tree = ast.parse(path.read_text())
        calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and ast.unparse(n.func) == "later.names"]
        for call in calls:
            module, *names = (ast.literal_eval(a) for a in call.args)
            yield from ((module, name) for name in names)


def test_all_that_plans_ask_of_kernels_can_be_kept() -> None:
    """Else the plan imports Numba in each new process."""
    found = set(asked())
    assert len(found) > 20
    lost = []
    for module, name in sorted(found):
        try:
            later._encoded(getattr(importlib.import_module(module), name), module)
        except TypeError:
            lost.append((module, name))
    assert not lost


def test_placed_code_computes_what_numbas_does_and_refuses_what_it_refuses(compiled: Any) -> None:
    image, entry, build = compiled
    function, x = images.function(image, entry, {}), np.linspace(-3, 3, 50)
    ours, theirs = np.zeros(50), np.zeros(50)
    function(x, ours, 50, 0.5)
    build(x, theirs, 50, 0.5)
    assert np.array_equal(ours, theirs) and ours[-1] == pytest.approx(np.exp(1.5))
    for wrong in (
        (x, ours, 50),
        (x, ours, None, 0.5),
        (x.astype("f4"), ours, 50, 0.5),
        ("x", ours, 50, 1.0),
    ):
        with pytest.raises(TypeError):
            function(*wrong)
    with pytest.raises(ValueError, match="invalid literal"):
        function(x, ours, "many", 0.5)


def relocations(image: bytes) -> list[int]:
    """Where each relocation of the object's code is in the file."""
    sections, _ = images._read(image)
    mine = [s for s in sections if s.kind == 4 and sections[s.info].flags & 4]
    return [at for s in mine for at in range(s.start, s.start + s.size, 24)]


def test_an_object_that_asks_for_more_is_refused(compiled: Any) -> None:
    image, entry, _ = compiled
    (at, *_) = relocations(image)
    (about,) = struct.unpack_from("<Q", image, at + 8)
    damaged = {
        "another kind": image[: at + 8] + struct.pack("<Q", about & ~0xFFFFFFFF | 2) + image[at + 16 :],
        "a place outside": image[:at] + struct.pack("<Q", 1 << 40) + image[at + 8 :],
        "an unknown name": image.replace(b"\0PyNumber_Long\0", b"\0PyNumber_Lonk\0"),
        "another machine": image[:18] + b"\xb7" + image[19:],
        "no object": b"MZ" + image[2:],
        "half of it": image[: len(image) // 2],
    }
    for what, other in damaged.items():
        assert other != image, what
        with pytest.raises((ValueError, struct.error)):
            images.function(other, entry, {})
    with pytest.raises(ValueError):
        images.function(image, "another", {})


def test_arguments_that_need_another_build_have_another_name() -> None:
    x = np.zeros((2, 3))
    read_only = x.copy()
    read_only.flags.writeable = False
    given = [
        x,
        x.T,
        x[:, ::2],
        x[0],
        x.astype("f4"),
        x.astype("i8"),
        read_only,
        1,
        1.0,
        True,
        np.float32(1),
        (1, 2),
        (1, 2.0),
        (x,),
    ]
    kinds = [native.kinds_of((value,)) for value in given]
    for (i, one), (j, other) in itertools.combinations(enumerate(kinds), 2):
        assert one != other and native.described(one) != native.described(other), (given[i], given[j])
    assert native.kinds_of((x.copy(), 1)) == (*kinds[0], int) and native.described(native.kinds_of((np.ones((5, 1)),)))
    assert [native.kinds_of(((n, n),)) for n in (1, 2.0, 1)] == [kinds[-3], ((tuple, (float, float)),), kinds[-3]]
    for refused in ("text", None, 1j, x.astype(">f8"), np.zeros(1, "M8[s]"), [1], ("text",)):
        with pytest.raises(TypeError):
            native.described(native.kinds_of((refused,)))


def test_images_are_of_one_code_of_the_library_and_of_one_setting_of_numbas(monkeypatch: pytest.MonkeyPatch) -> None:
    before = native.stamp()
    assert before and sources.package("numbadnn.cpu") in before and sources.package("numbadnn.host") in before
    monkeypatch.setenv("NUMBA_OPT", "1")
    assert native.stamp() not in ("", before)
    monkeypatch.delenv("NUMBA_OPT")
    monkeypatch.setenv("NUMBA_NUM_THREADS", "3")
    assert native.stamp() == before


def test_another_kernels_image_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: Any) -> None:
    monkeypatch.setenv("NUMBADNN_CACHE_DIR", str(tmp_path))
    image, entry, _ = compiled
    kinds = (int,)
    with monkeypatch.context() as patch:
        patch.setattr(kept_images.files, "builds_folder", lambda: tmp_path / "builds")
        places = [native._file(name, kinds) for name in ("one", "two")]
        for path, key in places:
            assert not private.write(path, kept_images.FORMAT, key, image, entry=entry)
        builds = [native.Builds(name, {}, lambda: None) for name in ("one", "two", "three")]
        assert [build._found(kinds) is not None for build in builds] == [True, True, False]
        with monkeypatch.context() as of_another_numba:
            images.helpers.cache_clear()
            of_another_numba.setattr(images, "extension", lambda name: (images, ""))  # which has no c_helpers
            assert not any(build._found(kinds) for build in builds)
        places[1][0].write_bytes(places[0][0].read_bytes())
        assert [build._found(kinds) is not None for build in builds] == [True, False, False]
        places[0][0].write_bytes(places[0][0].read_bytes()[:-1] + b"?")  # as if its bytes were no code
        assert not any(build._found(kinds) for build in builds)


ENDS = """
import sys, threading, time
import numpy as np
from numbadnn.host import images
function, y = images.function(open(sys.argv[1], "rb").read(), sys.argv[2], {}), np.ones(1)
threading.Thread(target=function, args=(y, 1 << 40), daemon=True).start()
time.sleep(0.1)
class Slow:
    def __del__(self, sleep=time.sleep):
        sleep(0.2)
images.slow = Slow()  # goes after what the module keeps, and Python takes its time before the process ends
print("numba" in sys.modules)
"""


def test_python_ends_while_a_thread_that_it_does_not_wait_for_is_in_placed_code(tmp_path: Path) -> None:
    from numbadnn.cpu.lang.parallel import _compile
    from numbadnn.host import symbols

    def body(y, n):
        for _ in range(n):
            y[0] = y[0] * 0.5 + 1

    build = _compile(body, parallel=False)
    build(np.zeros(1), 1)
    (found,) = build.overloads.values()
    (tmp_path / "image").write_bytes(symbols.image_of(found.library))
    given = [sys.executable, "-c", ENDS, str(tmp_path / "image"), found.fndesc.llvm_cpython_wrapper_name]
    done = subprocess.run(given, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr


@pytest.mark.parametrize("asked", ["many", "0", "-1", "1.5"])
def test_a_number_of_threads_that_numba_refuses_is_left_to_numba(monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    monkeypatch.setenv("NUMBA_NUM_THREADS", asked)
    assert layer.layer.__wrapped__() is None
    monkeypatch.setenv("NUMBA_NUM_THREADS", "3")
    assert layer.threads() == 3


def test_nothing_is_kept_under_settings_that_a_program_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: Any
) -> None:
    """A process without Numba cannot see them: it would run code for another processor, say."""
    import numba

    _, _, build = compiled
    monkeypatch.setattr(kept_images.files, "builds_folder", lambda: tmp_path / "builds")
    for name, value in (("CPU_NAME", "generic"), ("BOUNDSCHECK", 1), ("OPT", 0)):
        with monkeypatch.context() as patch:
            patch.setattr(numba.config, name, value)
            native.keep("one", build, (np.zeros(1), np.zeros(1), 1, 1.0))
            assert not native.can_keep() and not list(tmp_path.rglob("*"))
    native.keep("one", build, (np.zeros(1), np.zeros(1), 1, 1.0))
    assert [path.suffix for path in tmp_path.rglob("*.*")] == [".image"]


WORKQUEUE = """
import threading
import numpy as np, numbadnn
from numbadnn.cpu.lang import parallel
started = parallel.start_threads()
import numba
numba.config.THREADING_LAYER = "workqueue"
x = np.random.default_rng(0).standard_normal((256, 4096)).astype("f4")
first, found, begin = numbadnn.softmax(x[:1]), [], threading.Barrier(4)
def call():
    begin.wait()
    for _ in range(10): found.append(np.array_equal(numbadnn.softmax(x)[:1], first))
threads = [threading.Thread(target=call) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(bool(started), numba.threading_layer(), len(found), all(found))
"""


@pytest.mark.skipif(layer.layer() is None, reason="Numba would take another layer than OpenMP's")
def test_threads_take_turns_where_a_program_chooses_workqueue_after_ours_were_started() -> None:
    environment = os.environ | {"NUMBADNN_VERBOSE": "quiet", "NUMBADNN_THREADS": "2", "NUMBA_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-c", WORKQUEUE], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "True workqueue 40 True\n"), done.stderr
