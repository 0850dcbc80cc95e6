"""The launch layer against a recorded driver, the parameters' packing, and compiled kernels on disk."""

import contextlib
import os
import struct
from pathlib import Path
from typing import Any

import pytest
from fake_driver import FakeDriver

from numbadnn.errors import NumbaDNNError
from numbadnn.gpu import context as _context
from numbadnn.gpu import driver as _driver
from numbadnn.host import private
from numbadnn.kernels.build import cache as _cache
from numbadnn.kernels.build import launch as _launch
from numbadnn.kernels.build.assemble import Assembled

PARAMETERS = "ptr ptr i32 i64*2 f32 f64"
SCALARS = (-3, (5, -(2**40)), 1.5, -0.1)


def _launch_on(driver: FakeDriver, device: int = 0) -> _launch.Launch:
    offsets, values = _launch.pack(PARAMETERS, SCALARS)
    shape = (7, 1, 1, 128, 2, 1, 4096)
    return _launch.Launch("a kernel", device, driver.functions, 77, 999, shape, offsets, values)


def test_launch_passes_everything() -> None:
    driver = FakeDriver()
    driver.current = 77
    launch = _launch_on(driver)
    launch(55, 0x7F0000000010, 0x7F0000000020)
    launch(56, 1, 2)
    args, parameters = driver.launches[0]
    assert args[:10] == (999, 7, 1, 1, 128, 2, 1, 4096, 55, 0)
    layout = "<QQi4xqqf4xd"  # what a C compiler makes of these parameters in this order
    assert struct.unpack(layout, parameters) == (0x7F0000000010, 0x7F0000000020, -3, 5, -(2**40), 1.5, -0.1)
    again, others = driver.launches[1]
    assert again[8] == 56 and struct.unpack("<QQ", others[:16]) == (1, 2) and others[16:] == parameters[16:]


def test_an_early_launch_passes_everything_and_its_attribute() -> None:
    driver = FakeDriver()
    driver.current = 77
    offsets, values = _launch.pack(PARAMETERS, SCALARS)
    shape = (7, 1, 1, 128, 2, 1, 4096)
    launch = _launch.Launch("a kernel", 0, driver.early_functions, 77, 999, shape, offsets, values, early=True)
    _launch_on(driver)(55, 1, 2)
    launch(56, 1, 2)
    (plain, parameters), (early, same) = driver.launches
    assert early[:10] == (999, *shape, 56, (6, 1))  # programmatic stream serialization: allowed
    assert plain[1:8] == early[1:8] and parameters == same


def test_many_addresses_and_neighbouring_small_parameters() -> None:
    driver = FakeDriver()
    driver.current = 77
    offsets, values = _launch.pack("ptr " * 7 + "i32 i32 f32 i64", (1, 2, 0.5, 3))
    launch = _launch.Launch("a kernel", 0, driver.functions, 77, 999, (1,) * 7, offsets, values)
    launch(0, *range(10, 17))
    ((_, parameters),) = driver.launches
    assert struct.unpack("<7Qiif4xq", parameters) == (*range(10, 17), 1, 2, 0.5, 3)


def test_descriptors_by_value_get_each_calls_address() -> None:
    driver = FakeDriver()
    driver.current = 77
    first, second = bytes(range(128)), bytes(range(128, 256))
    offsets, values = _launch.pack("map ptr map i32", (first, second, 5))
    assert [0x210 % 64 + o for o in offsets] == [64, 192, 256]  # parameters begin at 0x210 on sm_90
    _launch.Launch("a kernel", 0, driver.functions, 77, 999, (1,) * 7, offsets, values)(0, 10, 11, 12)
    ((_, parameters),) = driver.launches
    assert struct.unpack("<Q120s", parameters[48:176]) == (10, first[8:])
    assert struct.unpack("<Q56xQ120si", parameters[176:]) == (11, 12, second[8:], 5)


def test_a_sequence_routes_addresses_to_each_launch() -> None:
    driver = FakeDriver()
    driver.current = 77

    def launch_of(parameters: str, number: int) -> _launch.Launch:
        offsets, values = _launch.pack(parameters, (number,))
        return _launch.Launch(f"kernel {number}", 0, driver.functions, 77, number, (1,) * 7, offsets, values)

    first, second = launch_of("ptr ptr i32", 1), launch_of("ptr ptr ptr ptr i64", 2)
    run = _launch.sequence("x y space", [(first, "x space"), (second, "space+512 0 y+-8 x")])
    for x in (1000, 2000):
        run(5, x, 20, 30)
        (args, one), (_, two) = driver.launches[-2:]
        assert args[0] == 1 and args[8] == 5
        assert struct.unpack("<QQi", one) == (x, 30, 1)
        assert struct.unpack("<QQQQq", two) == (542, 0, 12, x, 2)
    with pytest.raises(ValueError, match="'w' is not in list"):
        _launch.sequence("x", [(first, "x w")])


@pytest.mark.parametrize(
    ("before", "device", "calls"),
    [(5, 0, [77, 5]), (0, 0, [77]), (0, 1, [77, 0] * 2)],
    ids=["another", "none", "none, second device"],
)
def test_wrong_context_launches_nothing_until_it_is_set(
    monkeypatch: pytest.MonkeyPatch, before: int, device: int, calls: list[int]
) -> None:
    """What was current comes back; where nothing was, the first device's stays, and the next launch finds it."""
    driver = FakeDriver()
    driver.current = before
    set_to: list[int] = []

    def call(name: str, *args: Any) -> None:
        if name == "cuCtxSetCurrent":
            set_to.append(args[0])
            driver.current = args[0]

    monkeypatch.setattr(_driver, "call", call)
    monkeypatch.setattr(_context, "primary_context", lambda device: 77)
    monkeypatch.setattr(_context, "current_context", lambda: driver.current)
    monkeypatch.setattr(_context, "_is_primary", lambda context: True)
    launch = _launch_on(driver, device)
    launch(1, 2, 3)
    assert len(driver.launches) == 1
    if not before:
        launch(1, 2, 3)
        assert len(driver.launches) == 2
    assert set_to == calls
    assert driver.current == (77 if not before and not device else before)


def test_a_launch_prepared_later_leaves_the_earlier_ones_their_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, allowed = FakeDriver(), []

    def call(name: str, *args: Any) -> None:
        if name == "cuKernelSetAttribute":
            allowed.append(args[1].value)

    monkeypatch.setattr(_driver, "call", call)
    monkeypatch.setattr(_driver, "compute_capability", lambda device: (9, 0))
    monkeypatch.setattr(_launch, "ensure_context", lambda device: contextlib.nullcontext(77))
    monkeypatch.setattr(_launch, "driver_addresses", lambda early: driver.functions)
    monkeypatch.setattr(_launch, "_allowed", {})
    monkeypatch.setattr(_launch.Kernel, "load", lambda kernel, device: 5)
    kernel = _launch.Kernel("a kernel", PARAMETERS, lambda: lambda: None, 128)
    for size in (0, 40_000, 150_000, 4096, 100_000, 200_000, 150_000):  # 40,000 and 10,000 that are static pass 48 KB
        kernel.prepare(0, (1, 1, 1), (128, 1, 1), SCALARS, size)
    assert allowed == [40_000, 150_000, 200_000]


def test_foreign_context_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = FakeDriver()
    driver.current = 5
    monkeypatch.setattr(_context, "primary_context", lambda device: 77)
    monkeypatch.setattr(_context, "current_context", lambda: driver.current)
    monkeypatch.setattr(_context, "_is_primary", lambda context: False)
    with pytest.raises(NumbaDNNError, match="primary context of CUDA device 0"):
        _launch_on(driver)(1, 2, 3)
    assert driver.launches == []


def test_driver_error_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = FakeDriver()
    driver.current, driver.status = 77, 719
    monkeypatch.setattr(_driver, "library", lambda: None)
    with pytest.raises(NumbaDNNError, match="launching a kernel: CUDA driver status 719"):
        _launch_on(driver)(1, 2, 3)


@pytest.mark.parametrize(
    ("parameters", "scalars", "message"),
    [
        ("i32 ptr", (1,), "before all else"),
        ("ptr " * 13, (), "at most 12 addresses"),
        ("ptr i32 i32", (1,), "expected 2 values"),
        ("map", (b"",), "128 bytes"),
        ("ptr i32*3", ((1, 2),), r"expected i32\*3"),
    ],
)
def test_pack_refuses(parameters: str, scalars: tuple[object, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _launch.pack(parameters, scalars)


def test_pack_refuses_what_does_not_fit() -> None:
    with pytest.raises(struct.error):
        _launch.pack("ptr i32", (2**31,))


# ---- compiled kernels on disk


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "kernels"


BINARY = _cache.Binary(b"\x7fELF and\nmore", "numbadnn_x", "ptxas 1")
KEY = _cache.key_of("a", "b")


def test_cache_gives_back_what_was_stored(folder: Path) -> None:
    assert _cache.read(folder, KEY) is None
    assert not _cache.write(folder, KEY, BINARY, arch="sm_90a")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert _cache.read(folder, KEY) == BINARY
    assert [p.name for p in folder.iterdir()] == [f"{KEY}.kernel"]
    assert _cache.read(folder, _cache.key_of("ab")) is None


@pytest.mark.parametrize("cut", [0, 1, 20, -1])
def test_cache_rejects_a_cut_file(folder: Path, cut: int) -> None:
    _cache.write(folder, KEY, BINARY)
    file = folder / f"{KEY}.kernel"
    file.write_bytes(file.read_bytes()[:cut])
    assert _cache.read(folder, KEY) is None


def test_cache_rejects_a_tampered_file(folder: Path) -> None:
    _cache.write(folder, KEY, BINARY)
    file = folder / f"{KEY}.kernel"
    good = file.read_bytes()
    file.write_bytes(good[:-1] + b"!")
    assert _cache.read(folder, KEY) is None
    file.write_bytes(good.replace(KEY.encode(), _cache.key_of("other").encode()))
    assert _cache.read(folder, KEY) is None
    file.write_bytes(good)
    assert _cache.read(folder, KEY) == BINARY


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o707, 0o500])
def test_cache_does_not_use_a_folder_open_to_others(folder: Path, mode: int) -> None:
    _cache.write(folder, KEY, BINARY)
    folder.chmod(mode)
    assert _cache.read(folder, KEY) is None
    assert "mode 0700" in _cache.write(folder, KEY, BINARY)
    folder.chmod(0o700)
    assert _cache.read(folder, KEY) == BINARY


def test_cache_does_not_follow_a_link(folder: Path, tmp_path: Path) -> None:
    _cache.write(folder, KEY, BINARY)
    link = tmp_path / "link"
    link.symlink_to(folder)
    assert _cache.read(link, KEY) is None


def test_cache_does_not_use_a_folder_of_another(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _cache.write(folder, KEY, BINARY)
    monkeypatch.setattr(os, "getuid", lambda: folder.stat().st_uid + 1)
    assert _cache.read(folder, KEY) is None


def test_unwritable_cache_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "cannot be made" in _cache.write(tmp_path / "file" / "kernels", KEY, BINARY)


def test_a_kernel_that_is_not_kept_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kernels").write_text("")
    monkeypatch.setattr(_launch, "_folder", tmp_path / "kernels")
    monkeypatch.setattr(_launch, "assemble", lambda ptx, arch: Assembled(b"code", "ptxas", ""))
    monkeypatch.setattr(private, "_said", set())
    kernel = _launch.Kernel("a kernel", PARAMETERS, lambda: lambda: None, 128)
    with pytest.warns(RuntimeWarning, match="kernels cannot be made.*set NUMBADNN_CACHE_DIR") as caught:
        made = [kernel._assembled((9, 0, ""), lambda: ".entry x") for _ in range(2)]
    assert len(caught) == 1 and [one.image for one in made] == [b"code"] * 2


def test_the_key_follows_the_sources() -> None:
    assert _cache.source_hash() == _cache.source_hash()
    assert _cache.key_of("ab", "c") != _cache.key_of("a", "bc")
