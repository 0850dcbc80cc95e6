"""Convolutions on the CPU: importing this registers their implementations."""

from numbadnn.cpu.conv import corrmm as corrmm
from numbadnn.cpu.conv import fft as fft
from numbadnn.cpu.conv import im2col as im2col

#: who is asked first where no estimate decides
ORDER = ("cpu.im2col", "cpu.corrmm", "cpu.fft")
