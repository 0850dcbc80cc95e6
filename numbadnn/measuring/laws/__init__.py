"""What each family must keep: its test data and how far a right result may lie from the reference.

A module a family, by its stem:

    values(problem, rng, kind)      one array an input (and then the old output, where beta is not 0)
    extra_kinds(problem)            kinds of data besides "random" and "integers" that the contract runs
    EDGES                           operation -> kinds of data at the edge of what numbers can say, for cases tagged ``edge``
    exact_integers(problem)         whether kind "integers" must come out to the bit
    errors(problem, inputs, old, arithmetic, depth)     for each output, the largest error of each element before the last
                                    rounding; ``depth(k)``: the roundings that one of k terms passes through
    WORK                            what a speed is counted in: GFLOP/s or GB/s
"""

from __future__ import annotations

import importlib
from types import ModuleType

from numbadnn.registry import FAMILY


def law(op: str) -> ModuleType:
    """The module of an operation's family."""
    return importlib.import_module(f"numbadnn.measuring.laws.{FAMILY[op]}")
