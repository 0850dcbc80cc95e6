"""The configuration of ``toeplitz.py``, and what the host and the device both know."""

from __future__ import annotations

WARPS = 8
#: times of a stretch, and of a warp's 16 at a time; words of two taps: what is needed of 63 + 32 diagonals
STRETCH, TIMES, DIAGONALS = 32, 512, 96
