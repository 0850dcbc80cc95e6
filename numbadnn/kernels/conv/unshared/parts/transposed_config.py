"""The configuration of ``transposed.py``, and what the host and the device both know."""

from __future__ import annotations

#: of a block that turns
PIXELS, THREADS = 64, 256
