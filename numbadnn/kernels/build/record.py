"""What lies in the record of a launch, which host code compiled from ``shim.py`` reads: known without importing Numba."""

from __future__ import annotations

#: returned when another context than the expected one is current; nothing was launched. CUDA's statuses are >= 0.
WRONG_CONTEXT = -1

# words of the record, as byte offsets; OFFSETS: where each of at most twelve addresses goes; CONFIG: of an early launch, a
# CUlaunchConfig, whose stream is at STREAM
GET_CURRENT, EXPECTED, CURRENT, LAUNCH, FUNCTION, GRID, BLOCK, SHARED, ADDRESSES, EXTRA, OFFSETS, CONFIG, VALUES = (
    8 * word for word in (0, 1, 2, 3, 4, 5, 8, 11, 12, 13, 14, 26, 28)
)
STREAM = 32
