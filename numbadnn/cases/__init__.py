"""Named problems, read by tests, validate, bench and tune alike; add a line to a family's module and all of them have it.

A case is a name and the text of a problem (``str(problem)``, which parses back). Tags say who reads it: ``contract``, small
and full of edges; ``simulate``, a few tiny ones for the CUDA simulator; ``validate`` and ``bench``, layers of networks in
use, full size, with a smaller copy of the same layer (``small``) for machines without a GPU; ``edge``, small ones on data at the
edge of what numbers can say (``data``, a kind of its family's laws).

>>> find(["softmax/attention/float16"])[0].text
'softmax x=float16:32768x512 y=float16:32768x512 algo=accurate mode=channel'
"""

from __future__ import annotations

import difflib
import fnmatch
import functools
import importlib
import importlib.util
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from numbadnn.measuring.data import make_arrays
from numbadnn.registry import FAMILY, problem_class

__all__ = ["Case", "all_cases", "find", "make_arrays", "parse"]


@dataclass(frozen=True, slots=True)
class Case:
    """A name, a problem as text, who reads it; ``small`` is the same layer made smaller ("" = it is small already).

    ``data`` is the kind of its data.
    """

    name: str
    text: str
    tags: frozenset[str]
    small: str = ""
    data: str = "random"

    @property
    def op(self) -> str:
        return self.text.split(None, 1)[0]

    def problem(self, small: bool = False) -> Any:
        return parse(self.small if small and self.small else self.text)


def edge(name: str, text: str, data: str, small: str = "") -> Case:
    """A case on data of this kind, which ``validate`` runs too."""
    return Case(name, text, frozenset({"edge", "validate"}), small, data)


def parse(text: str) -> Any:
    """The problem that a line of text describes; ValueError says what was expected.

    >>> parse("softmax x=float32:2x5").algo
    'accurate'
    """
    op = text.split(None, 1)[0] if text.strip() else ""
    if op not in FAMILY:
        raise ValueError(
            f"expected a problem that begins with one of {', '.join(FAMILY)}, got {text!r}{_runs_as(text)}"
        )
    try:
        return problem_class(op).parse(text)
    except ValueError as error:
        raise ValueError(str(error) if text in str(error) else f"{error}, in {text!r}") from None


def find(names: Iterable[str], tag: str = "validate") -> list[Case]:
    """Cases by name, pattern (``resnet50/*``), tag, operation (its cases of ``tag``) or problem line; no names: all of ``tag``.

    Raises ValueError, with what is near, for a name that means nothing.
    """
    chosen: dict[str, Case] = {}
    for name in list(names) or [tag]:
        chosen.update((case.name, case) for case in _named(name, tag))
    return list(chosen.values())


_GRADIENTS = ("_grad_wrt_inputs", "_grad_wrt_weights")
#: functions whose calls are other operations -> those
RUNS_AS = {
    **{f"conv1d{g}": f"conv2d{g} of images of one row" for g in ("", *_GRADIENTS)},
    **{f"causal_conv1d{g}": f"conv2d{g} of images of one row" for g in _GRADIENTS},
    **{f"separable_conv{n}d{g}": f"two of conv{n}d{g}" for n in (2, 3) for g in ("", *_GRADIENTS)},
    **{f"conv{n}d_transpose": f"conv{n}d_grad_wrt_inputs" for n in (2, 3)},
    **{f"conv{n}d_transpose_grad_wrt_inputs": f"conv{n}d" for n in (2, 3)},
    **{f"conv{n}d_transpose_grad_wrt_weights": f"conv{n}d_grad_wrt_weights" for n in (2, 3)},
}


def _runs_as(text: str) -> str:
    """What to add to an error where a function is named that runs as another operation ("" = none is).

    >>> _runs_as("conv1d x=float32:1x1x9")
    '; conv1d runs as conv2d of images of one row'
    """
    name = text.partition(" ")[0]
    return f"; {name} runs as {RUNS_AS[name]}" if name in RUNS_AS else ""


def _named(name: str, tag: str) -> list[Case]:
    cases = all_cases()
    if name in FAMILY:
        return [c for c in cases.values() if c.op == name and tag in c.tags]
    if name in cases:
        return [cases[name]]
    if "=" in name:
        return [Case(name, str(parse(name)), frozenset())]
    matching = [c for c in cases.values() if name in c.tags or fnmatch.fnmatchcase(c.name, name)]
    if not matching:
        near = difflib.get_close_matches(name, [*FAMILY, *cases], n=5, cutoff=0.5)
        hint = f"near it: {', '.join(near)}" if near else f"there are: {', '.join([*FAMILY, 'contract', 'validate'])}"
        raise ValueError(
            f"expected an operation, a case, a pattern or a problem line, got {name!r}{_runs_as(name)}; {hint}"
        )
    return matching


@functools.cache
def all_cases() -> dict[str, Case]:
    """Every case by its name."""
    cases: dict[str, Case] = {}
    for family in dict.fromkeys(FAMILY.values()):
        if importlib.util.find_spec(f"numbadnn.cases.{family}") is None:
            continue
        for case in importlib.import_module(f"numbadnn.cases.{family}").cases():
            if case.name in cases:
                raise ValueError(f"two cases are called {case.name!r}")
            cases[case.name] = case
    return cases
