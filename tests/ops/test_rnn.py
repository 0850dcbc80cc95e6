"""Recurrent networks: values by hand and from PyTorch, every gradient by finite differences, RNNBlock's promises."""

from __future__ import annotations

import json

import numpy as np
import pytest
from folders import ROOT
from rnn_cases import LENGTHS, MODES, VARIANTS, case, torch_module, upstream, variant

import numbadnn
from numbadnn import RNNBlock, cases, reference
from numbadnn.measuring.laws import law
from numbadnn.problem import Spec
from numbadnn.problems.rnn import make

# ---- values ----------------------------------------------------------------------------------------------------------


def test_hand_values():
    """One unit, weights W, R and biases; the gates written out."""

    def s(a):
        return 1 / (1 + np.exp(-a))

    x, h, c = 0.5, -0.25, 0.75
    W, R, bW, bR = (
        np.array([0.1, -0.2, 0.3, 0.4]),
        np.array([0.5, 0.6, -0.7, 0.8]),
        np.arange(4) / 10,
        np.arange(4) / -20,
    )
    one = np.array([[[x]]]), np.array([[[h]]])
    a = W * x + R * h + bW + bR
    new_c = s(a[1]) * c + s(a[0]) * np.tanh(a[2])
    y, hy, cy = RNNBlock("float64", 1, 1, "lstm").apply(np.concatenate([W, R, bW, bR]), *one, np.array([[[c]]]))
    np.testing.assert_allclose(
        [y[0, 0, 0], hy[0, 0, 0], cy[0, 0, 0]], [s(a[3]) * np.tanh(new_c)] * 2 + [new_c], rtol=1e-14
    )
    n = np.tanh(W[2] * x + bW[2] + s(a[0]) * (R[2] * h + bR[2]))
    w = np.concatenate([W[:3], R[:3], bW[:3], bR[:3]])
    y, _ = RNNBlock("float64", 1, 1, "gru").apply(w, *one)
    np.testing.assert_allclose(y[0, 0, 0], (1 - s(a[1])) * n + s(a[1]) * h, rtol=1e-14)
    skipped, _ = RNNBlock("float64", 1, 1, "rnn_tanh", "skip").apply(np.array([R[0], bW[0], bR[0]]), *one)
    np.testing.assert_allclose(skipped[0, 0, 0], np.tanh(x + R[0] * h + bW[0] + bR[0]), rtol=1e-14)


def test_parameters_that_are_no_keys_and_weights_that_are_no_arrays():
    one, w = np.ones((1, 1, 1)), np.array([2.0, 3.0, 0.0, 1.0])
    y, _ = numbadnn.rnn_forward(w, one, one, hidden_size=1, num_layers=np.array(1), rnn_mode="rnn_relu")
    assert y.item() == 6
    with pytest.raises(ValueError, match="rnn_mode: expected one of"):
        numbadnn.rnn_forward(w, one, one, hidden_size=1, num_layers=1, rnn_mode=["lstm"])
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    with pytest.raises(TypeError, match="w: expected an array or a tensor, got dict"):
        numbadnn.rnn_weights_to_torch({1: 2}, torch.nn.GRU(2, 3))
    with pytest.raises(TypeError, match="w: expected a NumPy array, got Tensor"):
        numbadnn.rnn_weights_to_onnx(torch.ones(3, requires_grad=True), RNNBlock("float64", 1, 1, "gru"), 2)


@pytest.mark.parametrize("name", ["plain", "both", "lengths"])
@pytest.mark.parametrize("mode", MODES)
def test_the_reference_is_pytorchs(mode, name):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    block, a, lengths = variant(mode, name)
    module = torch_module(torch, block, a["x"].shape[2], torch.float64)
    numbadnn.rnn_weights_to_torch(a["w"], module)
    tensors = {k: torch.from_numpy(v).requires_grad_() for k, v in a.items()}
    x = tensors["x"]
    if lengths:
        x = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
    y, ends = module(x, (tensors["hx"], tensors["cx"]) if mode == "lstm" else tensors["hx"])
    if lengths:
        y, _ = torch.nn.utils.rnn.pad_packed_sequence(y, total_length=len(a["x"]))
    theirs = [y, *ends] if mode == "lstm" else [y, ends]
    specs = {k: Spec.of("float64", v.shape) for k, v in a.items()}
    network = make("rnn_forward", block.network, specs, lengths).keywords
    ours = reference.rnn_forward(**a, **network)
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine, other.detach().numpy(), atol=1e-13)
    above = upstream(ours)
    sum((t * torch.from_numpy(g)).sum() for t, g in zip(theirs, above, strict=True)).backward()
    given = (*list(a)[3:], "dy", "dhy", "dcy")[: len(a) - 3 + len(above)]
    gradients = reference.rnn_backward(*a.values(), *above, given=given, **network)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(parameter.grad)
    expected = [numbadnn.rnn_weights_from_torch(module), *(tensors[k].grad for k in list(a)[1:])]
    for mine, other in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(mine, other.numpy(), atol=1e-12)


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("mode", MODES)
def test_every_gradient_by_finite_differences(mode, name):
    """Of sum(dy y) + sum(dhy hy) + sum(dcy cy), in every element of every input, in float64."""
    block, a, lengths = variant(mode, name)
    outputs, reserve = block.forward(**a, lengths=lengths)
    above = upstream(outputs)
    gradients = dict(zip(("w", "x", "hx", "cx"), block.backward(reserve, *above), strict=False))
    assert set(gradients) == set(a)

    def value(**changed):
        found = block.apply(**{**a, **changed}, lengths=lengths)
        return sum(float((o * g).sum()) for o, g in zip(found, above, strict=True))

    step = 1e-6
    for key, array in a.items():
        sampled = np.random.default_rng(2).permutation(array.size)[:60]
        for i in sampled:
            up, down = array.copy(), array.copy()
            up.flat[i] += step
            down.flat[i] -= step
            slope = (value(**{key: up}) - value(**{key: down})) / (2 * step)
            assert gradients[key].flat[i] == pytest.approx(slope, rel=1e-6, abs=1e-7), (key, i)


# ---- what RNNBlock promises ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("mode", MODES)
def test_forward_and_backward_are_apply_and_the_operation(mode, dtype):
    block, a = case(mode, both=True, dtype=dtype)
    outputs, reserve = block.forward(**a, lengths=np.array(LENGTHS))
    applied = block.apply(**a, lengths=list(LENGTHS))
    assert [o.dtype for o in outputs] == [np.dtype(dtype)] * len(outputs)
    assert all(np.array_equal(o, p) for o, p in zip(outputs, applied, strict=True))
    above = upstream(outputs)
    gradients = block.backward(reserve, *above)
    names = (*list(a)[3:], "dy", "dhy", "dcy")[: len(a) - 3 + len(above)]
    n = block.network
    alone = numbadnn.rnn_backward(
        *a.values(), *above, given=names, hidden_size=n.hidden_size, num_layers=n.num_layers, rnn_mode=mode,
        direction_mode=n.direction_mode, lengths=LENGTHS,
    )  # fmt: skip
    assert all(np.array_equal(g, h) for g, h in zip(gradients, alone, strict=True))
    again, reserve = block.forward(**a, lengths=LENGTHS)
    assert all(np.array_equal(g, h) for g, h in zip(gradients, block.backward(reserve, *above), strict=True))
    assert all(np.array_equal(o, p) for o, p in zip(outputs, again, strict=True))


def test_weights_that_are_one_number_are_not_taken_for_sparse_ones():
    """Their sums are too large to be exact; a fuzzer on a GPU called ten of 24,507 networks wrong for it."""
    found = json.loads((ROOT / "bench" / "results" / "nvidia_h200_fuzz_rnn.json").read_text())["findings"]
    lines = [f["case"] for f in found if "integers data" in f["text"]]
    assert len(lines) == 10
    for line in lines:
        problem = cases.parse(line)
        assert not law(problem.op).exact_integers(problem)
    assert law("rnn_forward").exact_integers(
        cases.parse("rnn_forward w=float32:8 x=float32:1x1x1 hx=float32:2x1x1 mode=rnn_relu hidden=1 layers=2")
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("both", (False, True))
def test_what_lies_past_the_end_of_a_sequence_is_no_part_of_it(mode, both):
    """NaN there, in x and dy, changes no bit; it made dw NaN, as 0 times NaN is."""
    block, a = case(mode, both=both)
    outputs, reserve = block.forward(**a, lengths=LENGTHS)
    above = upstream(outputs)
    right = [*outputs, *block.backward(reserve, *above)]
    dirty, dy = a["x"].copy(), above[0].copy()
    for i, end in enumerate(LENGTHS):
        dirty[end:, i] = dy[end:, i] = np.nan
    outputs, reserve = block.forward(**{**a, "x": dirty}, lengths=LENGTHS)
    found = [*outputs, *block.backward(reserve, dy, *above[1:])]
    assert all(np.array_equal(g, r) for g, r in zip(found, right, strict=True))
    n = block.network
    given = ("cx",) * ("cx" in a) + ("dy", "dhy", "dcy")[: len(above)]
    known = (*((a["cx"],) if "cx" in a else ()), dy, *above[1:])
    alike = reference.rnn_backward(
        a["w"], dirty, a["hx"], *known, given=given, hidden_size=n.hidden_size, num_layers=n.num_layers, rnn_mode=n.rnn_mode,
        input_mode=n.input_mode, direction_mode=n.direction_mode, lengths=LENGTHS,
    )  # fmt: skip
    for g, r in zip(alike, right[len(outputs) :], strict=True):
        np.testing.assert_allclose(g, r, atol=1e-12)


@pytest.mark.parametrize("mode", MODES)
def test_lengths_are_sequences_computed_alone(mode):
    block, a = case(mode, both=True)
    outputs, reserve = block.forward(**a, lengths=LENGTHS)
    above = upstream(outputs)
    gradients = block.backward(reserve, *above)
    dw = np.zeros_like(a["w"])
    for i, end in enumerate(LENGTHS):
        one = {k: v if k == "w" else v[:, i : i + 1].copy() for k, v in a.items()}
        one["x"] = one["x"][:end]
        own, reserve = block.forward(**one)
        for whole, part in zip(outputs, own, strict=True):
            np.testing.assert_allclose(whole[: len(part), i : i + 1], part, atol=1e-14)
        assert not outputs[0][end:, i].any()
        grads = block.backward(reserve, *(g[: len(o), i : i + 1].copy() for g, o in zip(above, own, strict=True)))
        dw += grads[0]
        for whole, part in zip(gradients[1:], grads[1:], strict=True):
            np.testing.assert_allclose(whole[: len(part), i : i + 1], part, atol=1e-13)
        assert not gradients[1][end:, i].any()
    np.testing.assert_allclose(gradients[0], dw, atol=1e-13)


@pytest.mark.parametrize("mode", ["gru", "lstm"])
def test_absent_gradients_are_zeros(mode):
    block, a = case(mode)
    outputs = block.apply(**a)
    above = upstream(outputs)
    for present in [(1,), (0, 1), (len(above) - 1,)]:
        some = [g if i in present else None for i, g in enumerate(above)]
        full = [g if i in present else np.zeros_like(g) for i, g in enumerate(above)]
        left, right = (block.backward(block.forward(**a)[1], *g) for g in (some, full))
        assert all(np.array_equal(p, q) for p, q in zip(left, right, strict=True))


def test_no_cell_is_a_cell_of_zeros():
    block, a = case("lstm")
    with_zeros = {**a, "cx": np.zeros_like(a["cx"])}
    del a["cx"]
    results = [block.forward(**arrays) for arrays in (a, with_zeros)]
    assert all(np.array_equal(p, q) for p, q in zip(results[0][0], results[1][0], strict=True))
    grads = [block.backward(reserve, outputs[0]) for outputs, reserve in results]
    assert len(grads[0]) == 4
    assert all(np.array_equal(p, q) for p, q in zip(*grads, strict=True))


def test_an_empty_batch():
    block, a = case("lstm", batch=0)
    (y, hy, cy), reserve = block.forward(**a)
    assert (y.shape, hy.shape, cy.shape) == ((4, 0, 3), (2, 0, 3), (2, 0, 3))
    dw, dx, *_ = block.backward(reserve, y)
    assert not dw.any() and dx.shape == a["x"].shape


def test_saturated_gates_and_nan():
    block, a = case("lstm", layers=1, dtype="float32")
    a["x"] *= 1e4
    y, hy, _ = block.apply(**a)
    assert np.isfinite(y).all()
    for mode in MODES:
        block, a = case(mode, layers=1)
        a["x"][1, 2] = np.nan
        y = block.apply(**a)[0]
        assert np.isfinite(y[:, :2]).all() and np.isfinite(y[0]).all() and np.isnan(y[1:, 2]).all()


@pytest.mark.parametrize("mode", ["rnn_relu", "lstm", "gru"])
def test_threads_do_not_change_a_bit(mode, monkeypatch):
    """Of 19 sequences each of two threads has some, and neither a whole number of tiles."""
    from numbadnn.cpu.lang import parallel

    block, a = case(mode, batch=19, dtype="float32", hidden=70)
    monkeypatch.setattr(parallel, "SMALL", 0)

    def results():
        outputs, reserve = block.forward(**a)
        return (*outputs, *block.backward(reserve, np.ones_like(outputs[0])))

    with numbadnn.using(threads=1):
        alone = results()
    with numbadnn.using(threads=2):
        assert all(np.array_equal(p, q) for p, q in zip(alone, results(), strict=True))


@pytest.mark.parametrize("mode", ["rnn_relu", "lstm", "gru"])
def test_more_steps_than_are_taken_or_summed_at_once(mode):
    """Steps of 256 rows of gates a thread are taken at a time, parameters' gradients summed over 2,048: here are 2,700,
    of sequences that end within such parts, in both directions."""
    block, a = case(mode, hidden=5, batch=9, layers=2, steps=300, both=True)
    lengths = (300, 1, 28, 29, 57, 299, 200, 256, 3)
    shape = {"hidden_size": 5, "num_layers": 2, "rnn_mode": mode, "direction_mode": "bidirectional", "lengths": lengths}
    outputs, reserve = block.forward(**a, lengths=lengths)
    alone = block.apply(**a, lengths=lengths)
    for ours, same, true in zip(outputs, alone, reference.rnn_forward(**a, **shape), strict=True):
        assert np.array_equal(ours, same) and np.abs(ours - true).max() < 1e-12
    dy = np.cos(np.arange(outputs[0].size)).reshape(outputs[0].shape)
    exact = reference.rnn_backward(*a.values(), dy, given=(*list(a)[3:], "dy"), **shape)
    for ours, true in zip(block.backward(reserve, dy), exact, strict=True):
        assert np.abs(ours - true).max() < 1e-12 * np.abs(true).max()


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_gates_are_as_exact_as_their_type(kind):
    """Of both: 8 units of 1; tanh near 0 some units of itself."""
    numba = pytest.importorskip("numba")
    from numbadnn.cpu.rnn.curves import sigmoid, tanh

    @numba.njit
    def both(a, s, t):
        for i in range(len(a)):
            s[i], t[i] = sigmoid(a[i]), tanh(a[i])

    ends = [0.0, -0.0, np.inf, -np.inf, np.nan]
    a = np.r_[np.linspace(-110, 110, 30_001), np.linspace(-0.5, 0.5, 30_001), 10.0 ** np.linspace(-37, 0, 500), ends]
    a = a.astype(kind)
    s, t = np.empty_like(a), np.empty_like(a)
    both(a, s, t)
    unit, wide = np.finfo(kind).eps / 2, a.astype(np.longdouble)
    with np.errstate(over="ignore", invalid="ignore"):
        assert np.nanmax(np.abs(s - 1 / (1 + np.exp(-wide)))) < 8 * unit
        assert (np.abs(t - np.tanh(wide)) <= 24 * unit * np.abs(np.tanh(wide)))[:-1].all()
        assert np.nanmax(np.abs(t - np.tanh(wide))) < 8 * unit
    assert list(s[-5:-1]) == [0.5, 0.5, 1, 0] and list(t[-5:-1]) == [0, 0, 1, -1] and np.signbit(t[-4])
    assert np.isnan(s[-1]) and np.isnan(t[-1])


@pytest.mark.parametrize("batch", [1, 9])
@pytest.mark.parametrize("mode", ["rnn_tanh", "lstm", "gru"])
def test_products_longer_than_a_block_and_of_no_whole_panels(mode, batch):
    """The micro-kernel takes 256 terms at a time, of tiles of 8 sequences by 32 units at most: here are a few more of each."""
    block, a = case(mode, hidden=261, batch=batch, layers=1, steps=3)
    single = RNNBlock("float32", 261, 1, mode)
    outputs, reserve = block.forward(**a)
    narrow, kept = single.forward(**{name: v.astype(np.float32) for name, v in a.items()})
    dy = np.cos(np.arange(outputs[0].size)).reshape(outputs[0].shape)
    shape = {"hidden_size": 261, "num_layers": 1, "rnn_mode": mode}
    exact = reference.rnn_forward(**a, **shape)
    for ours, less, true in zip(outputs, narrow, exact, strict=True):
        assert np.abs(ours - true).max() < 1e-13 and np.abs(less - true).max() < 2e-6
    exact = reference.rnn_backward(*a.values(), dy, given=(*list(a)[3:], "dy"), **shape)
    for ours, less, true in zip(
        block.backward(reserve, dy), single.backward(kept, dy.astype(np.float32)), exact, strict=True
    ):
        assert np.abs(ours - true).max() < 1e-12 * np.abs(true).max()
        assert np.abs(less - true).max() < 1e-5 * np.abs(true).max()


def test_the_bound_of_one_hidden_unit_is_what_many_samples_give(monkeypatch):
    """Of six samples two equal errors may cancel in all: then the bound was 0.6 of this, and right results failed."""
    from numbadnn.reference import rnn_bounds

    rounding = {"unit": 2.0**-24, "store": 2.0**-11, "tiny": 2.0**-25}
    for seed in range(20):
        rng = np.random.default_rng(seed)
        arrays = [rng.standard_normal(shape) for shape in ((15,), (1 + seed % 5, 1, 2), (1, 1, 1))]
        given = rnn_bounds.rnn_forward_bound(
            *arrays, None, rounding=rounding, hidden_size=1, num_layers=1, rnn_mode="gru"
        )
        with monkeypatch.context() as patch:
            patch.setattr(rnn_bounds, "SAMPLES", 1500)
            many = rnn_bounds.rnn_forward_bound(
                *arrays, None, rounding=rounding, hidden_size=1, num_layers=1, rnn_mode="gru"
            )
        for some, all_of_them in zip(given, many, strict=True):
            assert (some > 0.9 * all_of_them).all()


def test_either_side_of_a_kink_is_in_the_bound():
    """Of sums that are 0 but for rounding all six samples fell on the exact one's side in one of 64: the bound knew no other."""
    from numbadnn.reference import rnn_bounds

    units, images, samples = 60, 10, 6
    noisy = rnn_bounds._Noisy(rnn_bounds._Rounding(unit=2.0**-24, store=2.0**-11), samples, images)
    terms = [(np.full(((1 + samples) * images, 1), 1e-9), np.ones((units, 1)))]
    runs = noisy.relu(terms, np.ones(units), -np.ones(units))[1].reshape(1 + samples, images, units)
    assert (runs[1:] != runs[0]).any(axis=0).all()


@pytest.mark.parametrize("mode", ["rnn_relu", "lstm", "gru"])
def test_the_first_run_of_the_bounds_is_the_exact_one(mode, monkeypatch):
    """The samples lie beside it in one batch, and only they are noisy: each of them is off."""
    from numbadnn.reference import rnn_bounds

    runs = []
    keep = rnn_bounds._deviation
    monkeypatch.setattr(rnn_bounds, "_deviation", lambda a: runs.append(a) or keep(a))
    rng, gates = np.random.default_rng(5), {"rnn_relu": 1, "gru": 3, "lstm": 4}[mode]
    w = rng.standard_normal(gates * 4 * (3 + 4 + 2))
    arrays = w, rng.standard_normal((5, 2, 3)), rng.standard_normal((1, 2, 4))
    dy, shape = rng.standard_normal((5, 2, 4)), {"hidden_size": 4, "num_layers": 1, "rnn_mode": mode}
    rounding = {"unit": 2.0**-24, "store": 2.0**-11, "tiny": 2.0**-25, "products": 2.0**-11}
    rnn_bounds.rnn_forward_bound(*arrays, rounding=rounding, **shape)
    for a, exact in zip(runs, reference.rnn_forward(*arrays, **shape), strict=True):
        assert np.allclose(a[0], exact, rtol=1e-13, atol=1e-15)
        assert all(
            (np.abs(sample - exact).max(initial=0) > 1e-6) and np.allclose(sample, exact, atol=0.1) for sample in a[1:]
        )
    runs.clear()
    rnn_bounds.rnn_backward_bound(*arrays, dy, given=("dy",), rounding=rounding, **shape)
    dw, *rest = reference.rnn_backward(*arrays, dy, given=("dy",), **shape)
    found = [np.concatenate([a[0].ravel() for a in runs[: -len(rest)]]), *(a[0] for a in runs[-len(rest) :])]
    for a, exact in zip(found, (dw, *rest), strict=True):
        assert np.allclose(a, exact, rtol=1e-12, atol=1e-14)
