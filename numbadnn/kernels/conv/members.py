"""Several kernels for one kind of convolution, each an implementation of its own, tried in a fixed order.

A *member* takes a problem where its ``heuristic`` finds a configuration. The first member that takes a problem is the
fastest known for it, as measured on an H200; the table of a wing says so row by row. The order is made into ranks: the first
member that takes the problem has its estimate in microseconds, and each later one a thousandth of a microsecond more. A
member that yields comes behind all others.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from numbadnn.kernels.build.frozen import dataclass
from numbadnn.problem import Policy
from numbadnn.problems.conv import ConvProblem
from numbadnn.registry import Executable, Impl, register

#: microseconds between the ranks of neighbours in the order
STEP = 1e-3


@dataclass(frozen=True, slots=True)
class Member:
    """One kernel of a wing; ``takes`` completes the sentence "takes ..." of its refusal.

    ``heuristic(problem, policy)`` gives a configuration or None, ``plan(problem, policy, config)`` the executable,
    ``estimate(problem, config)`` microseconds on an H200, ``yields(problem, config)`` whether later members are faster.
    """

    name: str
    ops: tuple[str, ...]
    heuristic: Callable[[ConvProblem, Policy], Any]
    plan: Callable[[ConvProblem, Policy, Any], Executable]
    estimate: Callable[[ConvProblem, Any], float]
    takes: str
    arithmetic: str = "ieee"
    determinism: str = "run_to_run"
    yields: Callable[[ConvProblem, Any], bool] | None = None


def register_members(
    members: tuple[Member, ...], belongs: Callable[[ConvProblem], bool], refusal: Callable[[ConvProblem, Policy], str]
) -> None:
    """Register every member under each of its operations.

    ``belongs(problem)``: whether the problem is of this kind at all; ``refusal(problem, policy)``: why no member takes it.
    """

    @functools.lru_cache(128)
    def configured(member: Member, problem: ConvProblem, policy: Policy) -> Any:
        return member.heuristic(problem, policy)

    def behind(position: int, problem: ConvProblem) -> int:
        """How many places further back a member comes."""
        member = members[position]
        if member.yields is None or problem.op not in member.ops:
            return 0
        config = configured(member, problem, Policy())
        return len(members) if config is not None and member.yields(problem, config) else 0

    @functools.lru_cache(128)
    def first(problem: ConvProblem) -> tuple[int, float]:
        """The place of the first member that takes the problem under the default options, and its estimate."""
        found = len(members), math.inf
        for position, member in enumerate(members):
            config = configured(member, problem, Policy()) if problem.op in member.ops else None
            if config is not None:
                found = position + behind(position, problem), member.estimate(problem, config)
                if found[0] == position:
                    break
        return found

    def registered(op: str, position: int, member: Member) -> None:
        def supports(problem: ConvProblem, policy: Policy) -> str:
            if reason := refusal(problem, policy):
                return reason
            return "" if configured(member, problem, policy) is not None else f"takes {member.takes}"

        def plan(problem: ConvProblem, policy: Policy, config: Any = None) -> Executable:
            return member.plan(problem, policy, config or configured(member, problem, policy))

        def rank(problem: ConvProblem) -> float:
            if not belongs(problem):
                return math.inf
            leader, estimate = first(problem)
            return estimate + STEP * (position + behind(position, problem) - leader)

        register(Impl(op, "numba", member.name, supports, plan, rank, member.arithmetic, member.determinism))

    for position, member in enumerate(members):
        for op in member.ops:
            registered(op, position, member)
