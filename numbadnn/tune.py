"""The fastest way to compute a problem, found by measuring every way there is, and remembered.

``measure`` plans every candidate that the policy admits (all cuDNN engines in all forms, all kernel configurations), holds
their results against one another, times those that agree and sorts them. What comes out is kept by ``choices``.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from numbadnn import stored
from numbadnn.errors import CudnnError, NotSupportedError, NumbaDNNError
from numbadnn.problem import Policy
from numbadnn.registry import Executable, Impl

#: seconds for one problem: after them no further candidate is planned
SECONDS = 20.0
#: a first look is this many launches; what is within FINAL of the best is timed again, in turn, FINALISTS at most
FIRST_LAUNCHES, FINAL_LAUNCHES, ROUNDS, FINAL, FINALISTS = 5, 16, 3, 1.2, 6
#: within this factor of the fastest, what the heuristic names first wins
TIE = 1.005


@dataclass(slots=True)
class Measured:
    """One candidate; ``time_us`` None: left out for ``reason``. ``heuristic``: what its implementation takes untuned."""

    impl: str
    backend: str
    config: Any
    heuristic: bool
    time_us: float | None = None
    reason: str = ""
    arithmetic: str = ""
    workspace_bytes: int = 0

    def as_dict(self) -> dict[str, Any]:
        names = ("impl", "config", "time_us", "workspace_bytes", "arithmetic", "heuristic")
        found = {name: getattr(self, name) for name in names}
        return {**found, "time_us": None if self.time_us is None else round(self.time_us, 3)}


@dataclass(slots=True)
class Outcome:
    """All candidates, the timed ones first, the fastest first of all; ``considered``: every implementation asked."""

    problem: Any
    policy: Policy
    candidates: list[Measured]
    considered: list[str]
    seconds: float = 0.0
    unfinished: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def timed(self) -> list[Measured]:
        return [c for c in self.candidates if c.time_us is not None]


_alone = threading.Lock()


def measure(
    problem: Any,
    policy: Policy,
    impls: Iterable[Impl],
    considered: Iterable[str],
    seconds: float = SECONDS,
    say: Callable[[str], None] = lambda text: None,
) -> Outcome:
    """Plan, check and time every candidate of the admitted ``impls`` (best guess first); one measurement at a time."""
    from numbadnn.measure import stage

    begin = time.perf_counter()
    outcome = Outcome(problem, policy, [], sorted(considered))
    impls = sorted(
        impls, key=lambda i: not i.complete
    )  # the complete one comes first, as the one that others must agree with
    with _alone, stage(problem, policy) as place:
        judge = _Judge(place)
        ready: list[tuple[Measured, Executable]] = []
        for impl in impls:
            for candidate, executable in _planned(impl, problem, policy, outcome):
                if time.perf_counter() - begin > seconds and ready:
                    candidate.reason = f"not reached in {seconds:g} s"
                    outcome.unfinished += 1
                    continue
                best = min((c.time_us for c, _ in ready if c.time_us), default=0.0)
                say(f"{len(outcome.candidates)} candidates, {best:.4g} us")
                if _first_look(place, judge, candidate, executable):
                    ready.append((candidate, executable))
        _finals(place, ready)
    order = {id(c): n for n, c in enumerate(outcome.candidates)}
    outcome.candidates.sort(key=lambda c: (c.time_us is None, c.time_us or 0.0, order[id(c)]))
    prefer_untuned(outcome)
    outcome.seconds = time.perf_counter() - begin
    return outcome


class _Judge:
    """Holds the first candidate's results, a complete implementation's where there is one; the others must agree."""

    def __init__(self, place: Any) -> None:
        self.place, self.name = place, ""
        self.known: dict[str, tuple[Any, ...]] = {}

    def disagreement(self, executable: Executable, name: str) -> str:
        from numbadnn.measure import disagreement, same_integers
        from numbadnn.validate.compare import DIRECT

        exact = "integers" in self.place.start and executable.arithmetic in DIRECT
        for kind in ("integers", "random") if exact else ("random",):
            results = self.place.results(executable, kind)
            if kind not in self.known:
                self.known[kind], self.name = results, self.name or name
                continue
            if kind == "integers":
                why = same_integers(results, self.known[kind])
            else:
                why = disagreement(results, self.known[kind], executable.arithmetic, sample=exact)
            if why:
                return f"does not agree with {self.name}: {why}"
        return ""


def _planned(impl: Impl, problem: Any, policy: Policy, outcome: Outcome) -> Iterator[tuple[Measured, Executable]]:
    """The candidates of one implementation that could be planned, its own heuristic first; all go into the outcome."""
    space = [c for c in (impl.space(problem, policy) if impl.space else []) if c is not None]
    real = {str(stored.plain(c)): c for c in space}
    taken: set[str] = set()
    for plain in [None, *map(stored.plain, space)]:
        if plain is not None and str(plain) in taken:
            continue
        candidate = Measured(impl.name, impl.backend, plain, plain is None)
        outcome.candidates.append(candidate)
        try:
            executable = impl.plan(problem, policy, real.get(str(plain)))
        except (NotSupportedError, CudnnError, ValueError) as error:
            candidate.reason = str(error).splitlines()[0]
            continue
        own = stored.configuration(executable)
        if plain is None and (str(own) in real or impl.restore):
            candidate.config = own
        taken.add(str(own))
        candidate.arithmetic, candidate.workspace_bytes = executable.arithmetic, executable.workspace_bytes
        yield candidate, executable


def _first_look(place: Any, judge: _Judge, candidate: Measured, executable: Executable) -> bool:
    """Whether the candidate runs, agrees and was timed; a first time, or the reason why it is left out."""
    try:
        candidate.reason = judge.disagreement(executable, candidate.impl)
        if candidate.reason:
            return False
        times = place.times(executable, 2)
        if min(times) < 2e4:
            times = place.times(executable, FIRST_LAUNCHES)
        candidate.time_us = _median(times)
    except (NumbaDNNError, MemoryError) as error:
        candidate.reason = f"failed: {str(error).splitlines()[0]}"
        return False
    return True


def _median(times: list[float]) -> float:
    """Without the standard library's, whose import takes longer than this module's."""
    middle = sorted(times)[(len(times) - 1) // 2 : len(times) // 2 + 1]
    return sum(middle) / len(middle)


def _finals(place: Any, ready: list[tuple[Measured, Executable]]) -> None:
    """Time those near the best again, in turn, so that no drift of the clock decides."""
    ready.sort(key=lambda r: r[0].time_us or 0.0)
    if not ready:
        return
    best = ready[0][0].time_us or 0.0
    final = [r for r in ready if (r[0].time_us or 0.0) <= FINAL * best][:FINALISTS]
    launches = max(3, min(FINAL_LAUNCHES, int(1e5 / max(best, 1.0))))
    times: dict[int, list[float]] = {i: [] for i in range(len(final))}
    for _ in range(ROUNDS):
        for i, (_, executable) in enumerate(final):
            times[i] += place.times(executable, launches)
    for i, (candidate, _) in enumerate(final):
        candidate.time_us = _median(times[i])


def prefer_untuned(outcome: Outcome) -> None:
    """Where the fastest is no faster than noise, what would run untuned comes first."""
    timed = outcome.timed
    for candidate in timed:
        if candidate.heuristic and (candidate.time_us or 0.0) <= TIE * (timed[0].time_us or 0.0):
            outcome.candidates.remove(candidate)
            outcome.candidates.insert(0, candidate)
            return


def to_stderr(problem: Any) -> Callable[[str], None]:
    """Progress on one line of a terminal; elsewhere one line at the beginning."""
    if sys.stderr.isatty():
        return lambda text: print(
            f"\r\033[Knumbadnn: measuring {problem}: {text}"[:160], end="", file=sys.stderr, flush=True
        )
    print(f"numbadnn: measuring {problem}", file=sys.stderr, flush=True)
    return lambda text: None
