"""Convolutions on Hopper's tensor cores without writing a matrix: ``gemm.py`` registers, ``pixels.py``, ``weights.py`` plan."""
