"""
A filter that knows no future
=============================

``causal_conv1d`` smooths a signal with what has come so far. The result can be computed while the signal arrives, but
it comes late. A window that looks both ways is not late, and must wait.
"""

import matplotlib.pyplot as plt
import numpy as np

import numbadnn

rng = np.random.default_rng(0)
time = np.arange(240)
clean = np.where(time > 120, 1.0, 0.0) + 0.3 * np.sin(time / 12)
signal = (clean + 0.25 * rng.standard_normal(240)).astype("float32")[None, None]

width = 16
mean = np.full((1, 1, width), 1 / width, "float32")
causal = numbadnn.causal_conv1d(signal, mean)
both = numbadnn.conv2d(
    signal[:, :, None], mean[:, :, None], border_mode=((0, 0), (width // 2, width // 2 - 1))
)[:, :, 0]
dilated = numbadnn.causal_conv1d(signal, mean[:, :, :4] * 4, filter_dilation=4)

figure, axis = plt.subplots()
axis.plot(time, signal[0, 0], color="0.8", label="signal")
axis.plot(time, clean, "k--", linewidth=1, label="without noise")
axis.plot(time, causal[0, 0], label="causal, 16 samples")
axis.plot(time, dilated[0, 0], linewidth=1, label="causal, 4 samples 4 apart")
axis.plot(time, both[0, 0], label="both ways, 16 samples")
axis.legend(loc="upper left", fontsize="small")
axis.set(xlabel="time")
plt.show()

# %%
# With a dilation the same span takes four multiplications where it took sixteen, and keeps more of the noise.
# Networks for sound stack such layers and double the dilation from one to the next.
