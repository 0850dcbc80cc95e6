"""Numbers that numbadnn.torch's functions take: what PyTorch's take (Python's, NumPy's, tensors of one), and no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

import numbadnn.torch as nt  # noqa: E402

torch.manual_seed(0)
X, W, MEAN, VAR = torch.randn(2, 4, 8, 8), torch.randn(4, 4, 3, 3), torch.zeros(4), torch.ones(4)
GRID, THETA = torch.rand(2, 5, 5, 2) * 2 - 1, torch.randn(2, 2, 3)
NETWORK = torch.nn.LSTM(3, 4, num_layers=2)
LINE, STATE = torch.randn(5, 2, 3), torch.zeros(2, 2, 4)

#: other ways to write an integer, or several
INTEGERS: dict[str, Callable[[Any], Any]] = {
    "numpy int64": np.int64,
    "numpy uint8": np.uint8,
    "0-d tensor": lambda n: torch.tensor(n),
    "tensor of one": lambda n: torch.tensor([n]),
    "numpy float64": np.float64,
    "float": float,
    "text": str,
}
PAIRS: dict[str, Callable[[Any], Any]] = INTEGERS | {
    "tuple of numpy int64": lambda n: (np.int64(n), np.int64(n)),
    "list of tensors": lambda n: [torch.tensor(n), torch.tensor(n)],
    "tuple of floats": lambda n: (float(n), float(n)),
}
REALS: dict[str, Callable[[Any], Any]] = {
    "numpy float32": np.float32,
    "numpy float64": np.float64,
    "0-d tensor": lambda v: torch.tensor(v, dtype=torch.float64),
    "tensor of one": lambda v: torch.tensor([v]),
    "that requires grad": lambda v: torch.tensor(v, requires_grad=True),
    "text": str,
}
#: NumPy's booleans are taken here, PyTorch refuses them
FLAGS: dict[str, Callable[[Any], Any]] = {"int": int, "float": float, "text": str}


def _train(module: Any, **how: Any) -> Any:
    return module.batch_norm(X, MEAN.clone(), VAR.clone(), training=how.pop("training", True), **how)


def _lstm(module: Any, **how: Any) -> Any:
    how = {"has_biases": True, "num_layers": 2, "dropout": 0.0, "train": False} | how
    rest = {"bidirectional": False, "batch_first": False}
    given = (LINE, (STATE, STATE), NETWORK._flat_weights, *how.values(), *rest.values())
    return (torch if module is F else module).lstm(*given)[0]


#: argument -> its kinds, a value in Python's own number, a call of it by either module
ARGUMENTS: dict[str, tuple[dict[str, Callable[[Any], Any]], Any, Callable[[Any, Any], Any]]] = {
    "stride": (PAIRS, 2, lambda m, v: m.conv2d(X, W, stride=v)),
    "padding": (PAIRS, 1, lambda m, v: m.conv2d(X, W, padding=v)),
    "dilation": (PAIRS, 2, lambda m, v: m.conv2d(X, W, dilation=v)),
    "groups": (INTEGERS, 2, lambda m, v: m.conv2d(X, W[:, :2], groups=v)),
    "output_padding": (PAIRS, 1, lambda m, v: m.conv_transpose2d(X, W, stride=2, output_padding=v)),
    "groups, transposed": (INTEGERS, 2, lambda m, v: m.conv_transpose2d(X, W, groups=v)),
    "kernel_size": (PAIRS, 3, lambda m, v: m.max_pool2d(X, v)),
    "stride, pool": (PAIRS, 2, lambda m, v: m.max_pool2d(X, 3, v)),
    "padding, pool": (PAIRS, 1, lambda m, v: m.avg_pool2d(X, 3, 2, v)),
    "dilation, pool": (PAIRS, 1, lambda m, v: m.max_pool2d(X, 3, dilation=v)),
    "ceil_mode": (FLAGS, True, lambda m, v: m.max_pool2d(X, 3, ceil_mode=v)),
    "count_include_pad": (FLAGS, False, lambda m, v: m.avg_pool2d(X, 3, padding=1, count_include_pad=v)),
    "divisor_override": (INTEGERS, 3, lambda m, v: m.avg_pool2d(X, 3, divisor_override=v)),
    "dim": (INTEGERS, 1, lambda m, v: m.softmax(X, dim=v)),
    "dim, log": (INTEGERS, 1, lambda m, v: m.log_softmax(X, dim=v)),
    "eps": (REALS, 0.5, lambda m, v: _train(m, eps=v)),
    "momentum": (REALS, 0.5, lambda m, v: _train(m, momentum=v)),
    "training": (FLAGS, True, lambda m, v: _train(m, training=v)),
    "align_corners": (FLAGS, True, lambda m, v: m.grid_sample(X, GRID, align_corners=v)),
    "align_corners, affine": (FLAGS, True, lambda m, v: m.affine_grid(THETA, [2, 1, 4, 4], align_corners=v)),
    "size": (INTEGERS, 4, lambda m, v: m.affine_grid(THETA, (2, 1, v, v), align_corners=False)),
    "p": (REALS, 0.0, lambda m, v: m.dropout(X, p=v)),
    "training, dropout": (FLAGS, False, lambda m, v: m.dropout(X, training=v)),
    "num_layers": (INTEGERS, 2, lambda m, v: _lstm(m, num_layers=v)),
    "dropout": (REALS, 0.0, lambda m, v: _lstm(m, dropout=v)),
    "train": (FLAGS, False, lambda m, v: _lstm(m, train=v)),
}
#: where PyTorch takes no tensor with axes, and numbadnn does
LENIENT = {(name, "tensor of one") for name in ("divisor_override", "dim", "dim, log", "num_layers")}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_takes_the_numbers_that_pytorch_takes(name: str) -> None:
    kinds, value, call = ARGUMENTS[name]
    wanted = call(nt, value)
    argument = name.split(",")[0]
    for kind, make in kinds.items():
        try:
            call(F, make(value))
        except (TypeError, ValueError, RuntimeError):
            if (name, kind) not in LENIENT:
                with pytest.raises((TypeError, ValueError), match=f"^{argument}: expected"):
                    call(nt, make(value))
                continue
        assert torch.equal(call(nt, make(value)), wanted), f"{name} as {kind}"


def test_takes_numbers_where_pytorch_has_no_such_argument() -> None:
    for ratio in (np.int64(2), torch.tensor(2), (np.int64(2), 1), [torch.tensor(2), np.uint8(1)]):
        assert torch.equal(nt.upsample_bilinear(X, ratio), nt.upsample_bilinear(X, 2))
    with pytest.raises(ValueError, match="^ratio: expected a positive integer"):
        nt.upsample_bilinear(X, np.float32(2))
    for seed, p in ((np.int64(3), np.float32(0.5)), (3, torch.tensor(0.5)), (torch.tensor([3]), 0.5)):
        assert torch.equal(nt.dropout(X, p, seed=seed), nt.dropout(X, 0.5, seed=3))
    weight = torch.randn(4, 3, 3, 4, 3, 3)
    for stride in (np.int64(2), torch.tensor(2), (np.int64(2), 2)):
        assert torch.equal(nt.unshared_conv2d(X, weight, stride=stride), nt.unshared_conv2d(X, weight, stride=2))


def test_a_number_of_the_same_bytes_is_another() -> None:
    assert nt.conv2d(X, W, stride=np.int64(2)).shape[-1] == 3
    with pytest.raises(TypeError, match="^stride: expected"):
        nt.conv2d(X, W, stride=np.int64(2).view(np.float64))
