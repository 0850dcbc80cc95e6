"""The language that device code is written in: memory access, instructions, warps, asynchronous copies, matrix products."""
