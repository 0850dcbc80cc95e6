"""Every wrong argument is a clear error that names it, what was expected and what came, before anything runs."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import numbadnn

X = np.ones((2, 4, 6, 5), np.float32)
W = np.ones((6, 4, 3, 3), np.float32)
G = np.ones((2, 6, 4, 3), np.float32)
CONV_CASES: list[tuple[type[Exception], str, tuple[Any, ...], dict[str, Any]]] = [
    (ValueError, r"input: expected 4 dimensions, got 3", (X[0], W), {}),
    (ValueError, r"filters: expected 4 dimensions, got 5", (X, W[None]), {}),
    (ValueError, r"filters: expected 4 channels \(4 channels of input in 1 groups\), got 3", (X, W[:, :3]), {}),
    (ValueError, r"num_groups: expected a divisor of the 4 channels of input, got 3", (X, W), {"num_groups": 3}),
    (ValueError, r"num_groups: expected a divisor of the 5 filters", (X, W[:5, :2]), {"num_groups": 2}),
    (ValueError, r"num_groups must have value greater than zero", (X, W), {"num_groups": 0}),
    (ValueError, r"border_mode.*'same'", (X, W), {"border_mode": "same"}),
    (ValueError, r"border_mode.*-1", (X, W), {"border_mode": -1}),
    (ValueError, r"must be a tuple of length 2", (X, W), {"border_mode": (1, 1, 1)}),
    (
        ValueError,
        r"subsample: expected a tuple of 2 integers >= 1, got \(0, 1\)|subsample.*0",
        (X, W),
        {"subsample": (0, 1)},
    ),
    (ValueError, r"subsample", (X, W), {"subsample": (1,)}),
    (ValueError, r"filter_dilation: expected an integer >= 1, got 0", (X, W), {"filter_dilation": 0}),
    (
        ValueError,
        r"filters: expected a \(dilated\) window no larger than the padded image.*\)\)$",
        (X[:, :, :2], W),
        {},
    ),
    (ValueError, r"no larger than the padded image, .*; the images come first", (W, X.repeat(2, -1)), {}),
    (ValueError, r"filters: expected a \(dilated\) window", (X, W), {"filter_dilation": (3, 1)}),
    (ValueError, r"input_shape: expected the array's own shape", (X, W), {"input_shape": (2, 4, 6, 6)}),
    (ValueError, r"filter_shape: expected", (X, W), {"filter_shape": (6, 4, 3)}),
    (TypeError, r"input: expected dtype float16, .* got int32", (X.astype("int32"), W), {}),
    (TypeError, r"filters: expected dtype .* got complex64", (X, W.astype("complex64")), {}),
    (TypeError, r"filters: expected dtype .* got bool", (X, W.astype(bool)), {}),
    (TypeError, r"filters: expected dtype .* got float8_e4m3fn", (X, W.astype(ml_dtypes.float8_e4m3fn)), {}),
    (TypeError, r"input: expected an array .* got builtins.list", (X.tolist(), W), {}),
    (TypeError, r"filters: expected an array .* got builtins.str", (X, "weights"), {}),
    (TypeError, r"filters: expected an array, got the NumPy scalar", (X, np.float32(1)), {}),
    (TypeError, r"input: expected native byte order", (X.astype(">f4"), W), {}),
    (TypeError, r"input: expected a plain numpy.ndarray, got MaskedArray", (np.ma.masked_array(X), W), {}),
    (TypeError, r"alpha: expected a number, got 'two'", (X, W), {"alpha": "two"}),
    (TypeError, r"alpha: expected a number, got '2'", (X, W), {"alpha": "2"}),
    (ValueError, r"sizes of filters: expected an integer >= 1, got 0", (X, W[:, :, :0]), {}),
    (ValueError, r"out: required when beta is not 0 \(beta=1\), got None", (X, W), {"beta": 1}),
    (
        ValueError,
        r"out: expected shape \(2, 6, 4, 3\), got \(2, 6, 4, 4\)",
        (X, W),
        {"out": np.ones((2, 6, 4, 4), "f4")},
    ),
    (TypeError, r"out: expected dtype float32, got float64", (X, W), {"out": np.ones((2, 6, 4, 3))}),
    (TypeError, r"out: expected an array", (X, W), {"out": [1.0]}),
    (ValueError, r"precision: expected one of", (X, W), {"precision": "double"}),
    (ValueError, r"stream: expected None for arrays on the CPU", (X, W), {"stream": 0}),
]


@pytest.mark.parametrize(("error", "message", "args", "options"), CONV_CASES, ids=[c[1][:40] for c in CONV_CASES])
def test_conv2d(error: type[Exception], message: str, args: tuple[Any, ...], options: dict[str, Any]) -> None:
    for _ in range(2):  # the second time from whatever was remembered
        with pytest.raises(error, match=message):
            numbadnn.conv2d(*args, **options)


def test_gradients() -> None:
    with pytest.raises(ValueError, match="invalid input_shape for gradInputs: the given input_shape would produce"):
        numbadnn.conv2d_grad_wrt_inputs(G, W, (2, 4, 7, 5))
    with pytest.raises(ValueError, match="input_shape: expected"):
        numbadnn.conv2d_grad_wrt_inputs(G, W, None)
    with pytest.raises(ValueError, match=r"input_shape: expected by output_grad and filters \(2, 4, 6, 5\)"):
        numbadnn.conv2d_grad_wrt_inputs(G, W, (2, 5, 6, 5))
    with pytest.raises(ValueError, match=r"filter_shape: expected by input and output_grad \(6, 4, 3, 3\)"):
        numbadnn.conv2d_grad_wrt_weights(X, G, (7, 4, 3, 3))
    with pytest.raises(ValueError, match=r"output_grad: expected 6 channels \(one a filter\), got 5"):
        numbadnn.conv2d_grad_wrt_inputs(G[:, :5], W, (2, 4, 6, 5))
    with pytest.raises(ValueError, match="filter_shape: expected"):
        numbadnn.conv2d_grad_wrt_weights(X, G, (3, 3))
    with pytest.raises(ValueError, match=r"output_grad: expected shape \(2, 6, 5, 4\), got \(2, 6, 4, 3\)"):
        numbadnn.conv2d_grad_wrt_weights(X, G, (6, 4, 2, 2))
    with pytest.raises(ValueError, match="output_grad: expected 4 dimensions"):
        numbadnn.conv2d_grad_wrt_weights(X, G[0], (6, 4, 3, 3))
    with pytest.raises(ValueError, match=r"output_grad: expected shape \(2, .*got \(1,"):
        numbadnn.conv2d_grad_wrt_weights(X, G[:1], (6, 4, 3, 3))


def test_softmax() -> None:
    x = np.ones((2, 3), np.float32)
    for call, error, message in (
        (lambda: numbadnn.softmax(x[0]), ValueError, r"x: expected at least 2 dimensions, got 1"),
        (lambda: numbadnn.softmax(x, "quick"), ValueError, "algo: expected one of fast, accurate, log, got 'quick'"),
        (lambda: numbadnn.softmax(x, mode="row"), ValueError, "mode: expected one of channel, instance, got 'row'"),
        (lambda: numbadnn.softmax(x.astype(int)), TypeError, "x: expected dtype"),
        (lambda: numbadnn.softmax_grad(x, x[:1]), ValueError, r"sm: expected dy's shape \(2, 3\), got \(1, 3\)"),
        (lambda: numbadnn.softmax_grad(x, x.astype("float16")), TypeError, "sm: expected dy's dtype float32"),
    ):
        with pytest.raises(error, match=message):
            call()


def test_out_must_be_writable_and_memory_of_its_own() -> None:
    readonly = np.ones((2, 6, 4, 3), np.float32)
    numbadnn.conv2d(X, W, out=readonly)
    readonly.flags.writeable = False
    with pytest.raises(ValueError, match="out: expected a writable array, got a read-only one"):
        numbadnn.conv2d(X, W, out=readonly)
    x = np.random.default_rng(0).standard_normal((4, 8)).astype("float32")
    before = x.copy()
    other = np.empty_like(x)
    numbadnn.softmax(x, out=other)
    for out in (x, x[::-1]):  # the second call finds a remembered plan: the check is of every call
        with pytest.raises(ValueError, match="out: expected memory of its own, got an array that overlaps an input"):
            numbadnn.softmax(x, out=out)
    assert np.array_equal(x, before)
    with pytest.raises(ValueError, match="out: expected an array whose elements do not overlap"):
        numbadnn.softmax(x, out=np.lib.stride_tricks.as_strided(other, (4, 8), (4, 4)))
    interleaved = np.ones((4, 16), np.float32)
    numbadnn.softmax(interleaved[:, ::2], out=interleaved[:, 1::2])  # ranges cross, elements do not
    assert np.allclose(interleaved[:, 1::2], 1 / 8)


def test_an_empty_destination_has_no_elements_to_overlap() -> None:
    empty = np.empty(0, np.float32)  # as NumPy often has them
    out = np.lib.stride_tricks.as_strided(empty, (0, 6, 4, 3), (0, 0, 0, 0))
    assert numbadnn.conv2d(X[:0], W, out=out) is out


def test_strides_that_are_no_whole_elements() -> None:
    record = np.zeros((2, 3), [("a", "f4"), ("b", "u1")])
    with pytest.raises(ValueError, match="x: expected strides that are multiples of the 4-byte item"):
        numbadnn.softmax(record["a"])


def test_a_failed_call_leaves_everything_usable() -> None:
    with pytest.raises(ValueError):
        numbadnn.conv2d(X, W[:, :3])
    assert numbadnn.conv2d(X, W).shape == (2, 6, 4, 3)


def test_lists_are_read_as_tuples() -> None:
    want = numbadnn.conv2d(X, W, border_mode=(1, 1), subsample=(2, 2))
    assert np.array_equal(numbadnn.conv2d(X, W, border_mode=[1, 1], subsample=[2, 2]), want)
    shape = np.array(X.shape)
    want = numbadnn.conv2d_grad_wrt_inputs(want, W, X.shape, border_mode=1, subsample=(2, 2))
    top = numbadnn.conv2d(X, W, border_mode=1, subsample=(2, 2))
    assert np.array_equal(numbadnn.conv2d_grad_wrt_inputs(top, W, shape, border_mode=1, subsample=[2, 2]), want)
    with pytest.raises(ValueError, match=r"out: expected an array or a tuple of them, got \(\)"):
        numbadnn.conv2d(X, W, out=())
    ones = np.ones((1, 2, 1, 1))
    results = [np.empty((1, 2, 4, 4)), *(np.empty_like(ones) for _ in range(2))]
    for out, got in ((results, "a list"), ((None, *results[1:]), "None in a tuple")):
        with pytest.raises(TypeError, match=f"out: expected an array, or a tuple of one for each result .* got {got}"):
            numbadnn.batch_normalization_train(results[0], ones, ones, "spatial", out=out)
    for options in ({"border_mode": 10**30}, {"subsample": (10**20, 1)}):
        with pytest.raises(ValueError, match=f"{next(iter(options))}: expected an integer of at most"):
            numbadnn.conv2d(X, W, **options)
    with pytest.raises(TypeError, match="alpha: expected a number"):
        numbadnn.conv2d(X, W, alpha=10**400)


def test_a_plan_kept_checks_what_it_is_called_with() -> None:
    plan, target = numbadnn.plan(numbadnn.conv2d, X, W), np.zeros((2, 6, 4, 3), np.float32)
    assert plan(X, W, out=target) is target and target.any()
    target[:] = 0
    target.flags.writeable = False
    with pytest.raises(ValueError, match="out: expected a writable array"):
        plan(X, W, out=target)
    assert not target.any()
    for arrays in ((X,), (X, W, W)):
        with pytest.raises(TypeError, match="expected 2 arrays"):
            plan(*arrays)
    adding = numbadnn.plan(numbadnn.conv2d, X, W, out=np.ones_like(target), beta=1.0)
    with pytest.raises(ValueError, match="out: expected an array, to which beta=1 is applied"):
        adding(X, W)


def test_outputs_must_not_overlap_each_other() -> None:
    x, gamma = np.random.default_rng(0).standard_normal((4, 3, 5, 5)), np.ones((1, 3, 1, 1))
    y, mean = np.empty_like(x), np.empty_like(gamma)
    inside = y.reshape(-1)[:3].reshape(gamma.shape)
    for out in ((y, mean, mean), (y, inside, mean)):
        with pytest.raises(ValueError, match="two that overlap"):
            numbadnn.batch_normalization_train(x, gamma, gamma, "spatial", out=out)
    numbadnn.batch_normalization_train(x, gamma, gamma, "spatial", out=(y, mean, np.empty_like(mean)))


def test_a_warning_points_at_the_line_of_the_caller() -> None:
    with pytest.warns(RuntimeWarning, match="runs on") as caught:
        numbadnn.conv2d(X[:1], W, algo="fft")
    assert [w.filename for w in caught] == [__file__]


TABLE = np.ones((2, 3), np.float32)
LSTM: dict[str, Any] = {"hidden_size": 2, "num_layers": 1, "rnn_mode": "lstm"}
NETWORK = numbadnn.RNNBlock("float32", 2, 1, "lstm")
PARAMETERS = np.ones(NETWORK.get_param_size([3, 4]), np.float32)
SEQUENCE, STATE = np.ones((5, 3, 4), np.float32), np.ones((1, 3, 2), np.float32)


@pytest.mark.parametrize("bad", [TABLE, np.zeros(0), [TABLE], (TABLE, TABLE), {}, {1: 2}, slice(3)], ids=repr)
@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("algo", lambda bad: numbadnn.softmax(TABLE, bad)),
        ("mode", lambda bad: numbadnn.softmax(TABLE, "accurate", bad)),
        ("mode", lambda bad: numbadnn.softmax_grad(TABLE, TABLE, mode=bad)),
        ("backend", lambda bad: numbadnn.softmax(TABLE, backend=bad)),
        ("backend", lambda bad: numbadnn.softmax(TABLE[:0], backend=bad)),
        ("backend", lambda bad: numbadnn.RNNBlock("float32", 2, 1, "lstm", backend=bad)),
        ("backend", lambda bad: NETWORK.apply(PARAMETERS, SEQUENCE, STATE, backend=bad)),
        ("dropout", lambda bad: numbadnn.dropout(TABLE, bad)),
        ("seed", lambda bad: numbadnn.dropout(TABLE, 0.5, bad)),
        ("offset", lambda bad: numbadnn.dropout(TABLE, 0.5, offset=bad)),
        ("ws", lambda bad: numbadnn.pool(X, bad)),
        ("stride", lambda bad: numbadnn.pool(X, (2, 2), bad)),
        ("pad", lambda bad: numbadnn.pool(X, (2, 2), pad=bad)),
        ("mode", lambda bad: numbadnn.pool(X, (2, 2), mode=bad)),
        ("mode", lambda bad: numbadnn.pool_grad(X, X, X, (1, 1), mode=bad)),
        ("rnn_mode", lambda bad: numbadnn.rnn_forward(PARAMETERS, SEQUENCE, STATE, **{**LSTM, "rnn_mode": bad})),
        ("input_mode", lambda bad: numbadnn.rnn_forward(PARAMETERS, SEQUENCE, STATE, **LSTM, input_mode=bad)),
        ("rnn_mode", lambda bad: numbadnn.RNNBlock("float32", 2, 1, bad)),
        ("direction_mode", lambda bad: numbadnn.RNNBlock("float32", 2, 1, "gru", direction_mode=bad)),
        ("dtype", lambda bad: numbadnn.RNNBlock(bad, 2, 1, "gru")),
        ("layer", lambda bad: NETWORK.split_params(PARAMETERS, bad, [3, 4])),
        ("input_size", lambda bad: NETWORK.get_param_size([3, bad])),
        ("lengths", lambda bad: NETWORK.apply(PARAMETERS, SEQUENCE, STATE, lengths=[bad, 1, 2])),
        ("given", lambda bad: numbadnn.rnn_backward(PARAMETERS, SEQUENCE, STATE, TABLE, given=bad, **LSTM)),
        ("mode", lambda bad: numbadnn.batch_normalization_test(TABLE, *[TABLE[:1]] * 4, bad)),
        ("algo", lambda bad: numbadnn.conv2d(X, W, algo=bad)),
        ("precision", lambda bad: numbadnn.conv2d(X, W, precision=bad)),
        ("filter_flip", lambda bad: numbadnn.conv2d(X, W, filter_flip=bad)),
        ("unshared", lambda bad: numbadnn.conv2d(X, W, unshared=bad)),
        ("filter_flip", lambda bad: numbadnn.causal_conv1d(X[:, :, 0], W[:, :, 0], filter_flip=bad)),
        ("border_mode", lambda bad: numbadnn.conv2d(X, W, border_mode=bad)),
        ("alpha", lambda bad: numbadnn.conv2d(X, W, alpha=bad)),
    ],
)  # fmt: skip
def test_an_array_or_a_list_where_a_word_or_a_number_belongs(name: str, call: Any, bad: Any) -> None:
    for _ in range(2):
        with pytest.raises((ValueError, TypeError), match=rf"(^|invalid ){name}[: ].*(expected|must be)"):
            call(bad)


def test_an_array_in_the_place_of_a_word_is_not_printed_whole() -> None:
    with pytest.raises(
        ValueError, match=r"algo: expected one of fast, accurate, log, got an array of float32 \(2, 3\)$"
    ):
        numbadnn.softmax(TABLE, TABLE)
    assert numbadnn.batch_normalization_test(TABLE, *[TABLE[:1]] * 4, epsilon=np.array(0.0))[0, 0] == 1
    assert numbadnn.pool(X, np.array([2, 2])).shape == (2, 4, 5, 4)


def test_words_for_truth_values_are_refused() -> None:
    with pytest.raises(TypeError, match="filter_flip: expected True or False, got 'no'"):
        numbadnn.conv2d(X, W, filter_flip="no")
    with pytest.raises(TypeError, match="filter_flip: expected True or False, got 2"):
        numbadnn.conv2d(X, W, filter_flip=2)
    expected = numbadnn.conv2d(X, W, filter_flip=True)
    for equal in (np.True_, 1, 1.0):  # equal keys: what is remembered for one is taken for the others
        numbadnn.clear_caches()
        assert np.array_equal(numbadnn.conv2d(X, W, filter_flip=equal), expected)


def test_a_destination_whose_elements_interleave_but_do_not_overlap() -> None:
    memory = np.full(8, np.nan, "f4")
    out = np.lib.stride_tricks.as_strided(memory, (3, 2), (8, 12))  # elements 0 3, 2 5, 4 7
    numbadnn.softmax(np.zeros((3, 2), "f4"), out=out)
    np.testing.assert_array_equal(memory, [0.5, np.nan, 0.5, 0.5, 0.5, 0.5, np.nan, 0.5])
    twice = np.lib.stride_tricks.as_strided(memory, (3, 2), (8, 8))
    with pytest.raises(ValueError, match="out: expected an array whose elements do not overlap"):
        numbadnn.softmax(np.zeros((3, 2), "f4"), out=twice)
