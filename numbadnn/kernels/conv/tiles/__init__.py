"""Convolutions as matrix products that gather their first operand, in any type: ``tiles.py`` registers and plans."""
