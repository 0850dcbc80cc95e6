"""numbadnn inside JAX's computations: what a call costs under jit, a training step beside lax's own, unshared convolutions.

Everything is measured in one run, ours and JAX's in turn. ``python bench/bench_jax.py [--quick]``, on a GPU if JAX sees one.
Arithmetic is the same on both sides: float32 is IEEE's (``lax.Precision.HIGHEST``, which is no TF32), float16 accumulates in
float32.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp
import numpy as np
from harness import save, table
from jax import lax

import numbadnn
import numbadnn.jax as nj

GPU = jax.default_backend() == "gpu"
RANDOM = np.random.default_rng(0)
EXACT = lax.Precision.HIGHEST
#: calls in one computation, to tell what a call costs from what a computation costs
CHAIN = 20
#: unshared convolutions in one computation
LAYERS = 8


def normal(*shape: int, dtype: str = "float32") -> Any:
    return jnp.asarray(RANDOM.standard_normal(shape) / 10, dtype)


def in_turn(calls: dict[str, Callable[[], Any]], seconds: float) -> dict[str, float]:
    """Median microseconds of each, waited for, one after the other and again until the time is over."""
    for call in calls.values():
        jax.block_until_ready(call())
        jax.block_until_ready(call())
    times: dict[str, list[float]] = {name: [] for name in calls}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(next(iter(times.values()))) < 5:
        for name, call in calls.items():
            start = time.perf_counter()
            jax.block_until_ready(call())
            times[name].append((time.perf_counter() - start) * 1e6)
    return {name: statistics.median(each) for name, each in times.items()}


def bare(x: Any) -> tuple[Any, Callable[[], Any]]:
    """The same array for a call outside JAX, of a library that costs least, and what waits for the result."""
    if not GPU:
        return np.asarray(x).copy(), lambda: None
    import torch

    return torch.from_numpy(np.asarray(x)).cuda(), torch.cuda.synchronize


def overhead(seconds: float) -> list[dict[str, Any]]:
    """A call under jit beside the bare one on arrays that cost nothing to compute."""
    rows = []
    image, filters = normal(1, 8, 8, 8), normal(8, 8, 3, 3)
    forms: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...]]] = {
        "softmax": (lambda x: nj.softmax(x), lambda x: numbadnn.softmax(x), (normal(16, 64),)),
        "conv2d": (
            lambda x, w: nj.conv(x, w, (1, 1), "SAME"),
            lambda x, w: numbadnn.conv2d(x, w, border_mode="half", filter_flip=False),
            (image, filters),
        ),
    }
    for name, (inside, outside, arrays) in forms.items():
        there = [bare(a) for a in arrays]
        wait, given = there[0][1], [a for a, _ in there]

        def chained(function: Callable[..., Any], x: Any, *rest: Any) -> Any:
            for _ in range(CHAIN):
                x = function(x, *rest)
            return x

        def outer(outside: Any = outside, given: Any = given, wait: Any = wait) -> None:
            chained(outside, *given)
            wait()

        once, many = jax.jit(inside), jax.jit(functools.partial(chained, inside))
        none = jax.jit(lambda x: x + 1)
        found = in_turn(
            {
                "jit": lambda once=once, arrays=arrays: once(*arrays),
                "chain": lambda many=many, arrays=arrays: many(*arrays),
                "bare": outer,
                "empty": lambda none=none, arrays=arrays: none(arrays[0]),
            },
            seconds,
        )
        alone, inner = found["bare"] / CHAIN, found["chain"] / CHAIN
        rows.append(
            {
                "case": f"overhead {name}", "bare_us": alone, "jit_us": found["jit"], "jit_x_plus_1_us": found["empty"],
                "in_a_chain_us": inner, "overhead_us": inner - alone,
            }
        )  # fmt: skip
    return rows


# ---- a training step -------------------------------------------------------------------------------------------------


def lax_conv(x: Any, w: Any, stride: int) -> Any:
    return lax.conv_general_dilated(x, w, (stride, stride), "SAME", precision=EXACT if x.dtype == jnp.float32 else None)


def lax_norm(x: Any, scale: Any, bias: Any) -> Any:
    wide = x.astype(jnp.float32)
    mean, var = wide.mean((0, 2, 3), keepdims=True), wide.var((0, 2, 3), keepdims=True)
    y = (wide - mean) * lax.rsqrt(var + 1e-5) * scale.reshape(1, -1, 1, 1) + bias.reshape(1, -1, 1, 1)
    return y.astype(x.dtype)


#: name -> convolution, normalisation, maxima, log-softmax
SIDES: dict[str, tuple[Callable[..., Any], ...]] = {
    "ours": (
        lambda x, w, stride: nj.conv_general_dilated(x, w, (stride, stride), "SAME"),
        lambda x, scale, bias: nj.batch_norm(x, scale, bias)[0],
        lambda x, *windows: nj.max_pool(x, *windows),
        lambda x: nj.log_softmax(x),
    ),
    "lax": (
        lax_conv,
        lax_norm,
        lambda x, *windows: lax.reduce_window(x, -jnp.inf, lax.max, *windows),
        jax.nn.log_softmax,
    ),
}


def parameters(widths: tuple[int, ...], dtype: str) -> dict[str, Any]:
    found = {"stem": normal(widths[0], 3, 3, 3, dtype=dtype), "head": normal(widths[-1], 10)}
    before = widths[0]
    for i, width in enumerate(widths):
        found[f"{i}a"], found[f"{i}b"] = (
            normal(width, before, 3, 3, dtype=dtype),
            normal(width, width, 3, 3, dtype=dtype),
        )
        found[f"{i}skip"] = normal(width, before, 1, 1, dtype=dtype)
        for part in "ab":
            found[f"{i}{part}scale"], found[f"{i}{part}bias"] = jnp.ones(width), jnp.zeros(width)
        before = width
    return found


def loss(side: str, blocks: int, p: dict[str, Any], x: Any, target: Any) -> Any:
    """A residual network: a block a stage, each half as large as the one before, after a 3 x 3 maximum."""
    conv, norm, maximum, log_softmax = SIDES[side]
    x = maximum(jax.nn.relu(conv(x, p["stem"], 1)), (1, 1, 3, 3), (1, 1, 2, 2), ((0, 0), (0, 0), (1, 1), (1, 1)))
    for i in range(blocks):
        stride = 1 if i == 0 else 2
        y = jax.nn.relu(norm(conv(x, p[f"{i}a"], stride), p[f"{i}ascale"], p[f"{i}abias"]))
        y = norm(conv(y, p[f"{i}b"], 1), p[f"{i}bscale"], p[f"{i}bbias"])
        x = jax.nn.relu(y + conv(x, p[f"{i}skip"], stride))
    scores = x.astype(jnp.float32).mean((2, 3)) @ p["head"]
    return -jnp.mean(jnp.sum(log_softmax(scores) * target, 1))


def training(seconds: float, dtype: str) -> dict[str, Any]:
    batch, size, widths = (128, 64, (64, 128, 256)) if GPU else (8, 32, (16, 32, 64))
    p, x = parameters(widths, dtype), normal(batch, 3, size, size, dtype=dtype)
    target = jnp.eye(10)[RANDOM.integers(0, 10, batch)]

    def step(side: str, p: dict[str, Any], x: Any, target: Any) -> Any:
        value, grads = jax.value_and_grad(functools.partial(loss, side, len(widths)))(p, x, target)
        return value, jax.tree.map(lambda a, g: a - 0.01 * g.astype(a.dtype), p, grads)

    steps = {side: jax.jit(functools.partial(step, side)) for side in SIDES}
    values = {side: float(steps[side](p, x, target)[0]) for side in SIDES}
    assert abs(values["ours"] - values["lax"]) < (1e-4 if dtype == "float32" else 2e-2), values
    found = in_turn({side: lambda f=f: f(p, x, target) for side, f in steps.items()}, seconds)
    name = f"training step {dtype} {batch} x {size} x {size}, widths {'-'.join(map(str, widths))}"
    return {"case": name, "ours_us": found["ours"], "lax_us": found["lax"], "ours/lax": found["ours"] / found["lax"]}


def unshared(seconds: float, gradients: bool) -> dict[str, Any]:
    """Layers one after another in one computation, as a network has them: else what a computation costs is measured."""
    n, c, size, layers = (32, 32, 32, LAYERS) if GPU else (4, 8, 16, LAYERS)
    x = normal(n, c, size, size)
    theirs = [normal(c, c * 9, size, size) for _ in range(layers)]
    own = [jnp.moveaxis(w.reshape(c, c, 3, 3, size, size), (4, 5), (1, 2)) for w in theirs]  # each filter in one piece
    forms = {
        "ours": (lambda x, w: nj.unshared_conv(x, w, (1, 1), "SAME"), own),
        "ours, lax's filters": (lambda x, w: nj.conv_general_dilated_local(x, w, (1, 1), "SAME", (3, 3)), theirs),
        "lax": (lambda x, w: lax.conv_general_dilated_local(x, w, (1, 1), "SAME", (3, 3), precision=EXACT), theirs),
    }
    calls = {}
    for name, (layer, filters) in forms.items():

        def network(x: Any, filters: Any, layer: Any = layer) -> Any:
            return functools.reduce(layer, filters, x)

        of = jax.jit(jax.grad(lambda *a, f=network: jnp.sum(f(*a) ** 2), (0, 1)) if gradients else network)
        calls[name] = lambda of=of, filters=filters: of(x, filters)
    results = [jax.tree.leaves(call())[0] for call in calls.values()]
    for result in results:
        np.testing.assert_allclose(result, results[-1], rtol=0, atol=1e-4 * float(jnp.abs(results[-1]).max()))
    found = {name: us / layers for name, us in in_turn(calls, seconds).items()}
    name = f"unshared {'gradients' if gradients else 'forward'} {n} x {c} x {size} x {size}, {c} filters 3 x 3, each of {layers}"
    return {
        "case": name, "ours_us": found["ours"], "lax_us": found["lax"], "ours/lax": found["ours"] / found["lax"],
        "ours_with_lax_filters_us": found["ours, lax's filters"],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the time for each row")
    seconds = 0.3 if parser.parse_args().quick else 3.0
    rows = overhead(seconds)
    print(table(rows, list(rows[0])), flush=True)
    others = [training(seconds, dtype) for dtype in (("float32", "float16") if GPU else ("float32",))]
    others += [unshared(seconds, gradients) for gradients in (False, True)]
    print(table(others, list(others[-1])))
    device = jax.devices()[0].device_kind
    print("saved", save("jax", [*rows, *others], jax=jax.__version__, jax_device=device))


if __name__ == "__main__":
    main()
