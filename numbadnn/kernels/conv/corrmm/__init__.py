"""Convolutions as matrix products over a matrix that is written (im2col): ``corrmm.py`` registers, ``steps.py`` plans."""
