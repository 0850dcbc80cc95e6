"""Who may compute one problem: the implementations of the backends that its device can have, each asked once.

A backend that cannot be used for arrays on this device is neither imported nor asked: one reason stands for all that it has.
``choose``, ``explain``, ``tune`` and ``bench`` ask one object a problem, which remembers what an implementation answered.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from numbadnn.call import select
from numbadnn.config import BACKENDS, Options
from numbadnn.errors import Refusal
from numbadnn.kept import ranks
from numbadnn.problem import FIXED_LEVELS, Policy
from numbadnn.registry import Impl, implementations


class Candidates:
    """Implementations for a problem under a policy and options; ``backend`` is the one that the call names."""

    def __init__(
        self,
        problem: Any,
        policy: Policy,
        options: Options,
        backend: str | None = None,
        without: Mapping[str, str] | None = None,
    ) -> None:
        """``without``: implementations that were planned and may not run, with the reason."""
        self.problem, self.policy, self.options, self.backend = problem, policy, options, backend
        self.without = dict(without or {})
        #: backend -> why none of its implementations is asked: it cannot be used on this device, or the options leave it out
        self.missing = {b: why for b in BACKENDS if (why := _missing(b, policy, options))}
        #: backends to ask one group after the other
        self.groups = select.groups(options, backend)
        self._unavailable: dict[str, str] = {}
        self._reasons: dict[tuple[Any, ...], str] = {}
        self._estimates: dict[str, float] = {}

    def under(self, policy: Policy) -> Candidates:
        """The same problem under another policy."""
        return Candidates(self.problem, policy, self.options, self.backend, self.without)

    def present(self, backends: Iterable[str] = BACKENDS) -> list[Impl]:
        """The implementations of those of these backends that can be used here, as the registry lists them."""
        return implementations(self.problem.op, [b for b in backends if b not in self.missing])

    def absent(self) -> list[Impl]:
        """The implementations of all other backends, to be listed: this imports their modules."""
        return implementations(self.problem.op, self.missing)

    def named(self, name: str) -> Impl | None:
        """The implementation of this name, of whatever backend."""
        for found in (self.present, self.absent):
            for impl in found():
                if impl.name == name:
                    return impl
        return None

    def _out(self, impl: Impl) -> str:
        """Why an implementation is not asked itself; whether a backend's library is there is asked once."""
        reason = select.left_out(impl, self.options)
        if not reason and impl.backend not in self._unavailable:
            self._unavailable[impl.backend] = select.unavailable(impl.backend, self.policy.device)
        return reason or self._unavailable[impl.backend]

    def names(self, backends: Iterable[str] = BACKENDS) -> list[str]:
        """The implementations of these backends that the options let be asked on this device."""
        return [i.name for i in self.present(backends) if not self._out(i)]

    def ordered(self, backends: tuple[str, ...] = BACKENDS) -> list[Impl]:
        """``in_turn`` as a list."""
        return list(self.in_turn(backends))

    def in_turn(self, backends: tuple[str, ...] = BACKENDS) -> Iterator[Impl]:
        """``present``, the one estimated to be fastest first; fewer backends than all are an order themselves.

        An estimate for which a library is asked is made when its implementation may be the next: that takes a new process long.
        Under FIXED_LEVELS: as the registry lists them, those that take everything last; a convolution's by their own
        estimates for a batch of a fixed size, where ``select.nominal`` has one.
        """
        group = {b: n if len(backends) < len(BACKENDS) else 0 for n, b in enumerate(backends)}
        found = self.present(backends)
        if self.policy.determinism not in FIXED_LEVELS:
            yield from self._fastest_first(found, group)
            return
        nominal = select.nominal(self.problem, self.policy)
        if nominal is None:
            yield from sorted(found, key=lambda i: (group[i.backend], i.complete))
            return
        yield from sorted(found, key=lambda i: (group[i.backend], i.rank(nominal)))

    def _fastest_first(self, found: list[Impl], group: dict[str, int]) -> Iterator[Impl]:
        waiting = [(group[impl.backend], self._at_least(impl), number) for number, impl in enumerate(found)]
        heapq.heapify(waiting)
        while waiting:
            place, us, number = heapq.heappop(waiting)
            estimate = self.estimate(found[number])
            if estimate > us:
                heapq.heappush(waiting, (place, estimate, number))
            else:
                yield found[number]

    def _at_least(self, impl: Impl) -> float:
        """No more than ``estimate`` says, and asks no library that the implementation can do without."""
        if impl.foretold_least is None or impl.name in self._estimates:
            return self.estimate(impl)
        own = ranks.estimate(impl, self.problem, self.policy, usable=False)
        return min(own, impl.foretold_least(self.problem))

    def estimate(self, impl: Impl) -> float:
        """Microseconds that an implementation takes untuned, estimated."""
        if impl.name not in self._estimates:
            usable = not impl.foretell or not self._out(impl)  # asking loads its library
            self._estimates[impl.name] = ranks.estimate(impl, self.problem, self.policy, usable)
        return self._estimates[impl.name]

    def reason(self, impl: Impl, supports: bool = True, engine: int | None = None, named: bool | None = None) -> str:
        """Why an implementation may not compute the problem ("" = it may); see ``select.refusal``.

        ``named`` None: as the call and the options have it.
        """
        if named is None:
            named = select.is_named(impl, self.options, self.backend)
        key = (impl.name, supports, engine, named)
        if key not in self._reasons:
            self._reasons[key] = (
                self.without.get(impl.name)
                or self._out(impl)
                or select.refusal(
                    impl, self.problem, self.policy, self.options, supports=supports, engine=engine, named=named
                )
            )
        return self._reasons[key]

    def refused(self, backends: Iterable[str]) -> list[Refusal]:
        """One refusal for each of these backends that is not asked."""
        return [Refusal(b, f"{b}.*", self.missing[b]) for b in backends if b in self.missing]


def _missing(backend: str, policy: Policy, options: Options) -> str:
    return select.left_out_backend(backend, options) or select.missing(backend, policy.device)
