"""Gradients of recurrent networks by way of a reserve, as ``RNNBlock`` has them; alone they run the forward pass again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from numbadnn.ops.rnn_functions import reserve_size
from numbadnn.problem import Policy, Spec
from numbadnn.problems.rnn import INPUTS, RnnProblem, make
from numbadnn.registry import Impl, implementations
from numbadnn.validate.determinism import same_bits
from numbadnn.validate.execute import execute
from numbadnn.validate.oracle import Trial


def alone(problem: Any) -> Any:
    """What the reference knows of a problem: a recurrent network's, without the reserve that one implementation keeps."""
    if not isinstance(problem, RnnProblem) or not (problem.keeps or "reserve" in problem.names):
        return problem
    specs = dict(zip(problem.names, problem.inputs, strict=True))
    kept = {name: spec for name, spec in specs.items() if name not in ("y", "reserve")}
    return make(problem.op, problem.network, kept, problem.lengths)


def forward_of(problem: RnnProblem, device: int) -> RnnProblem:
    """The forward pass of an ``rnn_backward`` problem that leaves the reserve which ``RNNBlock`` would have it write."""
    given = zip(problem.names, problem.inputs, strict=True)
    specs: dict[str, Spec] = {name: spec for name, spec in given if name in INPUTS["rnn_forward"]}
    plain = make("rnn_forward", problem.network, specs, problem.lengths)
    return make("rnn_forward", problem.network, specs, problem.lengths, reserve_size(plain, device))


def backward_of(problem: RnnProblem, forward: RnnProblem, made_by: str) -> RnnProblem:
    """The same gradients from y and the reserve of that pass."""
    kept = tuple(Spec.of(s.dtype, s.shape) for s in (forward.outputs[0], forward.outputs[-1]))
    names, inputs = (*problem.names, "y", "reserve"), (*problem.inputs, *kept)
    return replace(problem, names=names, inputs=inputs, made_by=made_by)


def hold(impl: Impl, trial: Trial, policy: Policy, runs: int, alone: bool = False) -> list[str]:
    """What is wrong with the gradients of ``impl`` by way of a reserve, in ``runs`` passes from the same start.

    ``alone``: as ``execute`` has it.
    """
    problem: RnnProblem = trial.problem
    forward = forward_of(problem, policy.device)
    given = dict(zip(problem.names, trial.inputs, strict=True))
    first = next(i for i in implementations("rnn_forward") if i.name == impl.name)
    wrong: list[str] = []
    results: list[tuple[np.ndarray, ...]] = []
    for _ in range(runs):
        there = execute(first, forward, policy, [given[n] for n in forward.names], runs=1, alone=alone)
        made_by = there.executable.facts.get("reserve", impl.name)
        kept = (there.results[0], there.results[-1])
        reading = backward_of(problem, forward, made_by)
        back = execute(impl, reading, policy, [*trial.inputs, *kept], runs=1, alone=alone)
        found = trial.compare(back.results, back.executable.arithmetic, back.executable.summation)
        wrong += [] if found.ok else [str(found)]
        wrong += [pass_.damage for pass_ in (there, back) if pass_.damage]
        results.append(back.results)
    if not same_bits(results):
        wrong.append(f"{runs} passes gave different bits")
    return [f"by way of a reserve: {text}" for text in dict.fromkeys(wrong)]
