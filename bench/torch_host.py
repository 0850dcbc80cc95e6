"""What calls of numbadnn.torch keep a GPU's host, beside PyTorch's own: gradients in PyTorch's thread and in the caller's.

``python bench/torch_host.py``: the least of twelve rounds of ten calls, in turn, before the GPU is waited for. Images are so
small that it has little to do. "there and back": with the gradients of all operands.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from harness import table

import numbadnn
import numbadnn.torch as nt

ROUNDS, CALLS = 12, 10


def there_and_back(call: Callable[..., Any], *operands: Any) -> Callable[[], Any]:
    top = torch.ones_like(call(*operands))
    return lambda: torch.autograd.grad(call(*operands), operands, top)


def cases() -> dict[str, Callable[[], Any]]:
    x, w, b = (torch.randn(shape, device="cuda") for shape in ((8, 8, 8, 8), (8, 8, 3, 3), (8,)))
    gx, gw, gb = (t.clone().requires_grad_() for t in (x, w, b))
    unshared = torch.randn(8, 6, 6, 8, 3, 3, device="cuda", requires_grad=True)
    mean, variance = torch.zeros(8, device="cuda"), torch.ones(8, device="cuda")
    scale = torch.ones(8, device="cuda", requires_grad=True)
    found: dict[str, Callable[[], Any]] = {
        "x * 2, there and back": there_and_back(lambda x: x * 2, gx),
        "numbadnn.conv2d": lambda: numbadnn.conv2d(x, w, border_mode=(1, 1), filter_flip=False),
        "unshared_conv2d, there and back": there_and_back(nt.unshared_conv2d, gx, unshared),
    }
    for who, of in (("numbadnn.torch", nt), ("PyTorch", F)):

        def conv(x: Any, w: Any, b: Any = None, of: Any = of) -> Any:
            return of.conv2d(x, w, b, padding=1)

        def norm(x: Any, scale: Any, shift: Any, of: Any = of) -> Any:
            return of.batch_norm(x, mean, variance, scale, shift, True)

        found |= {
            f"conv2d: {who}": lambda conv=conv: conv(x, w),  # type: ignore[misc]
            f"conv2d, there and back: {who}": there_and_back(conv, gx, gw),
            f"conv2d and bias, there and back: {who}": there_and_back(conv, gx, gw, gb),
            f"batch_norm, there and back: {who}": there_and_back(norm, gx, scale, gb),
            f"max_pool2d, there and back: {who}": there_and_back(lambda x, of=of: of.max_pool2d(x, 2), gx),
        }
    return found | {f"{name}{word}": call for word in ("", ", bfloat16") for name, call in pairs(x, bool(word)).items()}


def pairs(x: Any, autocast: bool) -> dict[str, Callable[[], Any]]:
    """A step of five pairs of convolution and batch norm."""
    layers = [[torch.nn.Conv2d(8, 8, 3, padding=1, bias=False), torch.nn.BatchNorm2d(8)] for _ in range(5)]
    theirs = torch.nn.Sequential(*(layer for pair in layers for layer in pair)).cuda()
    ours = copy.deepcopy(theirs)
    nt.convert(ours)

    def step(model: Any) -> Callable[[], Any]:
        x_tracked, parameters = x.clone().requires_grad_(), list(model.parameters())

        def run() -> Any:
            with numbadnn.using(fp32_precision="tf32"), torch.autocast("cuda", torch.bfloat16, enabled=autocast):
                y = model(x_tracked)
            return torch.autograd.grad(y, parameters, torch.ones_like(y))

        return run

    return {f"five pairs: {who}": step(model) for who, model in (("numbadnn.torch", ours), ("PyTorch", theirs))}


def least_us(calls: dict[str, Callable[[], Any]], own_thread: bool) -> dict[str, float]:
    best = dict.fromkeys(calls, float("inf"))
    with torch.autograd.set_multithreading_enabled(own_thread):
        for call in calls.values():
            for _ in range(12):
                call()
        for _ in range(ROUNDS):
            for name, call in calls.items():
                torch.cuda.synchronize()
                start = time.perf_counter()
                for _ in range(CALLS):
                    call()
                best[name] = min(best[name], (time.perf_counter() - start) / CALLS * 1e6)
    return best


if __name__ == "__main__":
    calls = cases()
    two, one = least_us(calls, True), least_us(calls, False)
    print(table([{"call": k, "us": two[k], "us, one thread": one[k]} for k in calls], ["call", "us", "us, one thread"]))
