"""Recurrent networks: milliseconds of forward (with what the gradient needs) and of backward beside PyTorch's, in one
run.

On a GPU PyTorch is cuDNN, with the same TF32 setting; on the CPU it is its own. Before a speed is printed y and dx of
the very arrays are compared with PyTorch in float64: an error of more than four times PyTorch's own prints REFUSED.
Each pass is timed by itself, on a device that is kept busy while the host begins; what the host spends on a call is in
columns of its own. ``python bench/bench_rnn.py [--quick] [--cpu] [--one-core]``; ``--one-core``: on the CPU, both on one
thread, the least processor time of some passes, which other programs disturb little.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from harness import save, table

import numbadnn
from numbadnn.measuring.stage import asleep

#: mode, time, batch, in, hidden, layers, both directions
GPU = (
    ("lstm", 100, 64, 512, 512, 2, False),
    ("gru", 100, 64, 512, 512, 2, False),
    ("rnn_tanh", 100, 64, 512, 512, 2, False),
    ("lstm", 1000, 8, 128, 128, 1, False),
    ("gru", 1000, 8, 128, 128, 1, False),
    ("lstm", 400, 32, 80, 512, 2, False),
    ("gru", 64, 64, 300, 256, 1, True),
)
CPU = (
    ("lstm", 100, 8, 80, 512, 2, False),
    ("gru", 64, 16, 300, 256, 1, True),
    ("lstm", 100, 1, 128, 128, 1, False),
    ("gru", 32, 16, 76, 128, 1, False),
)
ONE_CORE = (
    *(("lstm", 20, batch, 512, 512, 2, False) for batch in (1, 8, 32, 64)),
    *(("gru", 20, batch, 256, 256, 1, True) for batch in (1, 8, 32, 64)),
)
ONE = "--one-core" in sys.argv
PRECISIONS = (("float32", "ieee"), ("float16", "ieee"), ("float32", "tf32"))


def module_of(torch: Any, mode: str, width: int, hidden: int, layers: int, both: bool, **more: Any) -> Any:
    kind = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}.get(mode)
    if kind is None:
        return torch.nn.RNN(width, hidden, layers, nonlinearity=mode[4:], bidirectional=both, **more)
    return kind(width, hidden, layers, bidirectional=both, **more)


def passes_ms(
    forward: Callable[[], Any], backward: Callable[[Any], Any], device: str, repeats: int = 15
) -> tuple[float, ...]:
    """Median milliseconds of forward, of backward given what it returns, and of the host in either; on one core the least."""
    import torch

    def event() -> Any:
        return torch.cuda.Event(enable_timing=True)

    def timed(call: Callable[[], Any]) -> tuple[Any, float, float]:
        if device != "cuda":
            asleep()
            clock = time.thread_time if ONE else time.perf_counter
            start = clock()
            result = call()
            spent = (clock() - start) * 1e3
            return result, spent, spent
        begin, end = event(), event()
        torch.cuda.synchronize()
        torch.cuda._sleep(1_500_000)
        begin.record()
        start = time.perf_counter()
        result = call()
        host = (time.perf_counter() - start) * 1e3
        end.record()
        torch.cuda.synchronize()
        return result, begin.elapsed_time(end), host

    rows = []
    for _ in range((5 if ONE else repeats) + 2):
        state, ms, host = timed(forward)
        _, ms_back, host_back = timed(lambda state=state: backward(state))
        rows.append((ms, ms_back, host, host_back))
    return tuple((min if ONE else statistics.median)(column) for column in zip(*rows[2:], strict=True))


def error(ours: Any, exact: Any) -> float:
    import torch

    ours = torch.as_tensor(ours).double()
    return float((ours - exact).norm() / exact.norm())


def measure(sizes: tuple[Any, ...], dtype: str, precision: str, device: str) -> list[dict[str, Any]]:
    """A row a backend; PyTorch's times are in each."""
    import torch

    mode, steps, batch, width, hidden, layers, both = sizes
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    torch.manual_seed(0)
    kind = getattr(torch, dtype)
    exact_module = module_of(torch, mode, width, hidden, layers, both, dtype=torch.float64, device=device)
    module = module_of(torch, mode, width, hidden, layers, both, dtype=kind, device=device)
    with torch.no_grad():
        for p, q in zip(module.parameters(), exact_module.parameters(), strict=True):
            p.copy_(q)
            q.copy_(p)
    state = (layers * (1 + both), batch, hidden)
    x, hx, cx = (torch.randn(s, device=device, dtype=kind) for s in ((steps, batch, width), state, state))
    dy = torch.randn(steps, batch, hidden * (1 + both), device=device, dtype=kind)
    w, states = numbadnn.rnn_weights_from_torch(module), (hx, cx) if mode == "lstm" else (hx,)
    x_leaf = x.clone().requires_grad_()

    def states_of(cast: Any = None) -> Any:
        found = tuple(t.to(cast) if cast else t for t in states)
        return found if mode == "lstm" else found[0]

    def torch_forward() -> Any:
        return module(x_leaf, states_of())[0]

    def torch_backward(y: Any) -> Any:
        return torch.autograd.grad(y, (x_leaf, *module.parameters()), dy)

    x_exact = x.double().requires_grad_()
    y_exact = exact_module(x_exact, states_of(torch.float64))[0]
    dx_exact = torch.autograd.grad(y_exact, (x_exact, *exact_module.parameters()), dy.double())[0]
    exact, y = (y_exact.detach(), dx_exact), torch_forward()
    theirs = [error(t, e) for t, e in zip((y.detach(), torch_backward(y)[0]), exact, strict=True)]
    peer = passes_ms(torch_forward, torch_backward, device)
    rows = []
    for backend in ("cudnn", "numba") if device == "cuda" else ("cpu",):
        block = numbadnn.RNNBlock(
            dtype, hidden, layers, mode, direction_mode="bidirectional" if both else "unidirectional", backend=backend
        )
        arrays: Any = (w, x, *states) if device == "cuda" else tuple(t.numpy() for t in (w, x, *states))
        above: Any = dy if device == "cuda" else dy.numpy()

        def forward(block: Any = block, arrays: Any = arrays) -> Any:
            return block.forward(*arrays)

        def backward(state: Any, block: Any = block, above: Any = above) -> Any:
            return block.backward(state[1], above)

        row: dict[str, Any] = {
            "case": f"{mode} T{steps} N{batch} in{width} H{hidden} L{layers}{' both' * both} {dtype} {precision}",
            "backend": backend,
        }  # fmt: skip
        names = ("fwd ms", "bwd ms", "fwd host ms", "bwd host ms")
        row |= {f"torch {name}": value for name, value in zip(names, peer, strict=True)}
        with numbadnn.using(fp32_precision=precision):
            state = forward()
            facts = numbadnn.last_call().facts  # type: ignore[union-attr]
            row["how"] = facts["config"]["algorithm"] if backend == "cudnn" else facts.get("steps")
            mine = [error(t, e) for t, e in zip((state[0][0], backward(state)[1]), exact, strict=True)]
            row["error"], row["torch error"] = max(mine), max(theirs)
            if not all(m <= 4 * t + 1e-7 for m, t in zip(mine, theirs, strict=True)):
                rows.append(row | {"fwd ms": "REFUSED"})
                continue
            row |= dict(zip(names, passes_ms(forward, backward, device), strict=True))
        row["fwd/torch"] = row["fwd ms"] / row["torch fwd ms"]
        row["bwd/torch"] = row["bwd ms"] / row["torch bwd ms"]
        rows.append(row)
    return rows


def main() -> None:
    import torch

    device = "cuda" if torch.cuda.is_available() and "--cpu" not in sys.argv and not ONE else "cpu"
    quick = "--quick" in sys.argv
    if ONE:
        torch.set_num_threads(1)
        numbadnn.set_options(threads=1)
    cases = (ONE_CORE if ONE else GPU if device == "cuda" else CPU)[:: 3 if quick else 1]
    rows = []
    for sizes in cases:
        for dtype, precision in PRECISIONS if device == "cuda" else PRECISIONS[:1]:
            rows += measure(sizes, dtype, precision, device)
            path = save("rnn_one_core" if ONE else "rnn" if device == "cuda" else "rnn_cpu", rows, quick=quick)
    columns = (
        "case", "backend", "how", "error", "torch error", "fwd ms", "torch fwd ms", "fwd/torch", "bwd ms",
        "torch bwd ms", "bwd/torch", "fwd host ms", "torch fwd host ms",
    )  # fmt: skip
    print(table(rows, columns))
    print("written to", path)


if __name__ == "__main__":
    main()
