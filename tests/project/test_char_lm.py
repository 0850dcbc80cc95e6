"""A real task: examples/char_lm.py, a character model on the text of Python's licence, learns as PyTorch's does."""

from __future__ import annotations

import numpy as np
import pytest
import threadpoolctl
from folders import ROOT

import numbadnn

EXAMPLES = ROOT / "examples"


@pytest.fixture
def torch():
    """PyTorch, and NumPy's BLAS, on one thread: beside other work their threads mostly wait for each other."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    with threadpoolctl.threadpool_limits(1):
        yield torch


def losses_of_pytorch(torch, char_lm, model, parts):
    """The losses of a PyTorch model with the weights of ``model``, trained by the same rule on the same batches."""
    mode, characters, hidden = model.block.network.rnn_mode, model.characters, model.block.network.hidden_size
    module = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[mode](characters, hidden)
    linear = torch.nn.Linear(hidden, characters)
    numbadnn.rnn_weights_to_torch(model.w, module)
    with torch.no_grad():
        linear.weight.copy_(torch.from_numpy(model.out.T))
        linear.bias.copy_(torch.from_numpy(model.bias))
    parameters = [*module.parameters(), *linear.parameters()]
    speed = [torch.zeros_like(p) for p in parameters]
    losses, held = [], None
    for anew, part in parts:
        x = torch.nn.functional.one_hot(torch.from_numpy(part[:-1]), characters).float()
        y, held = module(x, None if anew else held)
        held = tuple(s.detach() for s in held) if mode == "lstm" else held.detach()
        logits, target = linear(y).reshape(-1, characters), torch.from_numpy(part[1:].ravel())
        loss = torch.nn.functional.cross_entropy(logits, target)
        found = torch.autograd.grad(loss, parameters)
        norm = torch.sqrt(sum((g.double() ** 2).sum() for g in found)).item()
        with torch.no_grad():
            for p, g, v in zip(parameters, found, speed, strict=True):
                v.mul_(char_lm.MOMENTUM).sub_(g * (char_lm.RATE / max(1.0, norm)))
                p.add_(v)
        losses.append(loss.item())
    return losses


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["gru", "lstm"])
def test_the_first_100_losses_are_pytorchs(torch, mode, monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import char_lm

    text = char_lm.licence()
    alphabet = sorted(set(text))
    codes = np.array([alphabet.index(c) for c in text])
    batches = char_lm.batches(codes)
    parts = [next(batches) for _ in range(100)]
    model = char_lm.Model(len(alphabet), mode)
    theirs = losses_of_pytorch(torch, char_lm, model, parts)
    ours, states = [], []
    for anew, part in parts:
        states = model.start(part.shape[1]) if anew else states
        loss, gradients, states = model.gradients(part, states)
        model.learn(gradients)
        ours.append(loss)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4)
    assert np.mean(ours[-10:]) < 0.85 * ours[0]
