"""Why each implementation refuses what it refuses: the register is asked about every case of the contract.

    python docs/_ext/refusals.py > refusals.json

Needs no GPU: own kernels are asked as under Numba's simulator, where they answer as on a GPU, and once more as they are here.
"""

import json
import os
import re
import sys
from collections import defaultdict
from typing import Any

from numbadnn.cases import find
from numbadnn.problem import Policy
from numbadnn.registry import FAMILY, Impl, implementations

#: what is said of the machine that asks, not of the problem
OF_THE_MACHINE = (
    "cannot be used",
    "cannot be loaded",
    "not installed",
    "simulator",
    "compute capability",
    "no GPU",
)
#: how masks of what differs from problem to problem are written
MASKS = ((r"\b(b?float(16|32|64))(?=\b)", "DTYPE"), (r"(?<![\w.])\d+(?![\w.])", "n"))


def reasons(impl: Impl, problems: list[Any]) -> set[str]:
    """The first line of every refusal that says something of a problem."""
    policy = Policy(device=-1 if impl.backend == "cpu" else 0)
    said = {impl.supports(problem, policy).partition("\n")[0] for problem in problems} - {""}
    return {text for text in said if not any(part in text for part in OF_THE_MACHINE)}


def told_once(texts: list[str]) -> list[str]:
    """Each text, but one for all that differ in nothing but a dtype or a number.

    >>> told_once(["33 channels do not fit", "64 channels do not fit", "needs stride 1"])
    ['n channels do not fit', 'needs stride 1']
    """
    kinds: dict[str, list[str]] = defaultdict(list)
    for text in texts:
        masked = text
        for pattern, mask in MASKS:
            masked = re.sub(pattern, mask, masked)
        kinds[masked].append(text)
    return [masked if len(same) > 1 else same[0] for masked, same in kinds.items()]


def of_all() -> dict[str, list[str]]:
    """implementation -> what it needs, as its refusals say it."""
    found: dict[str, set[str]] = defaultdict(set)
    cases = find(["contract"])
    for op in FAMILY:
        problems = [case.problem() for case in cases if case.op == op]
        for impl in implementations(op):
            for simulated in ("1", "0"):
                os.environ["NUMBA_ENABLE_CUDASIM"] = simulated
                found[impl.name] |= reasons(impl, problems)
    return {name: told_once(sorted(texts)) for name, texts in found.items()}


if __name__ == "__main__":
    json.dump(of_all(), sys.stdout)
