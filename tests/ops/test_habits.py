"""What other libraries' users write, at every public function: the error says what it is called here."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import numbadnn
from numbadnn.ops import habits

#: functions that compute nothing
OTHERS = {"cache_info", "check", "clear_caches", "explain", "last_call", "plan", "set_options", "using"}
FUNCTIONS = {
    name: function
    for name in numbadnn.__all__
    if inspect.isfunction(function := getattr(numbadnn, name))
    and name not in OTHERS
    and not name.startswith(("rnn_weights_", "bilinear_kernel"))
}
NAMES = [
    "stride",
    "padding",
    "dilation",
    "groups",
    "bias",
    "axis",
    "dim",
    "weight",
    "kernel_size",
    "eps",
    "data_format",
]


def refused(function: Callable[..., Any], **keywords: Any) -> str:
    """The error of a call that is right but for these keywords; the arrays are not looked at."""
    positional = [
        p
        for p in inspect.signature(function).parameters.values()
        if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD
    ]
    required = {
        p.name: None
        for p in inspect.signature(function).parameters.values()
        if p.default is p.empty and p.kind is p.KEYWORD_ONLY
    }
    with pytest.raises(TypeError) as caught:
        function(*[None] * len(positional), **required, **keywords)
    return str(caught.value)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_says_what_an_argument_is_called_here(name: str) -> None:
    function = FUNCTIONS[name]
    own = [p.name for p in inspect.signature(function).parameters.values() if p.kind is not p.VAR_KEYWORD]
    for theirs in (n for n in NAMES if n not in own):
        text = refused(function, **{theirs: 2})
        assert text.startswith(f"{name}() has no argument {theirs!r}: "), text
        called = [ours for ours in habits.OURS.get(theirs, ()) if ours in own]
        if called:
            assert f"here it is {called[0]}=2" in text
        elif theirs == "bias":
            assert "add it to the result" in text
        else:
            assert theirs in habits.INSTEAD or "its arguments are" in text


@pytest.mark.parametrize(
    ("function", "keywords", "text"),
    (
        (numbadnn.conv2d, {"stride": 2}, "conv2d() has no argument 'stride': here it is subsample=2"),
        (numbadnn.conv3d, {"padding": "same"}, "here it is border_mode='half'"),
        (numbadnn.conv1d, {"padding": "VALID"}, "here it is border_mode='valid'"),
        (numbadnn.conv2d, {"dilation": (2, 2)}, "here it is filter_dilation=(2, 2)"),
        (numbadnn.conv2d, {"groups": 4}, "here it is num_groups=4"),
        (numbadnn.separable_conv2d, {"groups": 4}, "here it is num_channels=4"),
        (numbadnn.conv2d_transpose, {"stride": 2}, "here it is input_dilation=2"),
        (numbadnn.conv2d_transpose, {"output_padding": 1}, "here it is output_shape"),
        (numbadnn.pool, {"padding": 1}, "here it is pad=1"),
        (numbadnn.softmax, {"dim": -1}, "here it is axis=-1"),
        (numbadnn.batch_normalization_train, {"eps": 1e-5}, "here it is epsilon=1e-05"),
        (numbadnn.batch_normalization_train, {"axis": 1}, "mode='spatial' averages over all axes but 1"),
        (numbadnn.conv2d, {"bordermode": "half"}, "is 'border_mode' meant?"),
        (numbadnn.conv2d, {"weight": np.ones(3)}, "here it is filters"),
        (numbadnn.dropout, {"p": 0.5}, "here it is dropout=0.5"),
        (numbadnn.dropout, {"rate": 0.5}, "here it is dropout=0.5"),
        (numbadnn.rnn_forward, {"batch_first": True}, "sequences are (time, batch, channels)"),
        (numbadnn.conv2d, {"device": "cuda"}, "arrays are computed where they are"),
        (numbadnn.spatialtf_grid_grad, {"zzz": 1}, "its arguments are dgrid, backend, out, stream"),
    ),
)
def test_names(function: Any, keywords: dict[str, Any], text: str) -> None:
    assert text in refused(function, **keywords)


def test_a_class_and_explain_say_so_too() -> None:
    with pytest.raises(TypeError, match=r"RNNBlock\(\) has no argument 'bias': add it to the result"):
        numbadnn.RNNBlock("float32", 2, 1, "lstm", bias=True)
    with pytest.raises(TypeError, match=r"conv2d\(\) has no argument 'stride': here it is subsample=2"):
        numbadnn.explain(numbadnn.conv2d, np.ones((1, 1, 4, 4)), np.ones((1, 1, 2, 2)), stride=2)


X, W = np.ones((2, 3, 8, 9), "float32"), np.ones((4, 3, 3, 3), "float32")
LAST, HWIO = np.moveaxis(X, 1, -1), np.ones((5, 5, 3, 4), "float32")
ONES = (np.ones(3, "float32"),) * 2
CHANNELS = r"if its channels are last: moveaxis\({}, -1, 1\)"


@pytest.mark.parametrize(
    ("message", "call"),
    (
        (r"input: .* got 2 .*; input\[None, None\] is a batch of one with one channel", lambda: numbadnn.conv2d(X[0, 0], W)),
        (r"input\[None\] is a batch of one with 3 channels, input\[:, None\] are 3", lambda: numbadnn.conv2d(X[0], W)),
        (r"filters\[None, None\] is one filter with one channel", lambda: numbadnn.conv2d(X, W[0, 0])),
        (r"kern\[:, None\] are 4 filters with one", lambda: numbadnn.corr_mm(X, W[:, 0])),
        (r"img\[None, None\] is a batch of one", lambda: numbadnn.pool(X[0, 0], (2, 2))),
        (r"img\[None\] is a batch of one", lambda: numbadnn.spatialtf(X[0], np.ones((1, 2, 3), "f4"))),
        (r"input\[None, None\] is a batch", lambda: numbadnn.bilinear_upsampling(X[0, 0], 2)),
        (CHANNELS.format("input"), lambda: numbadnn.conv2d(LAST, W)),
        (CHANNELS.format("input"), lambda: numbadnn.conv2d_grad_wrt_weights(LAST, np.ones((2, 4, 7, 1), "f4"), W.shape)),
        (CHANNELS.format("input"), lambda: numbadnn.conv2d(LAST, W[:, :1], num_groups=3)),
        (CHANNELS.format("img"), lambda: numbadnn.corr_mm(LAST, W)),
        (CHANNELS.format("inputs"), lambda: numbadnn.batch_normalization_train(LAST, *[W[:1, :, :1, :1]] * 2, "spatial")),
        (r"moveaxis\(filters, \(-1, -2\), \(0, 1\)\)", lambda: numbadnn.conv2d(X, HWIO)),
        (r"'half' keeps the size", lambda: numbadnn.conv2d(X, W, border_mode="same")),
        (r"'half' keeps the size", lambda: numbadnn.corr_mm(X, W, "SAME")),
        (r"gamma: .*; gamma.reshape\(1, -1, 1, 1\)", lambda: numbadnn.batch_normalization_train(X, *ONES, "spatial")),
        (r"gamma: .*; mode='spatial' takes one number a channel",
         lambda: numbadnn.batch_normalization_train(X, *[np.ones((1, 3, 1, 1), "f4")] * 2)),
    ),
)  # fmt: skip
def test_shapes(message: str, call: Any) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_same_for_frames() -> None:
    with pytest.raises(NotImplementedError, match="use 'half'"):
        numbadnn.conv3d2d(np.ones((1, 2, 1, 3, 3)), np.ones((1, 2, 1, 2, 2)), border_mode=("valid", "same", "same"))


@pytest.mark.parametrize(
    ("error", "message", "call"),
    (
        (AttributeError, "'conv_transpose2d': conv2d_transpose", lambda: numbadnn.conv_transpose2d),
        (AttributeError, r"'max_pool1d': pool\(x, ws, stride\)", lambda: numbadnn.max_pool1d),
        (ValueError, r"as in \(None, None, 3, 3\)", lambda: numbadnn.conv2d_grad_wrt_weights(X, X, (3, 3))),
        (ValueError, r"pointwise_filters\[:, :, None, None\] are filters of size 1",
         lambda: numbadnn.separable_conv2d(X, W[:3, :1], np.ones((4, 3), "f4"), 3)),
        (ValueError, r"theta\[None\] is one map", lambda: numbadnn.spatialtf(X[:1], np.eye(2, 3, dtype="f4"))),
        (ValueError, "all else behind the arrays are given by name", lambda: numbadnn.conv2d(X, W, "half")),
        (ValueError, "all else behind the arrays are given by name",
         lambda: numbadnn.conv3d(X[None], np.ones((4, 2, 3, 3, 3), "f4"), (1, 1, 1))),
        (TypeError, "stride: .* a mode is mode='max'", lambda: numbadnn.pool(X, (2, 2), "max")),
        (ValueError, r"img: expected 4 dimensions .* img\[None, None\]", lambda: numbadnn.pool(X[0, 0], 2)),
        (ValueError, r"gamma.reshape\(1, -1\) has it", lambda: numbadnn.batch_normalization_train(X[:, :, 0, 0], *ONES)),
        (ValueError, r"moveaxis\(filters, 1, 0\)",
         lambda: numbadnn.conv2d_transpose(X, W, (2, 4, 10, 11))),
        (AttributeError, "'relu': the array library has it", lambda: numbadnn.relu),
        (AttributeError, "'dnn_conv': numbadnn.theano has it", lambda: numbadnn.dnn_conv),
        (AttributeError, "is 'softmax' meant", lambda: numbadnn.sofmax),
        (ValueError, "a bias is no argument", lambda: numbadnn.conv2d(X, W, np.zeros(4, "f4"))),
        (ValueError, "a bias is no argument", lambda: numbadnn.conv2d(X, W, np.ones(7, "f4"))),
        (ValueError, "the least that fits is \\(2, 3, 17, 19\\)",
         lambda: numbadnn.conv2d_transpose(np.ones((2, 4, 8, 9), "f4"), W, None, input_dilation=2)),
        (ValueError, "algo: .* an axis is axis=-1", lambda: numbadnn.softmax(X, -1)),
        (ValueError, "mode: .* average_exc_pad", lambda: numbadnn.pool(X, 2, mode="mean")),
        (ValueError, r"\(\(1, 0\),\) pads before and after", lambda: numbadnn.conv1d(X[0], W[0], border_mode=(1, 0))),
        (TypeError, r"ratio: .* frac_ratio=\(5, 2\) says it", lambda: numbadnn.bilinear_upsampling(X, 2.5)),
        (TypeError, r"frac_ratio=\(\(2, 1\), \(3, 1\)\) says it", lambda: numbadnn.bilinear_upsampling(X, (2, 3))),
        (TypeError, "ratio: expected an integer, got 'two'$", lambda: numbadnn.bilinear_upsampling(X, "two")),
        (TypeError, "got int64; cast it", lambda: numbadnn.softmax(np.ones((2, 3), "int64"))),
        (TypeError, "got builtins.list; numpy.asarray makes an array of it", lambda: numbadnn.softmax([[1.0, 2.0]])),
        (TypeError, "got an array, the result of a call", lambda: numbadnn.explain(numbadnn.softmax(X))),
        (ValueError, "got 'gpu': arrays on a GPU are computed there", lambda: numbadnn.softmax(X, backend="gpu")),
        (ValueError, "arrays on a GPU are computed there, got 'cuda'", lambda: numbadnn.set_options(backend="cuda")),
    ),
)  # fmt: skip
def test_the_first_stumbles(error: type[Exception], message: str, call: Any) -> None:
    with pytest.raises(error, match=message):
        call()


def test_names_that_are_here_by_now_are_no_longer_foreign() -> None:
    assert not set(habits.FUNCTIONS) & set(numbadnn.__all__)
    meant = [text.split("(")[0] for text in habits.FUNCTIONS.values()]
    assert {"pool", "softmax", "conv2d_transpose", "RNNBlock", "set_options"} <= set(meant) & set(numbadnn.__all__)
