"""A character-level language model: one GRU (or LSTM) layer of ``RNNBlock`` learns the text of Python's licence, on
NumPy alone.

``python examples/char_lm.py [seconds] [gru|lstm]`` trains for a minute and prints the loss in bits a character and a
sample. The model is one-hot characters -> recurrent layer -> linear -> softmax, trained by plain gradient descent with
momentum on sequences that follow one another, the state carried along. Every gradient is this page's or the block's:
nothing is automatic.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

import numbadnn

HIDDEN, BATCH, STEPS, RATE, MOMENTUM = 64, 16, 32, 0.5, 0.9


def licence() -> str:
    """The licence that every Python carries with it."""
    import builtins

    shown: Any = getattr(builtins, "license", None)
    if shown is None:
        import _sitebuiltins
        import os

        folder = os.path.dirname(os.__file__)
        shown = _sitebuiltins._Printer("license", "See https://www.python.org/psf/license/", ["LICENSE.txt", "LICENSE"],
                                       [os.path.join(folder, os.pardir), folder, os.curdir])  # fmt: skip
    shown._Printer__setup()
    return "\n".join(shown._Printer__lines)


class Model:
    """Parameters in one float32 array each: ``w`` of the block, ``out`` (hidden, characters) and ``bias``."""

    def __init__(self, characters: int, mode: str = "gru", hidden: int = HIDDEN, seed: int = 0) -> None:
        self.block, self.characters = numbadnn.RNNBlock("float32", hidden, 1, mode), characters
        rng, scale = np.random.default_rng(seed), hidden**-0.5
        size = self.block.get_param_size([1, characters])
        self.w = rng.uniform(-scale, scale, size).astype(np.float32)
        self.out = rng.uniform(-scale, scale, (hidden, characters)).astype(np.float32)
        self.bias = np.zeros(characters, np.float32)
        self.speed = [np.zeros_like(p) for p in self.parameters]

    @property
    def parameters(self) -> list[np.ndarray]:
        return [self.w, self.out, self.bias]

    def start(self, batch: int) -> list[np.ndarray]:
        """States of zeros: h, and c of an lstm."""
        count = 2 if self.block.network.has_cell else 1
        return [np.zeros((1, batch, self.block.network.hidden_size), np.float32) for _ in range(count)]

    def gradients(self, text: np.ndarray, states: list[np.ndarray]) -> tuple[float, list[np.ndarray], list[np.ndarray]]:
        """(mean loss in nats, gradients of the parameters, states to go on with) of characters (time + 1, batch)."""
        x = np.eye(self.characters, dtype=np.float32)[text[:-1]]
        (y, *states), reserve = self.block.forward(self.w, x, *states)
        logits = y @ self.out + self.bias
        log_p = numbadnn.softmax(logits.reshape(-1, self.characters), "log")
        target = text[1:].ravel()
        rows = np.arange(target.size)
        loss = -float(log_p[rows, target].mean(dtype=np.float64))
        d_logits = np.exp(log_p)
        d_logits[rows, target] -= 1
        d_logits /= target.size
        flat = y.reshape(target.size, -1)
        dw = self.block.backward(reserve, (d_logits @ self.out.T).reshape(y.shape))[0]
        return loss, [dw, flat.T @ d_logits, d_logits.sum(axis=0)], states

    def learn(self, gradients: list[np.ndarray], rate: float = RATE) -> None:
        """One step of gradient descent with momentum, the gradient's norm held to 1."""
        norm = np.sqrt(sum(float((g.astype(np.float64) ** 2).sum()) for g in gradients))
        factor = np.float32(rate / max(1.0, norm))
        for p, g, v in zip(self.parameters, gradients, self.speed, strict=True):
            v *= np.float32(MOMENTUM)
            v -= factor * g
            p += v

    def sample(self, first: int, count: int, seed: int = 0) -> list[int]:
        """``count`` characters after ``first``, drawn from what the model believes."""
        rng, states, found = np.random.default_rng(seed), self.start(1), [first]
        for _ in range(count):
            x = np.eye(self.characters, dtype=np.float32)[found[-1]][None, None]
            y, *states = self.block.apply(self.w, x, *states)
            p = numbadnn.softmax((y @ self.out + self.bias)[0])[0].astype(np.float64)
            found.append(int(rng.choice(self.characters, p=p / p.sum())))
        return found


def batches(text: np.ndarray, batch: int = BATCH, steps: int = STEPS) -> Iterator[tuple[bool, np.ndarray]]:
    """Without end: (whether it begins the text anew, characters (steps + 1, batch)); batch after batch goes on in the
    text."""
    length = text.size // batch
    columns = text[: length * batch].reshape(batch, length).T
    while True:
        for at in range(0, length - steps - 1, steps):
            yield at == 0, columns[at : at + steps + 1]


def main() -> None:
    parser = argparse.ArgumentParser(description="Learn the text of Python's licence, then write some of its kind.")
    parser.add_argument("seconds", nargs="?", type=float, default=60.0, help="how long to learn (60)")
    parser.add_argument("mode", nargs="?", choices=("gru", "lstm"), default="gru", help="the recurrent layer (gru)")
    options = parser.parse_args()
    text = licence()
    alphabet = sorted(set(text))
    codes = np.array([alphabet.index(c) for c in text])
    model = Model(len(alphabet), options.mode, hidden=128)
    start, losses, states = time.perf_counter(), [], model.start(BATCH)
    for anew, part in batches(codes):
        states = model.start(BATCH) if anew else states
        loss, gradients, states = model.gradients(part, states)
        model.learn(gradients)
        losses.append(loss)
        if len(losses) % 200 == 0:
            passed = time.perf_counter() - start
            print(f"{passed:5.0f} s  step {len(losses):5d}  {np.mean(losses[-200:]) / np.log(2):.3f} bits a character")
            if not passed <= options.seconds:  # also where that is not a number
                break
    print("".join(alphabet[i] for i in model.sample(alphabet.index("P"), 300)))


if __name__ == "__main__":
    main()
