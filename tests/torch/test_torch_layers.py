"""numbadnn.torch.nn's layers and converted models beside torch.nn's: values, gradients, state_dict; explain and check."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn.utils import parametrize  # noqa: E402
from torch_networks import UNet, losses, resnet18  # noqa: E402

import numbadnn  # noqa: E402
import numbadnn.torch as nt  # noqa: E402

nn = torch.nn
LAYERS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "conv1d": (lambda: nn.Conv1d(3, 4, 3, padding=1, padding_mode="circular"), (2, 3, 7)),
    "conv2d": (lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2, padding_mode="reflect"), (2, 4, 7, 6)),
    "conv3d": (lambda: nn.Conv3d(2, 3, 2, bias=False), (1, 2, 4, 4, 3)),
    "transposed 1": (lambda: nn.ConvTranspose1d(3, 4, 3, stride=2), (2, 3, 5)),
    "transposed 2": (
        lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2),
        (2, 4, 4, 5),
    ),
    "transposed 3": (lambda: nn.ConvTranspose3d(2, 3, 2, stride=2), (1, 2, 2, 3, 2)),
    "max pool": (lambda: nn.MaxPool2d(3, 2, 1), (2, 3, 7, 6)),
    "average": (lambda: nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False), (2, 3, 7, 6)),
    "average 1": (lambda: nn.AvgPool1d(2), (2, 3, 6)),
    "norm 1": (lambda: nn.BatchNorm1d(3), (5, 3)),
    "norm 2": (lambda: nn.BatchNorm2d(3, momentum=None), (2, 3, 4, 5)),
    "norm 3": (lambda: nn.BatchNorm3d(3, affine=False, track_running_stats=False), (2, 3, 2, 3, 2)),
    "softmax": (lambda: nn.Softmax(1), (2, 3, 4)),
    "log softmax": (lambda: nn.LogSoftmax(-1), (2, 3)),
    "lstm": (lambda: nn.LSTM(3, 4, 2, bidirectional=True, batch_first=True), (2, 5, 3)),
    "gru, no batch": (lambda: nn.GRU(3, 4, bias=False), (5, 3)),
    "rnn": (lambda: nn.RNN(3, 4, nonlinearity="relu"), (5, 2, 3)),
}


def flat(result: Any) -> torch.Tensor:
    return torch.cat([t.flatten() for t in torch.utils._pytree.tree_leaves(result)])


@pytest.mark.parametrize("name", LAYERS)
def test_a_converted_layer_is_the_same_layer(name: str) -> None:
    make, shape = LAYERS[name]
    torch.manual_seed(0)
    theirs = make().double()
    ours = copy.deepcopy(theirs)
    assert list(nt.convert(ours).swapped) == [""] and isinstance(ours, nt.nn.Layer)
    for training in (True, True, False):
        x = torch.randn(shape, dtype=torch.float64)
        a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
        wanted, found = flat(theirs.train(training)(a)), flat(ours.train(training)(b))
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)
        wanted.square().sum().backward()
        found.square().sum().backward()
        torch.testing.assert_close(b.grad, a.grad, rtol=1e-9, atol=1e-9)
    for p, q in zip(theirs.parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(q.grad, p.grad, rtol=1e-9, atol=1e-9)
    state = ours.state_dict()
    assert list(state) == list(theirs.state_dict())
    torch.testing.assert_close(state, theirs.state_dict())


def test_layers_are_made_with_torchs_arguments_and_options() -> None:
    layer = nt.nn.Conv2d(3, 4, 3, padding="same", determinism="batch_invariant", backend="cpu")
    layer(torch.ones(1, 3, 4, 4))
    assert numbadnn.last_call().determinism in ("batch_invariant", "gpu_to_gpu")  # type: ignore[union-attr]
    assert "determinism='batch_invariant'" in repr(layer)
    bare = nn.utils.skip_init(nt.nn.Conv2d, 3, 4, 3, backend="cpu")
    assert bare.backend == "cpu" and bare.weight.device.type == "cpu"
    with pytest.raises(NotImplementedError, match="^dilation: expected 1"):
        nt.nn.MaxPool2d(2, dilation=2)
    with pytest.raises(NotImplementedError, match="^weight: expected dtype"):
        nt.nn.Conv2d(3, 4, 3, dtype=torch.complex64)
    packed = nn.utils.rnn.pack_padded_sequence(torch.ones(3, 1, 2), [3])
    with pytest.raises(numbadnn.NotSupportedError, match="^input: expected a tensor, got a PackedSequence"):
        nt.nn.LSTM(2, 3)(packed)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_a_recurrent_layer_takes_the_parameters_that_it_is_called_with(kind: str) -> None:
    theirs = getattr(nn, kind)(3, 4, 2).double()
    ours = copy.deepcopy(theirs)
    nt.convert(ours)
    x, others = (
        torch.randn(5, 2, 3, dtype=torch.float64),
        {n: torch.randn_like(p) for n, p in theirs.named_parameters()},
    )
    for _ in range(2):
        wanted, found = (torch.func.functional_call(layer, others, (x,))[0] for layer in (theirs, ours))
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(ours(x)[0], theirs(x)[0])


def test_dropout_between_layers_is_of_the_same_strength() -> None:
    torch.manual_seed(0)
    ours = nt.nn.LSTM(8, 64, 2, dropout=0.5)
    theirs = nn.LSTM(8, 64, 2, dropout=0.5)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(6, 32, 8)
    torch.testing.assert_close(ours.eval()(x)[0], theirs.eval()(x)[0])
    spread = [network.train()(x)[0].std().item() for network in (ours, theirs)]
    assert spread[0] == pytest.approx(spread[1], rel=0.1) and not torch.equal(ours(x)[0], ours(x)[0])


@pytest.mark.parametrize("axes", [1, 2])
def test_a_locally_connected_layer_learns(axes: int) -> None:
    torch.manual_seed(0)
    kind = nt.nn.LocallyConnected1d if axes == 1 else nt.nn.LocallyConnected2d
    layer = kind(2, 3, 6, 3, padding="same")
    assert layer.weight.shape == (3, *(6,) * axes, 2, *(3,) * axes) and layer.bias.shape == (3, *(6,) * axes)
    x, y = torch.randn(4, 2, *(6,) * axes), torch.randn(4, 3, *(6,) * axes)
    optimizer = torch.optim.Adam(layer.parameters(), 0.05)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = (layer(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.05 * losses[0]
    with pytest.raises(ValueError, match="^kernel_size: expected windows that fit"):
        kind(2, 3, 2, 3)
    with pytest.raises(ValueError, match="^weight: expected filters for each"):
        layer(torch.ones(1, 2, *(7,) * axes))


def model() -> Any:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(36, 5),
        nn.LogSoftmax(1),
    )


def test_conversion_is_in_place_and_undone() -> None:
    network = model()
    parameters, hooked = list(network.parameters()), []
    network[0].register_forward_hook(lambda *_: hooked.append(1))
    network.append(nn.MaxPool1d(2, return_indices=True))
    found = nt.convert(network, determinism="batch_invariant")
    assert list(found.swapped) == ["0", "1", "3", "6"] and found.left == {
        "7": "return_indices: expected False, got True"
    }
    assert found.swapped["0"] is network[0] and network[0].determinism == "batch_invariant"
    network[:7](torch.ones(1, 3, 8, 8))
    assert hooked and all(p is q for p, q in zip(parameters, network.parameters(), strict=True))
    found.undo()
    assert type(network[0]) is nn.Conv2d and not nt.convert(nn.Linear(2, 2)).swapped
    with pytest.raises(ValueError, match="^determinism: expected one of"):
        nt.convert(network, determinism="other")


@pytest.mark.parametrize("name", ["weight_norm", "spectral_norm", "orthogonal"])
def test_a_parametrized_layer_is_converted(name: str) -> None:
    """Its class is its own, which a copy shares."""
    wrap = getattr(nn.utils.parametrizations, name)
    theirs = wrap(nn.Conv2d(3, 4, 3).double()).eval()  # in training each call moves the spectral norm on
    kind, ours = type(theirs), copy.deepcopy(theirs)
    found, x = nt.convert(ours), torch.randn(2, 3, 5, 5, dtype=torch.float64)
    assert list(found.swapped) == [""] and type(theirs) is kind and isinstance(ours, nt.nn.Conv2d)
    for layer in (theirs, ours, copy.deepcopy(ours)):
        layer(x).square().sum().backward()
    torch.testing.assert_close(ours(x), theirs(x))
    for p, q in zip(theirs.parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(q.grad, p.grad)
    assert list(nt.explain(theirs, x)) == [""]
    found.undo()
    assert not isinstance(ours, nt.nn.Layer) and parametrize.is_parametrized(ours)
    nt.convert(ours)
    parametrize.remove_parametrizations(ours, "weight")
    assert type(ours) is nt.nn.Conv2d and torch.allclose(ours(x), theirs(x))


def test_a_layer_of_a_subclass_stays_and_is_named() -> None:
    class Own(nn.Conv2d):
        pass

    network = nn.Sequential(Own(3, 4, 3), nn.Conv2d(4, 4, 1), nn.Linear(2, 2))
    found = nt.convert(network)
    assert list(found.swapped) == ["1"] and list(found.left) == ["0"] and "got Own" in found.left["0"]
    assert type(network[0]) is Own and not nt.convert(network).left.keys() - {"0"}


def test_explain_and_check_look_at_each_layer() -> None:
    network, x = model(), torch.rand(2, 3, 8, 8)
    state = copy.deepcopy(network.state_dict())
    explained = nt.explain(network, x)
    assert list(explained) == ["0", "1", "3", "6"] and all(e.chosen.startswith("cpu.") for e in explained.values())
    found = nt.check(network, x, backends="cpu")
    assert found.ok and found.table()
    assert sorted({row.case for row in found.rows}) == [
        "0 conv", "0 conv_grad_input", "0 conv_grad_weight", "1 batch_norm_train", "1 batch_norm_train_grad", "3 pool",
        "3 pool_grad", "6 softmax", "6 softmax_grad",
    ]  # fmt: skip
    torch.testing.assert_close(network.state_dict(), state)
    assert type(network[0]) is nn.Conv2d


def test_check_says_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    from numbadnn.validate import oracle

    right = oracle.Trial.__init__

    def wrong(self: Any, *args: Any, **named: Any) -> None:
        right(self, *args, **named)
        self.values = tuple(v + 1 for v in self.values)

    monkeypatch.setattr(oracle.Trial, "__init__", wrong)
    found = nt.check(nn.Conv2d(2, 3, 3), torch.rand(1, 2, 6, 6), backends="cpu")
    assert not found.ok and {row.status for row in found.rows} >= {"mismatch"}


@pytest.mark.slow(20)
@pytest.mark.parametrize(
    ("name", "layout"),
    [("ResNet-18", torch.contiguous_format), ("U-Net", torch.channels_last)],
    ids=["ResNet-18", "U-Net"],
)
def test_a_converted_model_trains_as_pytorchs(name: str, layout: Any) -> None:
    """Twenty steps: every loss within 1e-3."""
    torch.manual_seed(0)
    theirs: Any = resnet18(8) if name == "ResNet-18" else UNet(4)
    theirs = theirs.to(memory_format=layout)
    ours = copy.deepcopy(theirs)
    assert len(nt.convert(ours).swapped) == (41 if name == "ResNet-18" else 24)
    size = 32 if name == "ResNet-18" else 16
    x = torch.randn(8, 3, size, size).to(memory_format=layout)
    y = torch.randint(10, (8,)) if name == "ResNet-18" else torch.randint(3, (8, size, size))
    wanted, found = losses(theirs, x, y), losses(ours, x, y)
    assert wanted[-1] < 0.7 * wanted[0] or name == "U-Net"
    assert max(abs(a - b) for a, b in zip(wanted, found, strict=True)) < 1e-3
