"""Recurrent networks: milliseconds of forward (with what the gradient needs) and of backward beside PyTorch's, in one
run.

On a GPU PyTorch is cuDNN, with the same TF32 setting; on the CPU it is its own. Before a speed is printed y and dx of
the very arrays are compared with PyTorch in float64: an error of more than four times PyTorch's own prints REFUSED.
Backward is the time of both passes less that of forward. ``python bench/bench_rnn.py [--quick] [--cpu]``.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from harness import device_ms, save, table

import numbadnn

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
    ("lstm", 50, 32, 256, 256, 1, False),
    ("gru", 50, 32, 256, 256, 1, False),
    ("lstm", 100, 1, 128, 128, 1, False),
    ("gru", 32, 16, 76, 128, 1, False),
)
PRECISIONS = (("float32", "ieee"), ("float16", "ieee"), ("float32", "tf32"))


def module_of(torch: Any, mode: str, width: int, hidden: int, layers: int, both: bool, **more: Any) -> Any:
    kind = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}.get(mode)
    if kind is None:
        return torch.nn.RNN(width, hidden, layers, nonlinearity=mode[4:], bidirectional=both, **more)
    return kind(width, hidden, layers, bidirectional=both, **more)


def host_ms(calls: list[Callable[[], Any]], repeats: int = 7) -> float:
    """Median milliseconds on the CPU."""
    calls[0]()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        calls[0]()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


def error(torch: Any, ours: Any, exact: Any) -> float:
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

    def run_torch(net: Any, cast: Any = None, backward: bool = True) -> Any:
        a = [t.to(cast) if cast else t for t in (x, *states, dy)]
        x_in = a[0].requires_grad_() if cast else x_leaf
        ends = tuple(a[1:-1]) if mode == "lstm" else a[1]
        y, _ = net(x_in, ends)
        return (y, torch.autograd.grad(y, (x_in, *net.parameters()), a[-1])[0]) if backward else y

    x_leaf = x.clone().requires_grad_()
    exact = [t.detach() for t in run_torch(exact_module, torch.float64)]
    theirs = [error(torch, t.detach(), e) for t, e in zip(run_torch(module), exact, strict=True)]
    clock = device_ms if device == "cuda" else host_ms
    torch_forward = clock([lambda: run_torch(module, backward=False)])
    torch_both = clock([lambda: run_torch(module)])
    rows = []
    for backend in ("cudnn", "numba") if device == "cuda" else ("cpu",):
        block = numbadnn.RNNBlock(
            dtype, hidden, layers, mode, direction_mode="bidirectional" if both else "unidirectional", backend=backend
        )
        arrays: Any = (w, x, *states) if device == "cuda" else tuple(t.numpy() for t in (w, x, *states))
        above: Any = dy if device == "cuda" else dy.numpy()

        def forward(block: Any = block, arrays: Any = arrays) -> Any:
            return block.forward(*arrays)

        def both_passes(block: Any = block, arrays: Any = arrays, above: Any = above) -> Any:
            outputs, reserve = block.forward(*arrays)
            return outputs[0], block.backward(reserve, above)[1]

        row: dict[str, Any] = {
            "case": f"{mode} T{steps} N{batch} in{width} H{hidden} L{layers}{' both' * both} {dtype} {precision}",
            "backend": backend, "torch fwd ms": torch_forward, "torch bwd ms": torch_both - torch_forward,
        }  # fmt: skip
        with numbadnn.using(fp32_precision=precision):
            mine = [error(torch, t, e) for t, e in zip(both_passes(), exact, strict=True)]
            row["error"], row["torch error"] = max(mine), max(theirs)
            if not all(m <= 4 * t + 1e-7 for m, t in zip(mine, theirs, strict=True)):
                rows.append(row | {"fwd ms": "REFUSED"})
                continue
            row["fwd ms"] = clock([forward])
            row["bwd ms"] = clock([both_passes]) - row["fwd ms"]
        row["fwd/torch"] = row["fwd ms"] / row["torch fwd ms"]
        row["bwd/torch"] = row["bwd ms"] / row["torch bwd ms"]
        rows.append(row)
    return rows


def main() -> None:
    import torch

    device = "cuda" if torch.cuda.is_available() and "--cpu" not in sys.argv else "cpu"
    quick = "--quick" in sys.argv
    cases = (GPU if device == "cuda" else CPU)[:: 3 if quick else 1]
    rows = []
    for sizes in cases:
        for dtype, precision in PRECISIONS if device == "cuda" else PRECISIONS[:1]:
            rows += measure(sizes, dtype, precision, device)
    columns = (
        "case", "backend", "error", "torch error", "fwd ms", "torch fwd ms", "fwd/torch", "bwd ms", "torch bwd ms",
        "bwd/torch",
    )  # fmt: skip
    print(table(rows, columns))
    print("written to", save("rnn" if device == "cuda" else "rnn_cpu", rows, quick=quick))


if __name__ == "__main__":
    main()
