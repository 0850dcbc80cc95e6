"""The CPU backend, written in Python for Numba: NumPy arrays in, NumPy arrays out.

Each wing is a family of operations: the module of the same name registers and plans, the others hold the compiled loops.
``lang/`` is what all of them are written with: parallel regions, vectors, blocks of elements, strides of axes.
"""
