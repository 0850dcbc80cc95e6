"""numbadnn.torch beside PyTorch: the host's cost of a call, a locally connected layer, ResNet-18, batch invariance and its price.

``python bench/bench_torch.py [--quick] [--tune] [--one-core] [--parts overhead local resnet bits invariance]``. All is measured
in one run, ours and PyTorch's in turn; ``--one-core``: on the CPU both on one thread, the least processor time, which other
programs disturb little. ResNet-18 (``torch_training.py``) and batch invariance need a GPU; the latter's layers are those of
``torch_layers.py``. float32 is IEEE's on both sides unless a row says TF32. "host": until the calls return, without waiting for
the GPU; "captured": as a CUDA graph, launched and waited for, where the host has little to do; "GPU alone": of ten steps in one
graph. "nothing": a layer that computes nothing (``torch_nothing.py``), which none that is written in Python can undercut.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

import torch
import torch.nn.functional as F
import torch_nothing
import torch_training
from harness import geometric_mean, host_us, save, table
from torch_layers import DTYPES, Layer, layers
from torch_training import captured

import numbadnn
import numbadnn.torch as nt
from numbadnn.registry import FAMILY, implementations

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
ONE = "--one-core" in sys.argv
#: of the thread that computes all, or of whoever waits
clock = time.thread_time if ONE else time.perf_counter
TUNED = "--tune" in sys.argv
PARTS = ("overhead", "local", "resnet", "invariance", "bits")
synchronise: Callable[[], Any] = torch.cuda.synchronize if GPU else lambda: None


class Times(NamedTuple):
    """Median milliseconds of a call that is waited for, and until it returns."""

    whole: float
    host: float


def in_turn(
    calls: dict[str, Callable[[], Any]], seconds: float, within: dict[str, Callable[[], Any]] | None = None
) -> dict[str, Times]:
    """Of each, one after the other until the time is over.

    ``within``: the block that a call is made in, which is begun and ended outside the time, as a model's is.
    """
    blocks = {name: (within or {}).get(name, contextlib.nullcontext) for name in calls}
    for name, call in calls.items():
        with blocks[name]():
            call()
            call()
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(next(iter(times.values()))) < 5:
        for name, call in calls.items():
            with blocks[name]():
                synchronise()
                start = clock()
                call()
                returned = clock()
                synchronise()
                times[name].append(((clock() - start) * 1e3, (returned - start) * 1e3))
    typical = min if ONE else statistics.median
    return {name: Times(*map(typical, zip(*each, strict=True))) for name, each in times.items()}


def side_by_side(calls: dict[str, Callable[[], Any]], seconds: float, theirs: str) -> dict[str, float]:
    """Of a step by ``ours`` and ``theirs``: as called, until the host is done, and captured in a CUDA graph."""
    times = in_turn(calls, seconds)
    row = {"ms": times["ours"].whole, f"{theirs}, ms": times["theirs"].whole}
    if GPU:
        print(row, flush=True)
        row |= {"host, ms": times["ours"].host, f"{theirs}, host, ms": times["theirs"].host}
        graphs = in_turn({name: captured(call) for name, call in calls.items()}, seconds / 2)
        row |= {"captured, ms": graphs["ours"].whole, f"{theirs}, captured, ms": graphs["theirs"].whole}
    return row


# ---- the host's cost ------------------------------------------------------------------------------------------------------


def overhead(quick: bool) -> list[dict[str, Any]]:
    """Microseconds of the host on images that cost nothing: numbadnn.torch over numbadnn itself, with and without gradients."""
    x, w = torch.randn(1, 8, 8, 8, device=DEVICE), torch.randn(8, 8, 3, 3, device=DEVICE)
    tracked = w.clone().requires_grad_()
    top = torch.randn(1, 8, 8, 8, device=DEVICE)
    calls: dict[str, Callable[[], Any]] = {
        "numbadnn.conv2d": lambda: numbadnn.conv2d(x, w, border_mode=(1, 1), filter_flip=False),
        "numbadnn.torch.conv2d": lambda: nt.conv2d(x, w, padding=1),
        "F.conv2d": lambda: F.conv2d(x, w, padding=1),
        "numbadnn.torch.conv2d, recorded": lambda: nt.conv2d(x, tracked, padding=1),
        "F.conv2d, recorded": lambda: F.conv2d(x, tracked, padding=1),
        "numbadnn.torch.conv2d, there and back": lambda: torch.autograd.grad(
            nt.conv2d(x, tracked, padding=1), tracked, top
        ),
        "F.conv2d, there and back": lambda: torch.autograd.grad(F.conv2d(x, tracked, padding=1), tracked, top),
    }
    times = {name: float("inf") for name in calls}
    for _ in range(2 if quick else 5):  # in turn, the best of each
        for name, call in calls.items():
            times[name] = min(times[name], host_us(call, synchronise, 200, 20))
    bare = times["numbadnn.conv2d"]
    return [
        {"case": f"host: {name}", "us": us, "over the bare call, us": us - bare if "numbadnn.torch" in name else None}
        for name, us in times.items()
    ]


# ---- a locally connected layer --------------------------------------------------------------------------------------------

#: batch, channels, filters, size, window; of all but the last a GPU computes a step faster than the host asks for it
LOCAL = {
    "small": (8, 4, 4, 12, 3),
    "faces": (16, 16, 16, 32, 5),
    "channels": (16, 32, 32, 20, 3),
    "large": (32, 64, 64, 32, 3),
}


def local_steps(batch: int, channels: int, filters: int, size: int, window: int) -> dict[str, Callable[[], Any]]:
    """A training step of the layer: by numbadnn, and by unfold and einsum, as it is written today."""
    torch.manual_seed(0)
    out = size - window + 1
    x = torch.randn(batch, channels, size, size, device=DEVICE, requires_grad=True)
    w = torch.randn(filters, out, out, channels, window, window, device=DEVICE, requires_grad=True)
    flat = w.detach().permute(0, 3, 4, 5, 1, 2).reshape(filters, -1, out * out).contiguous().requires_grad_()
    top = torch.randn(batch, filters, out, out, device=DEVICE)

    def ours() -> Any:
        return torch.autograd.grad(nt.unshared_conv2d(x, w), (x, w), top)

    def theirs() -> Any:
        y = torch.einsum("nil,kil->nkl", F.unfold(x, window), flat)
        return torch.autograd.grad(y, (x, flat), top.flatten(2))

    gx, gw = ours()
    hx, hw = theirs()
    torch.testing.assert_close(gx, hx, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(gw.permute(0, 3, 4, 5, 1, 2).reshape(flat.shape), hw, rtol=1e-3, atol=1e-3)
    return {"ours": ours, "theirs": theirs}


def peak_mib(name: str, who: str) -> float:
    """MiB that a training step takes beyond its operands and gradients at most: of the GPU, or of a process of its own."""
    if not GPU:
        command = [sys.executable, __file__, "--peak", name, who]
        returned = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"}  # what is freed does not stay
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=returned)
        return float(done.stdout.split()[-1])
    step = local_steps(*LOCAL[name])[who]
    step()
    synchronise()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    gradients = step()
    synchronise()
    results = sum(g.numel() * g.element_size() for g in gradients)
    return (torch.cuda.max_memory_allocated() - before - results) / 2**20


def print_peak(name: str, who: str) -> None:
    """For a process of its own on Linux: how far its memory grows in a step of this size, its two gradients not counted."""
    batch, channels, filters, size, window = LOCAL[name]
    local_steps(2, channels, filters, size, window)  # compiles and loads what is needed, on a small batch
    out = size - window + 1
    x = torch.randn(batch, channels, size, size, requires_grad=True)
    shape = (
        (filters, out, out, channels, window, window) if who == "ours" else (filters, channels * window**2, out * out)
    )
    w, top = torch.randn(shape, requires_grad=True), torch.randn(batch, filters, out, out)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = kib("VmRSS")
    y = nt.unshared_conv2d(x, w) if who == "ours" else torch.einsum("nil,kil->nkl", F.unfold(x, window), w)
    torch.autograd.grad(y, (x, w), top.view_as(y))
    print((kib("VmHWM") - before - (x.numel() + w.numel()) * 4 / 1024) / 1024)


def kib(what: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what))


def local(quick: bool) -> list[dict[str, Any]]:
    """On a GPU also with the gradients computed by the calling thread: to wake PyTorch's own for them takes time."""
    rows, chosen = [], ["small"] if quick else list(LOCAL)
    if GPU:
        with pool_of(len(chosen)) as pool:
            list(pool.map(compile_local, chosen))
    for name in chosen:
        calls, seconds, other = local_steps(*LOCAL[name]), 1 if quick else 4, "unfold + einsum"
        times = side_by_side(calls, seconds, other)
        memory = {who: peak_mib(name, who) for who in ("ours", "theirs")}
        row = {"case": f"locally connected {name} {LOCAL[name]}", **times}
        row |= {
            "times as fast": times[f"{other}, ms"] / times["ms"],
            "MiB": memory["ours"],
            f"{other}, MiB": memory["theirs"],
        }
        if GPU:
            row["captured, times as fast"] = times[f"{other}, captured, ms"] / times["captured, ms"]
            row |= host_and_gpu(calls | {"nothing": torch_nothing.step(*LOCAL[name], DEVICE)}, seconds / 2, other)
        print(row, flush=True)
        rows.append(row)
    return rows


def host_and_gpu(calls: dict[str, Callable[[], Any]], seconds: float, other: str) -> dict[str, float]:
    """Of a step by ``ours``, ``theirs`` and ``nothing``: as called, computed by one thread, and of the GPU alone."""
    called = in_turn(calls, seconds)
    with torch.autograd.set_multithreading_enabled(False):
        alone = in_turn(calls, seconds)
    row = {"nothing, ms": called["nothing"].whole, "ms, one thread": alone["ours"].whole}
    row |= {f"{other}, ms, one thread": alone["theirs"].whole, "nothing, ms, one thread": alone["nothing"].whole}
    row["nothing, times as fast"] = called["theirs"].whole / called["nothing"].whole
    graphs = in_turn({who: captured(functools.partial(ten, calls[who])) for who in ("ours", "theirs")}, seconds)
    row |= {"GPU alone, ms": graphs["ours"].whole / 10, f"{other}, GPU alone, ms": graphs["theirs"].whole / 10}
    row["GPU alone, times as fast"] = graphs["theirs"].whole / graphs["ours"].whole
    return row


def ten(call: Callable[[], Any]) -> None:
    for _ in range(10):
        call()


def compile_local(name: str) -> None:
    local_steps(*LOCAL[name])


# ---- ResNet-18 ------------------------------------------------------------------------------------------------------------


def resnet(quick: bool) -> list[dict[str, Any]]:
    """A training step at batch 32, deterministic on both sides, in IEEE float32, TF32 and under bfloat16 autocast.

    With ``--tune`` what runs was measured first, of convolutions cuDNN's engines alone: to compile all of ours for 99 problems
    takes most of an hour.
    """
    rows = []
    kernels = {i.name for op in FAMILY if "conv2d" in op for i in implementations(op) if i.backend == "numba"}
    left_out = ",".join(sorted(kernels)) if TUNED else ""
    if not TUNED:
        with pool_of(min(14, os.cpu_count() or 1)) as pool:
            torch_training.compile_all(pool.map)
        print("compiled", flush=True)
    networks = torch_training.models()
    for setting in torch_training.SETTINGS:
        torch_training.under(setting)
        calls = {name: torch_training.step(network, setting, left_out) for name, network in networks.items()}
        with numbadnn.using(tune="measure" if TUNED else "cached"):
            calls["ours"]()
        times = side_by_side(calls, 2 if quick else 6, "PyTorch")
        row = {"case": f"ResNet-18 step, batch 32, {setting.name}{', tuned' * TUNED}", **times}
        row["share"] = times["ms"] / times["PyTorch, ms"]
        row["captured, share"] = times["captured, ms"] / times["PyTorch, captured, ms"]
        print(row, flush=True)
        rows.append(row)
    return rows


# ---- batch invariance -----------------------------------------------------------------------------------------------------


def run(layer: Layer, x: Any, w: Any) -> Any:
    axes = x.ndim - 2
    if layer.transposed:
        function = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[axes - 1]
        return function(x, w, None, layer.stride, layer.padding, layer.output_padding, layer.groups)
    return (F.conv1d, F.conv2d, F.conv3d)[axes - 1](x, w, None, layer.stride, layer.padding, 1, layer.groups)


def differing(layer: Layer, x: Any, w: Any) -> int:
    """Of the batches 1, 2, 4, 7 and 64, how many give the first sample other bits than it has alone."""
    alone = run(layer, x[:1], w)
    return sum(not torch.equal(run(layer, x[:batch], w)[:1], alone) for batch in (2, 4, 7, 64) if batch <= len(x))


def operands(layer: Layer, name: str) -> tuple[Any, Any]:
    dtype = getattr(torch, name)
    torch.manual_seed(0)
    x = torch.randn(64 if GPU else 4, *layer.sample, device=DEVICE).to(dtype)
    return x, torch.randn(layer.weight, device=DEVICE).to(dtype) / max(1, layer.weight[1]) ** 0.5


@torch.no_grad()
def bits_of(at: tuple[int, Layer, str]) -> dict[str, Any]:
    """Of one layer: batches whose first sample has other bits than alone. In any process: what is compiled is kept on disk."""
    number, layer, name = at
    use(number)
    x, w = operands(layer, name)
    with nt.batch_invariant():
        wrong = differing(layer, x, w)
    return {"case": f"{layer} {name}", "differ": wrong, "PyTorch, differ": differing(layer, x, w)}


@torch.no_grad()
def prices(number: int, chosen: list[tuple[Layer, str]]) -> list[dict[str, float]]:
    """Of layers on a GPU that does nothing else: a call at batch 64, ours and PyTorch's in turn."""
    use(number)
    found = []
    for layer, name in chosen:
        x, w = operands(layer, name)
        call = functools.partial(run, layer, x, w)
        times = in_turn({"ours": call, "theirs": call}, 0.03, {"ours": nt.batch_invariant})
        ours, theirs = times["ours"].whole, times["theirs"].whole
        found.append({"ms": ours, "PyTorch, ms": theirs, "price": ours / theirs})
    return found


def use(number: int) -> None:
    if GPU:
        torch.cuda.set_device(number % torch.cuda.device_count())
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False


def pool_of(processes: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"))


def bits(quick: bool) -> list[dict[str, Any]]:
    """By many processes at once where there is a GPU: most of the time goes into compiling."""
    chosen = [(number, *each) for number, each in enumerate(itertools.product(layers()[:: 20 if quick else 1], DTYPES))]
    if not GPU:
        return [bits_of(each) for each in chosen]
    with pool_of(min(12 * torch.cuda.device_count(), os.cpu_count() or 1)) as pool:
        return list(pool.map(bits_of, chosen))


def invariance(quick: bool) -> list[dict[str, Any]]:
    """Bits, then times by one process a GPU."""
    chosen, rows = list(itertools.product(layers()[:: 20 if quick else 1], DTYPES)), bits(quick)
    if GPU:
        gpus = torch.cuda.device_count()
        with pool_of(gpus) as pool:
            shares = [chosen[number::gpus] for number in range(gpus)]
            for number, share in enumerate(pool.map(prices, range(gpus), shares)):
                for row, times in zip(rows[number::gpus], share, strict=True):
                    row |= times
    total: dict[str, Any] = {
        "case": f"batch invariance: {len(chosen) // len(DTYPES)} layers, {len(rows)} cases",
        "differ": sum(r["differ"] > 0 for r in rows),
        "PyTorch, differ": sum(r["PyTorch, differ"] > 0 for r in rows),
    }
    if GPU:
        total["price"] = geometric_mean([r["price"] for r in rows])
    return [*rows, total]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--one-core", action="store_true")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS[:4] if GPU else PARTS[:2])
    parser.add_argument("--peak", nargs=2, metavar=("CASE", "WHO"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peak:
        print_peak(*arguments.peak)
        return
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    if ONE:
        torch.set_num_threads(1)
        numbadnn.set_options(threads=1)
    for part in arguments.parts:
        rows = globals()[part](arguments.quick)
        columns = list(dict.fromkeys(name for row in rows for name in row))
        print(table(rows, columns), flush=True)
        if not arguments.quick:
            section = "torch_one_core" if ONE else "torch"
            print("saved", save(section, rows, of="case", threads=torch.get_num_threads()), flush=True)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
