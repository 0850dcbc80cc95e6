"""The configuration of ``transposed.py`` and the constants that host and device code share."""

from __future__ import annotations

#: of a block that transposes
PIXELS, THREADS = 64, 256
