"""
What a recurrent network remembers
==================================

An impulse at the first step of a sequence fades from the state of a network. How fast says how long it remembers. An
LSTM whose forget gate is biased towards 1 keeps it for long: that is why implementations begin with such a bias.
"""

import matplotlib.pyplot as plt
import numpy as np

import numbadnn

STEPS, HIDDEN = 60, 32
impulse = np.zeros((STEPS, 1, 4), "float32")
nothing = impulse.copy()
impulse[0] = 1


def memory(mode, forget=0.0):
    """How far apart the outputs are with and without the impulse, step by step."""
    block = numbadnn.RNNBlock("float32", HIDDEN, 1, mode)
    w = (
        np.random.default_rng(1)
        .uniform(-0.17, 0.17, block.get_param_size([1, 4]))
        .astype("float32")
    )
    if mode == "lstm":
        block.split_params(w, 0, [1, 4])[3][:] = forget  # the bias of the second gate, f
    state = [np.zeros((1, 1, HIDDEN), "float32")] * (2 if mode == "lstm" else 1)
    apart = block.apply(w, impulse, *state)[0] - block.apply(w, nothing, *state)[0]
    return np.linalg.norm(apart[:, 0], axis=1)


figure, axis = plt.subplots()
for name, arguments in {
    "tanh": ("rnn_tanh",),
    "gru": ("gru",),
    "lstm": ("lstm",),
    "lstm, forget bias 1": ("lstm", 1.0),
    "lstm, forget bias 3": ("lstm", 3.0),
}.items():
    apart = memory(*arguments)
    axis.semilogy(apart / apart.max(), label=name)
axis.set(xlabel="step", ylabel="what is left of the impulse", ylim=(1e-6, 2))
axis.legend(fontsize="small")
plt.show()
