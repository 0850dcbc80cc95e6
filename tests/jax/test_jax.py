"""numbadnn.jax under jit, grad (twice), vmap, scan, remat and shard_map, beside JAX's own operations; on a GPU under jit."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from folders import ROOT

jax = pytest.importorskip("jax")
jnp, lax = jax.numpy, jax.lax

from jax.test_util import check_grads  # noqa: E402

import numbadnn  # noqa: E402
import numbadnn.jax as nj  # noqa: E402
from numbadnn.jax import call  # noqa: E402
from numbadnn.problems.rnn_network import Network  # noqa: E402

RANDOM = np.random.default_rng(0)
LAST = ("NHWC", "HWIO", "NHWC")
MIXED = ("HWNC", "OHWI", "NCHW")


@pytest.fixture(autouse=True)
def wide() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def normal(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape)


def laid_out(numbers: Any, x: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """An image (N, C, ...) and filters (K, C, ...) in the order of axes that the dimension numbers say."""
    specs = lax.conv_dimension_numbers(x.shape, w.shape, numbers)
    return x.transpose(np.argsort(specs.lhs_spec)), w.transpose(np.argsort(specs.rhs_spec))


def convolution(of: Any, *parameters: Any, **named: Any) -> Callable[..., Any]:
    return lambda x, w: of.conv_general_dilated(x, w, *parameters, **named)


def local(of: Any, numbers: Any) -> Callable[..., Any]:
    return lambda x, w: of.conv_general_dilated_local(x, w, (1, 2), "VALID", (3, 2), dimension_numbers=numbers)


def averages(x: Any, window: Any, stride: Any, padding: Any, inside: bool) -> Any:
    sums = lax.reduce_window(x, 0.0, lax.add, window, stride, padding)
    counts = lax.reduce_window(jnp.ones_like(x), 0.0, lax.add, window, stride, padding)
    return sums / (counts if inside else np.prod(window))


def normalised(x: Any, scale: Any, bias: Any, axis: int = 1) -> Any:
    axes, shape = tuple(i for i in range(4) if i != axis), [-1 if i == axis else 1 for i in range(4)]
    mean, var = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    y = (x - mean) / jnp.sqrt(var + 1e-5) * scale.reshape(shape) + bias.reshape(shape)
    return y, mean.ravel(), 1 / jnp.sqrt(var + 1e-5).ravel()


def by_given(x: Any, *parameters: Any) -> Any:
    scale, bias, mean, var = (p.reshape(1, -1, 1, 1) for p in parameters)
    return (x - mean) / jnp.sqrt(var + 1e-5) * scale + bias


def maxima(x: Any, *windows: Any) -> Any:
    return lax.reduce_window(x, -jnp.inf, lax.max, *windows)


IMAGE, FILTERS = normal(2, 4, 5, 6), normal(6, 4, 3, 2)
CHANNELS_LAST = normal(2, 5, 6, 3)
SAME = ((1, 3, 2, 1), (1, 2, 2, 1), "SAME")
PAIRS = ((1, 1, 3, 2), (1, 1, 2, 1), ((0, 0), (0, 0), (1, 1), (1, 1)))
THETA = np.array([[[1.0, 0.1, 0], [0.2, 0.9, 0.1]], [[0.7, 0, 0.2], [0, 1.2, 0]]])
HALF = normal(6, 2, 3, 2)
STRIDED, DILATED = ((2, 1), ((1, 0), (2, 1)), None, (1, 2)), ((1, 1), ((1, 2), (1, 0)), (2, 3), (2, 1))
#: name -> (function, the same by JAX where it has it, arrays)
CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any] | None, tuple[np.ndarray, ...]]] = {
    "conv": (convolution(nj, (1, 1), "SAME"), convolution(lax, (1, 1), "SAME"), (IMAGE, FILTERS)),
    "conv, strides, groups, channels last": (
        convolution(nj, *STRIDED, LAST, 2), convolution(lax, *STRIDED, LAST, 2), laid_out(LAST, IMAGE, HALF),
    ),
    "transposed, axes mixed": (
        convolution(nj, *DILATED, MIXED), convolution(lax, *DILATED, MIXED), laid_out(MIXED, IMAGE, FILTERS),
    ),
    "transposed, groups": (
        convolution(nj, *DILATED, None, 2), convolution(lax, *DILATED, None, 2), (IMAGE, HALF),
    ),
    "conv in one axis": (convolution(nj, (2,), "SAME"), convolution(lax, (2,), "SAME"), (normal(2, 3, 7), normal(4, 3, 3))),
    "causal": (lambda x, w: nj.causal_conv1d(x, w, 2, 2, 3), None, (normal(2, 3, 9), normal(6, 1, 3))),
    "local": (local(nj, None), local(lax, None), (normal(2, 3, 5, 6), normal(4, 18, 3, 3))),
    "local, channels last": (local(nj, LAST), local(lax, LAST), (normal(2, 5, 6, 3), normal(3, 3, 18, 4))),
    "unshared in one axis": (lambda x, w: nj.unshared_conv(x, w, (2,), [(1, 0)]), None, (normal(2, 3, 6), normal(4, 3, 3, 2))),
    "max": (lambda x: nj.max_pool(x, *SAME), lambda x: maxima(x, *SAME), (CHANNELS_LAST,)),
    "average": (lambda x: nj.avg_pool(x, *SAME), lambda x: averages(x, *SAME, False), (CHANNELS_LAST,)),
    "average inside": (lambda x: nj.avg_pool(x, *PAIRS, False), lambda x: averages(x, *PAIRS, True), (IMAGE,)),
    "average inside, uneven": (lambda x: nj.avg_pool(x, *SAME, False), lambda x: averages(x, *SAME, True), (CHANNELS_LAST,)),
    "softmax": (nj.softmax, jax.nn.softmax, (IMAGE,)),
    "log softmax": (lambda x: nj.log_softmax(x, (1, 2)), lambda x: jax.nn.log_softmax(x, (1, 2)), (IMAGE,)),
    "norm": (lambda *a: nj.batch_norm(*a), normalised, (IMAGE, normal(4), normal(4))),
    "norm, channels last": (
        lambda *a: nj.batch_norm(*a, feature_axis=-1), lambda *a: normalised(*a, axis=3), (CHANNELS_LAST, normal(3), normal(3)),
    ),
    "inference": (lambda *a: nj.batch_norm_inference(*a), by_given, (IMAGE, *normal(3, 4), np.exp(normal(4)))),
    "sampler": (nj.grid_sample, None, (IMAGE, 0.5 * normal(2, 3, 4, 2))),
    "sampler, channels last": (lambda x, g: nj.grid_sample(x, g, "NHWC"), None, (CHANNELS_LAST, 0.5 * normal(2, 3, 4, 2))),
    "grid": (lambda t: nj.affine_grid(t, (3, 4)), None, (THETA,)),
    "upsampling": (lambda x: nj.upsample_bilinear(x, ((3, 2), (2, 1)), "NHWC"), None, (CHANNELS_LAST,)),
    "dropout": (lambda x: nj.dropout(x, 0.3, 5), None, (IMAGE,)),
}  # fmt: skip

for _mode in ("lstm", "gru", "rnn_tanh"):
    _way = {"hidden_size": 3, "num_layers": 2, "rnn_mode": _mode, "direction_mode": "bidirectional"}
    _size = Network(3, 2, _mode, "linear", "bidirectional").blocks(4)[1]
    _states = normal(2 if _mode == "lstm" else 1, 4, 2, 3)
    CASES[_mode] = (
        lambda *a, way=_way: nj.rnn(*a, **way),
        None,
        (0.5 * normal(_size), normal(5, 2, 4), *_states),
    )


def close(found: Any, expected: Any, bound: float = 1e-9) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=bound), found, expected)


@pytest.mark.slow(4)
@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients_of_both_orders(name: str) -> None:
    function, by_jax, arrays = CASES[name]
    given = tuple(map(jnp.asarray, arrays))
    eager, compiled = function(*given), jax.jit(function)(*given)
    jax.tree.map(np.testing.assert_array_equal, eager, compiled)
    if by_jax is not None:
        close(eager, by_jax(*given))
    check_grads(function, given, 2, modes=["rev"], atol=2e-3, rtol=2e-3)


def loss(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arrays: sum(jnp.sum(jnp.sin(y)) for y in jax.tree.leaves(function(*arrays)))


#: what is mapped the same way as another case
ALIKE = ("rnn_tanh", "average inside", "transposed, groups", "causal", "norm, channels last", "local, channels last")


@pytest.mark.slow(4)
@pytest.mark.parametrize(
    ("name", "which"),
    [(n, w) for n in CASES if n not in ALIKE for w in ("first", "last", "all") if w == "all" or len(CASES[n][2]) > 1],
)
def test_vmap_is_a_loop(name: str, which: str) -> None:
    function, _, arrays = CASES[name]
    mapped = {"first": {0}, "last": {len(arrays) - 1}, "all": set(range(len(arrays)))}[which]
    axes = tuple(0 if i in mapped else None for i in range(len(arrays)))
    stacked = [jnp.stack([a, a * 0.5, a - 0.1]) if i in mapped else jnp.asarray(a) for i, a in enumerate(arrays)]
    both = lambda *a: (function(*a), jax.grad(loss(function), tuple(range(len(a))))(*a))
    alone = [jax.jit(both)(*(a[t] if i in mapped else a for i, a in enumerate(stacked))) for t in range(3)]
    close(jax.jit(jax.vmap(both, axes))(*stacked), jax.tree.map(lambda *each: jnp.stack(each), *alone))


@pytest.mark.parametrize("padding", ("SAME", "VALID"))
@pytest.mark.parametrize("stride", (1, 2, 4))
@pytest.mark.parametrize("kernel", (False, True))
def test_conv_transpose_is_jax_s(padding: str, stride: int, kernel: bool) -> None:
    x, w = normal(1, 4, 5, 2), normal(3, 3, *((5, 2) if kernel else (2, 5)))
    each = [of.conv_transpose(x, w, (stride, stride), padding, transpose_kernel=kernel) for of in (nj, lax)]
    close(*each)


@pytest.mark.parametrize(("mapped", "images"), [(0, 2), (2, 0)])
def test_vmap_of_nothing(mapped: int, images: int) -> None:
    x, w = jnp.zeros((mapped, images, 3, 5, 5)), jnp.zeros((mapped, 4, 3, 3, 3))

    def loss(x: Any, w: Any) -> Any:
        return (nj.softmax(nj.conv(x, w, (1, 1), "VALID"), 1) ** 2).sum()

    for axes in ((0, None), (0, 0), (None, 0)):
        given = tuple(a if axis == 0 else jnp.zeros(a.shape[1:]) for a, axis in zip((x, w), axes, strict=True))
        found = jax.vmap(jax.grad(loss, (0, 1)), axes)(*given)
        assert [g.shape for g in found] == [x.shape, w.shape]
        assert not any(g.any() for g in found)


def test_layouts_are_views() -> None:
    """Only the call itself is in the computation: no transposition, whatever the order of the axes, gradients too."""
    x, w = map(jnp.asarray, laid_out(LAST, IMAGE, FILTERS))
    f = convolution(nj, (1, 1), "SAME", dimension_numbers=LAST)
    text = jax.jit(lambda x, w, g: (f(x, w), jax.vjp(f, x, w)[1](g))).lower(x, w, f(x, w)).compile().as_text()
    lines = [line for line in text.splitlines() if " = " in line and "parameter(" not in line]
    assert sum("buffer_python_cpu_callback" in line for line in lines) >= 3
    assert not [line for line in lines if re.search(r"} (transpose|copy|fusion)\(", line)]


def test_results_are_written_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Any, ...]] = []
    run = call.Work.call
    monkeypatch.setattr(call.Work, "call", lambda self, a, o, w: (run(self, a, o, w), seen.append((a[0], o[0])))[0])
    x = jnp.asarray(normal(64, 65))
    y = jax.jit(nj.softmax)(x).block_until_ready()
    (given, result), *_ = seen
    assert given.ctypes.data == x.unsafe_buffer_pointer() and result.ctypes.data == y.unsafe_buffer_pointer()


def test_averages_of_16_bits_with_uneven_padding_are_rounded_once() -> None:
    x = jnp.full((1, 1, 7, 7), 10000, jnp.float16)
    found = nj.avg_pool(x, (1, 1, 3, 3), (1, 1, 2, 2), ((0, 0), (0, 0), (0, 1), (0, 1)), count_include_pad=False)
    assert found.dtype == jnp.float16 and (found == 10000).all()


def test_scan_and_remat() -> None:
    x, w = jnp.asarray(IMAGE), jnp.asarray(normal(4, 4, 3, 3) / 10)
    step = lambda of: lambda w, x: of.conv(x, w, (1, 1), "SAME")
    body = lambda of: lambda w, x: lax.scan(lambda c, _: (jnp.sin(step(of)(w, c)), None), x, None, length=3)[0]
    close(jax.jit(body(nj))(w, x), body(lax)(w, x))
    of = lambda of, around: jax.jit(jax.grad(lambda w: jnp.sum(around(body(of))(w, x) ** 2)))(w)
    close(of(nj, lambda f: f), of(lax, lambda f: f))
    close(of(nj, jax.checkpoint), of(lax, lambda f: f))


@pytest.mark.slow(10)
def test_shard_map_over_eight_devices() -> None:
    code = """
import jax, jax.numpy as jnp, numpy as np
import numbadnn.jax as nj
from jax.sharding import PartitionSpec as P
random = np.random.default_rng(0)
x, w = jnp.asarray(random.standard_normal((16, 3, 8, 8))), jnp.asarray(random.standard_normal((4, 3, 3, 3)))
mesh = jax.make_mesh((8,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
def loss(w, x):
    y = nj.max_pool(nj.conv(x, w, (1, 1), "SAME"), (1, 1, 2, 2), (1, 1, 2, 2))
    return jnp.mean(nj.log_softmax(y, 1) ** 2)
expected = jax.jit(jax.value_and_grad(loss, (0, 1)))(w, x)
for checked in (True, False):
    shared = jax.shard_map(
        lambda w, x: jax.lax.pmean(loss(w, x), "i"), mesh=mesh, in_specs=(P(), P("i")), out_specs=P(), check_vma=checked
    )
    value, grads = jax.jit(jax.value_and_grad(shared, (0, 1)))(w, x)
    assert len(grads[1].devices()) == 8 and grads[1].sharding.spec == P("i")
    for a, b in zip((value, *grads), (expected[0], *expected[1]), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)
print("done")
"""
    more = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "1"}
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | more
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and done.stdout == "done\n", done.stderr


def test_deleted_and_donated_arrays_are_refused_by_name() -> None:
    x, w = jnp.asarray(IMAGE), jnp.asarray(FILTERS)
    x.delete()
    with pytest.raises(ValueError, match="^lhs: expected a live JAX array, got one that was deleted"):
        nj.conv(x, w, (1, 1), "SAME")
    jax.jit(lambda a: a + 1, donate_argnums=0)(w).block_until_ready()
    with pytest.raises(ValueError, match="^rhs: expected a live JAX array, got one that was deleted"):
        nj.conv(jnp.asarray(IMAGE), w, (1, 1), "SAME")


def test_what_does_not_fit_is_said_when_it_is_traced() -> None:
    x, w = jnp.asarray(IMAGE), jnp.asarray(FILTERS)
    for wrong, match in (
        (lambda: nj.conv(x, w[:, :3], (1, 1), "SAME"), "expected 4 channels"),
        (lambda: nj.conv(x, w.astype("float32"), (1, 1), "SAME"), "^rhs: expected the dtype of lhs"),
        (lambda: nj.softmax(jnp.ones((2, 3), int)), "^x: expected dtype float16"),
        (lambda: nj.conv(x, w, (1, 1), "SAME", backend="metal"), "^backend: expected one of"),
        (lambda: nj.conv(x, w, (1, 1), "SAME", determinism="much"), "determinism"),
        (lambda: nj.max_pool(x, (1, 2, 2, 2)), "^window_dimensions: expected 1 for two axes"),
        (lambda: nj.softmax(x, (0, 2)), "^axis: expected axes that follow each other"),
    ):
        with pytest.raises((ValueError, TypeError), match=match):
            jax.jit(wrong)()
    if jax.default_backend() == "cpu":
        with pytest.raises(numbadnn.BackendUnavailableError, match="the arrays are on the CPU"):
            jax.eval_shape(lambda x: nj.softmax(x, backend="numba"), x)


def test_functions_that_compute_at_once_name_this_module() -> None:
    for transformed in (jax.jit, jax.grad, jax.vmap):
        with pytest.raises(TypeError, match="numbadnn.jax has those that are"):
            transformed(numbadnn.softmax)(jnp.ones((2, 3)))


def test_options_are_part_of_the_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    works: list[call.Work] = []
    monkeypatch.setattr(call, "watchers", [lambda work, inputs, results: works.append(work)])
    x = jnp.asarray(normal(3, 7))
    with numbadnn.using(accuracy="elementwise"):
        compiled = jax.jit(lambda x: nj.softmax(x, determinism="batch_invariant")).lower(x).compile()
    with numbadnn.using(accuracy="normwise", determinism="gpu_to_gpu"):
        compiled(x).block_until_ready()
    (work,) = works
    assert (work.options.determinism, work.options.accuracy) == ("batch_invariant", "elementwise")
    nj.softmax(x).block_until_ready()
    nj.softmax(x, backend="cpu").block_until_ready()
    assert [(w.options.determinism, w.backend) for w in works[1:]] == [("run_to_run", None), ("run_to_run", "cpu")]


def test_dropout_by_a_key_and_by_a_traced_seed() -> None:
    x = jnp.ones((64, 64))
    by_number = nj.dropout(x, 0.25, 7)
    np.testing.assert_array_equal(by_number, numbadnn.dropout(np.ones((64, 64)), 0.25, 7)[0])
    np.testing.assert_array_equal(by_number, jax.jit(lambda x, s: nj.dropout(x, 0.25, s))(x, jnp.uint32(7)))
    one, other = (jax.jit(lambda x, k: nj.dropout(x, 0.25, k))(x, jax.random.key(n)) for n in (0, 1))
    assert not np.array_equal(one, other) and abs(float((one == 0).mean()) - 0.25) < 0.05
    close(jax.grad(lambda x: nj.dropout(x, 0.25, jnp.uint32(7)).sum())(x), by_number)


@pytest.mark.parametrize("dtype", ("float16", "bfloat16", "float32"))
def test_other_dtypes(dtype: str) -> None:
    x, w = jnp.asarray(IMAGE, dtype), jnp.asarray(FILTERS, dtype)
    y, back = jax.vjp(lambda x, w: nj.conv(x, w, (1, 1), "SAME"), x, w)
    found = (y, *back(y))
    assert {a.dtype for a in found} == {jnp.dtype(dtype)}
    exact = lax.conv(x.astype("float64"), w.astype("float64"), (1, 1), "SAME")
    unit = float(jnp.finfo(dtype).eps)
    close(y.astype("float64"), exact, bound=2 * unit * float(jnp.abs(exact).max()))


def test_check_finds_every_call_and_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = jnp.asarray(IMAGE), jnp.asarray(FILTERS)
    of = jax.jit(jax.grad(lambda w: nj.softmax(nj.conv(x, w, (1, 1), "SAME"), 1).max()))
    found = nj.check(of, w)
    names = ["conv2d", "softmax", "softmax_grad", "conv2d_grad_wrt_inputs", "conv2d_grad_wrt_weights"]
    assert found.ok and [row.problem.split()[0] for row in found.rows] == names
    assert found.table().count("ok ") == 5 and not nj.check(lambda: jnp.ones(1)).ok
    run = call.Work.call

    def wrong(self: call.Work, arrays: Any, outs: Any, words: Any) -> None:
        monkeypatch.setattr(call.Work, "call", run)
        there, watchers = call.watchers, call.watchers[:]
        there.clear()
        run(self, arrays, outs, words)
        outs[0].flat[3] += 1e-9
        for watcher in watchers:
            watcher(self, tuple(arrays), tuple(outs))
            there.append(watcher)

    monkeypatch.setattr(call.Work, "call", wrong)
    found = nj.check(nj.softmax, x)
    assert [row.status for row in found.rows] == ["mismatch"] and found.rows[0].where == (0, 3, 0)


def test_without_buffer_callback_all_is_copied_and_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call, "buffer_callback", None)
    call._say_that_all_is_copied.cache_clear()
    jax.clear_caches()
    x, w = jnp.asarray(normal(2, 3, 9, 7)), jnp.asarray(normal(5, 3, 3, 2))
    with pytest.warns(RuntimeWarning, match="has no jax.experimental.buffer_callback"):
        y = jax.jit(lambda x, w: nj.conv(x, w, (1, 1), "SAME"))(x, w)
    close(y, lax.conv(x, w, (1, 1), "SAME"))
    of = lambda conv: jax.jit(jax.grad(lambda w: jnp.sum(jnp.sin(conv(x, w, (1, 1), "SAME")))))(w)
    close(of(nj.conv), of(lax.conv))  # a second warning would be an error
    jax.clear_caches()


@pytest.mark.slow(5)
@pytest.mark.parametrize(
    ("there", "said"),
    [
        ("sys.modules['jax'] = None", "numbadnn.jax needs JAX, which cannot be imported"),
        (
            "sys.modules['jax'] = types.SimpleNamespace(__version__='0.4.1', __version_info__=(0, 4, 1))",
            "or newer, found 0.4.1",
        ),
    ],
)
def test_a_missing_or_an_old_jax_is_one_clear_line(there: str, said: str) -> None:
    code = f"import sys, types\n{there}\ntry:\n    import numbadnn.jax\nexcept ImportError as error:\n    print(error)"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert said in done.stdout and done.stdout.count("\n") == 1 and "pip install 'numbadnn[jax]'" in done.stdout, (
        done.stderr
    )


def test_the_how_to_says_what_happens() -> None:
    with jax.enable_x64(False):
        failed, tried = doctest.testfile(str(ROOT / "docs/how-to/jax.md"), module_relative=False)
    assert tried >= 9 and not failed


# ---- on a GPU --------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("recorded", (True, False), ids=("command buffers", "none"))
@pytest.mark.parametrize("name", CASES)
def test_on_a_gpu_under_jit(name: str, recorded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results and gradients, in float32 and again and again: what XLA recorded is replayed on other memory."""
    monkeypatch.setattr(call, "COMMAND_BUFFERS", recorded)
    jax.clear_caches()
    function, _, arrays = CASES[name]
    step = jax.jit(lambda *a: (function(*a), jax.grad(loss(function), tuple(range(len(a))))(*a)))
    cpu, gpu = jax.devices("cpu")[0], jax.devices("gpu")[0]
    for again in range(5):
        given = [np.asarray(a * (1 + 0.1 * again), np.float64) for a in arrays]
        found = step(*(jax.device_put(a.astype(np.float32), gpu) for a in given))
        assert all(leaf.devices() == {gpu} for leaf in jax.tree.leaves(found))
        exact = tuple(numbadnn_on_cpu(function, [jax.device_put(a, cpu) for a in given]))
        largest = max(float(np.abs(e).max()) for e in exact)
        for a, b in zip(jax.tree.leaves(found), exact, strict=True):
            np.testing.assert_allclose(np.asarray(a), b, rtol=0, atol=2e-4 * max(1.0, largest))


def numbadnn_on_cpu(function: Callable[..., Any], arrays: list[Any]) -> Any:
    """The same in float64 on the CPU, by NumPy's arrays."""
    with jax.default_device(jax.devices("cpu")[0]):
        y = function(*arrays)
        return map(np.asarray, jax.tree.leaves((y, jax.grad(loss(function), tuple(range(len(arrays))))(*arrays))))
