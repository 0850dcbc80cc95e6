"""softmax and its gradient: GB/s beside PyTorch, cuDNN and a device copy of the same bytes, in one run.

Bytes = each input read once, each output written once. Before a speed is printed the result of the very arrays that are
timed is compared, element by element, with float64 within the bound of validate.compare; a case that fails prints
REFUSED and no speed. ``python bench/bench_softmax.py [--quick]``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import checking
from harness import copy_gbps, device_ms, rotations, save, table

import numbadnn

LENGTHS = (1000, 1024, 2048, 4096, 8192, 16384, 32768)
LONG = (65536, 262144, 1 << 20)
IMAGES = ((32, 21, 448, 448), (64, 256, 96, 96), (8, 1000, 128, 128))
ELEMENTS = 1 << 27  # 512 MiB of float32: two to four times what the L2 cache can hold of any of them


def problems(quick: bool) -> list[tuple[str, str, tuple[int, ...], str]]:
    """(operation, dtype, shape, note)"""
    lengths = LENGTHS[::3] if quick else LENGTHS
    found = []
    for dtype in ("float32", "float16"):
        found += [("softmax", dtype, (ELEMENTS // n, n), "rows") for n in lengths]
        found += [("softmax", dtype, (ELEMENTS // n, n), "long rows") for n in LONG[:: 2 if quick else 1]]
        found += [("softmax", dtype, (512, 1000), "rows, small")]
        found += [("softmax_grad", dtype, (ELEMENTS // n, n), "rows") for n in (1000, 4096, 32768, 65536)]
        for op in ("softmax", "softmax_grad"):
            found += [(op, dtype, s, "NCHW channel") for s in IMAGES]
    return found


def measure(op: str, dtype: str, shape: tuple[int, ...], note: str) -> dict[str, Any]:
    import torch

    torch_dtype = getattr(torch, dtype)
    elements = torch.Size(shape).numel()
    tensors = 2 if op == "softmax" else 3
    nbytes = tensors * elements * torch_dtype.itemsize
    sets = []
    for _ in range(rotations(nbytes)):
        x = torch.randn(shape, device="cuda", dtype=torch_dtype)
        sets.append((x,) if op == "softmax" else (x, torch.softmax(torch.randn_like(x), 1)))
    function = getattr(numbadnn, op)
    row: dict[str, Any] = {"case": f"{op} {dtype} {'x'.join(map(str, shape))}", "note": note}
    worst = checking.softmax(op, function, sets[0])
    row["impl"] = numbadnn.last_call().impl  # type: ignore[union-attr]
    row["error/bound"] = worst
    if not worst <= 1:
        return row | {"GB/s": "REFUSED"}
    result = torch.empty_like(sets[0][0])
    peers = {"GB/s": lambda *a: function(*a, out=result)}
    if op == "softmax":
        peers["torch"] = lambda x: torch.softmax(x, 1, out=result)
    else:
        peers["torch"] = lambda dy, y: torch.ops.aten._softmax_backward_data.out(dy, y, 1, y.dtype, grad_input=result)
    peers["cudnn"] = lambda *a: function(*a, out=result, backend="cudnn")
    try:
        peers["cudnn"](*sets[0])
    except numbadnn.NotSupportedError:
        del peers["cudnn"]
    for name, call in peers.items():
        row[name] = nbytes / _milliseconds([lambda s=s, call=call: call(*s) for s in sets]) / 1e6
    row["copy"] = copy_gbps(nbytes)
    row["of copy"], row["vs torch"] = row["GB/s"] / row["copy"], row["GB/s"] / row["torch"]
    return row


def _milliseconds(calls: list[Callable[[], Any]]) -> float:
    """As ``device_ms``, but for what takes 50 ms and more (cuDNN's gradient of rows) one call is enough."""
    once = device_ms(calls[:1], repeats=1, warm=1)
    return once if once > 50 else device_ms(calls)


def main() -> None:
    quick = "--quick" in sys.argv
    rows = [measure(*p) for p in problems(quick)]
    print(table(rows, ("case", "note", "impl", "error/bound", "GB/s", "torch", "cudnn", "copy", "of copy", "vs torch")))
    print("written to", save("softmax", rows, quick=quick))


if __name__ == "__main__":
    main()
