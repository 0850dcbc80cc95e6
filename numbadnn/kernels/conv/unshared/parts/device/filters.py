"""How filters of 16-bit types lie in shared memory on their way to tensor cores: pieces of 64 terms of 16 filters."""

from __future__ import annotations

#: filters and terms of a piece
ROWS, TERMS = 16, 64
#: words of a filter's piece in shared memory, so that eight filters meet all banks, and of 16 of them
PITCH, SLOT = TERMS // 2 + 4, ROWS * (TERMS // 2 + 4)
