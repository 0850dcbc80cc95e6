"""The fastest way to compute a problem, found by measuring every way there is, and remembered.

``measure`` plans every candidate that the policy admits (all cuDNN engines in all forms, all kernel configurations), times them,
holds the results of those near the best against one another and sorts them. What comes out is kept by ``choices``.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from numbadnn.errors import CudnnError, NotSupportedError, NumbaDNNError
from numbadnn.host import log
from numbadnn.kept import machine, ranks
from numbadnn.kept.outcome import KEPT, NEAR, Measured, Outcome
from numbadnn.problem import Policy
from numbadnn.registry import Executable, Impl, beyond_limit, plan

#: seconds for the configurations of one problem: after them no further candidate is planned
SECONDS = 12.0
#: what an implementation takes by itself is measured until so many times as much is spent: it may have to be compiled
PATIENCE = 3.0
#: a first look is this many launches; what is within FINAL of the best is timed again, in turn, FINALISTS at most
FIRST_LAUNCHES, FINAL_LAUNCHES, ROUNDS, FINAL, FINALISTS = 5, 16, 3, 1.2, 6
#: what took so many times the best in two launches is not timed more closely
HOPELESS = 3.0
#: how many engines of cuDNN's are timed where only what is likely is
LIKELY_ENGINES = 4
#: within this factor of the fastest, what the heuristic names first wins
TIE = 1.005


_alone = threading.Lock()
_by = 0  # the thread that measures


def new_lock() -> None:
    """In a forked child: another thread may have held the old one."""
    global _alone, _by
    _alone, _by = threading.Lock(), 0


def measuring() -> bool:
    """Whether this thread measures: a call came in the middle of it, and would wait for itself."""
    return _by == threading.get_ident()


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    global _by
    if measuring():
        raise NumbaDNNError("a measurement cannot be made in the middle of another one of the same thread")
    with _alone:
        _by = threading.get_ident()
        try:
            yield
        finally:
            _by = 0


def measure(
    problem: Any,
    policy: Policy,
    impls: Iterable[Impl],
    considered: Iterable[str],
    seconds: float = SECONDS,
    say: Callable[[str], None] = lambda text: None,
    at: Callable[[str], None] = lambda name: None,
    likely: bool = False,
) -> Outcome:
    """Plan, time and check every candidate of the admitted ``impls``; one measurement at a time.

    What each implementation takes by itself comes first, however long that is compiled (up to PATIENCE times ``seconds``). Then
    the other configurations of the fastest have ``seconds``, which these implementations share evenly: what has to be
    compiled does not keep engines waiting that cuDNN has ready. ``at``: who runs next. ``likely``: of configurations only the
    first of cuDNN's engines, none of which has to be compiled.
    """
    from numbadnn.measuring.stage import stage

    begin = time.perf_counter()
    outcome = Outcome(problem, policy, [], sorted(considered), likely=likely)
    with _one_at_a_time(), stage(problem, policy) as place:
        judge, others = _Judge(place), False
        ready: list[tuple[Measured, Executable]] = []
        end = PATIENCE * seconds
        for way in _in_turn(
            [_Way(impl, problem, policy, outcome) for impl in sorted(impls, key=lambda i: not i.complete)]
        ):
            spent = time.perf_counter() - begin - place.waited
            if way.begun and not others:
                others, end = True, spent + seconds
            if ready and spent > end:
                outcome.unfinished += way.give_up(f"not reached in {seconds:g} s")
                continue
            for candidate, executable in way.next():
                at(way.impl.name)
                best = min((c.time_us for c, _ in ready if c.time_us), default=0.0)
                say(f"{len(outcome.candidates)} candidates, {best:.4g} us")
                if _first_look(place, judge, candidate, executable, best):
                    ready.append((candidate, executable))
                    way.best_us = min(way.best_us, candidate.time_us or way.best_us)
            way.seconds += time.perf_counter() - begin - place.waited - spent
        ready = _agreeing(judge, ready)
        _finals(place, ready)
    order = {id(c): n for n, c in enumerate(outcome.candidates)}
    outcome.candidates.sort(key=lambda c: (c.time_us is None, c.time_us or 0.0, order[id(c)]))
    prefer_untuned(outcome)
    outcome.seconds = time.perf_counter() - begin - place.waited
    return outcome


class _Way:
    """The candidates of one implementation: its own heuristic first, then its configurations as they are listed."""

    def __init__(self, impl: Impl, problem: Any, policy: Policy, outcome: Outcome) -> None:
        self.impl, self.problem, self.policy, self.outcome = impl, problem, policy, outcome
        self.best_us, self.begun, self.seconds = float("inf"), False, 0.0
        self.left: list[Any] = []  # configurations as JSON has them
        self.real: dict[str, Any] = {}

    def give_up(self, why: str) -> int:
        """Put what is left into the outcome as not measured; how many these are."""
        left = [None] if not self.begun else self.left
        self.outcome.candidates += [Measured(self.impl.name, self.impl.backend, c, c is None, reason=why) for c in left]
        self.begun, self.left = True, []
        return len(left)

    def next(self) -> Iterator[tuple[Measured, Executable]]:
        """The next candidate, if it can be planned; it goes into the outcome in any case."""
        plain = self.left.pop(0) if self.begun else None
        candidate = Measured(self.impl.name, self.impl.backend, plain, plain is None, number=self._place(plain))
        self.outcome.candidates.append(candidate)
        if not self.begun:
            self.begun = True
            space = self.impl.space(self.problem, self.policy) if self.impl.space else []
            self.real = {str(machine.plain(c)): c for c in space if c is not None}
            self.left = [machine.plain(c) for c in self.real.values()]
            if self.outcome.likely:
                self.left = _first_engines(self.left)
        try:
            executable = plan(self.impl, self.problem, self.policy, self.real.get(str(plain)))
        except (NotSupportedError, CudnnError, ValueError) as error:
            candidate.reason = str(error).splitlines()[0]
            return
        if reason := beyond_limit(executable, self.policy):
            candidate.reason = reason
            return
        own = machine.configuration(executable)
        if plain is None and (str(own) in self.real or self.impl.restore):
            candidate.config, candidate.number = own, self._place(own)
        self.left = [c for c in self.left if c != own]
        candidate.arithmetic, candidate.workspace_bytes = executable.arithmetic, executable.workspace_bytes
        yield candidate, executable

    def _place(self, plain: Any) -> int:
        """Where a configuration stands in the list, -1 for none that is in it."""
        return list(self.real).index(str(plain)) if str(plain) in self.real else -1


def _first_engines(listed: list[Any]) -> list[Any]:
    """As they are listed, the first configuration of each of so many engines of cuDNN's; of own kernels none."""
    first: dict[str, Any] = {}
    for config in listed:
        if isinstance(config, dict) and "engine" in config:
            first.setdefault(ranks.engine_name(config), config)
    return list(first.values())[:LIKELY_ENGINES]


def _in_turn(ways: list[_Way]) -> Iterator[_Way]:
    """Each once, then of those that were not hopeless whoever took least time, until they have nothing left; then the others."""
    yield from ways
    while left := [way for way in ways if way.left]:
        best = min(way.best_us for way in ways)
        near = [way for way in left if way.best_us <= HOPELESS * best]
        yield min(near or left, key=lambda way: way.seconds)


class _Judge:
    """Holds the first candidate's results, a complete implementation's where there is one; the others must agree."""

    def __init__(self, place: Any) -> None:
        self.place, self.name = place, ""
        self.known: dict[str, tuple[Any, ...]] = {}

    def agrees(self, candidate: Measured, executable: Executable) -> bool:
        """Whether it does, looked at once; where not, the candidate loses its time and has the reason."""
        if not candidate.agreed:
            candidate.reason = self._disagreement(executable, candidate.impl)
            candidate.agreed = not candidate.reason
            candidate.time_us = candidate.time_us if candidate.agreed else None
        return candidate.agreed

    def _disagreement(self, executable: Executable, name: str) -> str:
        from numbadnn.measuring import agreement
        from numbadnn.measuring.compare import DIRECT

        exact = "integers" in self.place.start and executable.arithmetic in DIRECT
        for kind in ("integers", "random") if exact else ("random",):
            sample = exact and kind == "random" and kind in self.known
            results = self.place.results(executable, kind, sample)
            if kind not in self.known:
                self.known[kind], self.name = tuple(a.copy() for a in results), self.name or name
                continue
            known = agreement.sampled(self.known[kind]) if sample else self.known[kind]
            same = getattr(self.place.problem, "compared", len(results))  # what follows is an implementation's own
            results, known = results[:same], known[:same]
            if kind == "integers":
                why = agreement.same_integers(results, known)
            else:
                why = agreement.disagreement(results, known, executable.arithmetic)
            if why:
                return f"does not agree with {self.name}: {why}"
        return ""


def _first_look(place: Any, judge: _Judge, candidate: Measured, executable: Executable, best_us: float) -> bool:
    """Whether the candidate runs, agrees and was timed; a first time, or the reason why it is left out.

    What is far from the best takes two launches, and whether it agrees is looked at only if it is kept. One launch comes before:
    it may load the kernels, for so long that the device has nothing to do and the next one's time is the host's too.
    """
    try:
        if candidate.heuristic and not judge.agrees(candidate, executable):
            return False
        if not candidate.agreed:
            place.times(executable, 1)
        candidate.time_us = min(times := place.times(executable, 2))
        if not candidate.heuristic and candidate.time_us > NEAR * best_us:
            return True
        if not judge.agrees(candidate, executable):
            return False
        if min(times) < 2e4 and (not best_us or min(times) < HOPELESS * best_us):
            times = place.times(executable, FIRST_LAUNCHES)
        candidate.time_us = _median(times)
    except (NumbaDNNError, MemoryError) as error:
        _failed(candidate, error)
        return False
    return True


def _failed(candidate: Measured, error: Exception) -> None:
    """Note it; raised again where the context is spoilt, in which nothing can be measured any more."""
    from numbadnn.measuring.workers import spoilt

    candidate.time_us, candidate.reason = None, f"failed: {str(error).splitlines()[0]}"
    if spoilt():
        raise error


def _agreeing(judge: _Judge, ready: list[tuple[Measured, Executable]]) -> list[tuple[Measured, Executable]]:
    """Without those that do not agree, of the fastest few and the fastest of each implementation, which are what is kept."""
    ready.sort(key=lambda r: r[0].time_us or 0.0)
    kept: list[tuple[Measured, Executable]] = []
    seen: set[str] = set()
    for candidate, executable in ready:
        if len(kept) < KEPT or candidate.impl not in seen:
            try:
                if not judge.agrees(candidate, executable):
                    continue
            except (NumbaDNNError, MemoryError) as error:
                _failed(candidate, error)
                continue
            seen.add(candidate.impl)
        kept.append((candidate, executable))
    return kept


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
    if log.on_terminal():
        return lambda text: log.say(f"\r\033[Knumbadnn: measuring {problem}: {text}"[:160], end="")
    log.say(f"numbadnn: measuring {problem}")
    return lambda text: None
