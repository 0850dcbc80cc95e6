"""What both sides of ``numba.implicit_gemm`` for the filters know: shared memory, and the tiles of the second kernel."""

from __future__ import annotations

from typing import Any

WIDE = 16  # filters that a block of ``total`` adds up
#: bytes of the buffers of both groups, two each of 64 rows of 128 bytes
BUFFERS = 4 * 64 * 128


def stage_bytes(m: int, n: int, terms: int) -> int:
    """A stage of the ring: both operands."""
    return (m + n) * terms * 2


def shared_bytes(config: Any) -> int:
    """The ring, its barriers, buffers of results, and what aligning it takes."""
    ring = config.stages * (stage_bytes(config.m, config.n, config.terms) + 16)
    return 1024 + ring + (BUFFERS if config.direct else 0)
