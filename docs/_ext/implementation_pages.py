"""The register as pages: which implementations an operation has, and what each computes, guarantees and refuses."""

import json
import subprocess
import sys
from pathlib import Path

from page_tables import table

from numbadnn.registry import DETERMINISM, FAMILY, Impl, implementations

#: headings of families whose stem is no word
TITLES = {
    "conv": "Convolution",
    "norm": "Batch normalization",
    "spatial": "Spatial transformers",
    "rnn": "Recurrent networks",
}


def operations() -> str:
    """Operation x backend: names of implementations, in the order of the register."""
    backends = ("cpu", "numba", "cudnn")
    rows = (
        (
            f"`{op}`",
            *(" ".join(f"`{i.name}`" for i in implementations(op, [b])) or "-" for b in backends),
        )
        for op in FAMILY
    )
    return table(("operation", *backends), rows)


def conditions() -> str:
    """A section a family; an entry an implementation: what it computes, what it guarantees, what it refuses and why."""
    reasons, parts = refused(), []
    for family in dict.fromkeys(FAMILY.values()):
        ops = [op for op, of in FAMILY.items() if of == family]
        named: dict[str, list[Impl]] = {}
        for op in ops:
            for impl in implementations(op):
                named.setdefault(impl.name, []).append(impl)
        parts.append(f"## {TITLES.get(family, family.capitalize())}\n")
        parts += [entry(name, impls, len(ops), reasons.get(name, [])) for name, impls in sorted(named.items())]
    return "\n".join(parts)


def refused() -> dict[str, list[str]]:
    """What ``refusals`` finds, in a process of its own: it sets the simulator's variable."""
    return json.loads(subprocess.check_output([sys.executable, str(Path(__file__).with_name("refusals.py"))]))


def entry(name: str, impls: list[Impl], of: int, reasons: list[str]) -> str:
    """One implementation, as a list of definitions."""
    computes = "all operations of the family" if len(impls) == of else ", ".join(f"`{impl.op}`" for impl in impls)
    guarantees = sorted({impl.determinism for impl in impls}, key=DETERMINISM.index)
    arithmetic = dict.fromkeys(impl.arithmetic for impl in impls)
    lines = [
        f"`{name}`",
        f": {computes}; arithmetic {', '.join(arithmetic)}; determinism {', '.join(guarantees)}",
    ]
    if all(impl.complete for impl in impls):
        lines.append("\n  Takes every problem of its operations.")
    if reasons:
        lines.append("\n  Conditions, as `explain` says them where it refuses:\n")
        lines += ["  - " + reason.replace("*", "\\*") for reason in reasons]
    return "\n".join(lines) + "\n"
