"""Convolutions on the CPU: importing this registers their implementations, in the order in which they are listed."""

from numbadnn.cpu.conv import im2col as im2col  # isort: skip
from numbadnn.cpu.conv import corrmm as corrmm  # isort: skip
from numbadnn.cpu.conv import fft as fft  # isort: skip
