"""What random problems on an H200 showed of cuDNN's batch normalization: computed again as cuDNN does."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest
from folders import ROOT

from numbadnn import cases, config
from numbadnn.validate.fuzz import rounds
from numbadnn.validate.fuzz.trials import Subject, examine

FOUND = json.loads((ROOT / "bench" / "results" / "nvidia_h200_fuzz_auto_3.json").read_text())["findings"]
NORMS = [f for f in FOUND if f["impl"] == "cudnn.norm"]


def seeds(found: list[dict[str, Any]]) -> list[str]:
    return [str(f["seed"]) for f in found]


def of_the_given_mean(problem: Any, inputs: tuple[Any, ...]) -> np.ndarray:
    """gamma * (dy - mean(dy) - d * mean(dy * d) * invstd^2) * invstd, d = x - mean, where the definition has d - mean(d)."""
    x, dy, gamma, mean, invstd = (a.astype(np.float64) for a in inputs)
    d, over = x - mean, {"axis": problem.axes, "keepdims": True}
    slope = (dy * d).mean(**over) * invstd**2
    result: np.ndarray = gamma * invstd * (dy - dy.mean(**over) - d * slope)
    return result


@pytest.mark.parametrize("found", NORMS, ids=seeds(NORMS))
def test_a_gradient_by_the_given_mean_passes_the_bound_and_keeps_its_own(found: dict[str, Any]) -> None:
    problem = cases.parse(found["case"])
    trial = Subject(problem, found["seed"]).trial
    dx = of_the_given_mean(problem, trial.inputs).astype(np.float32)
    at, got = re.search(r"expected at \(([\d, ]+)\), got (\S+)$", found["text"]).groups()  # type: ignore[union-attr]
    place = tuple(map(int, at.split(",")))
    others = [v.astype(np.float32) for v in trial.values[1:]]
    bound = trial.bounds("ieee")[0].total(trial.value)[place]
    assert abs(float(dx[place]) - float(got)) < 0.15 * bound, "what the GPU gave"
    assert not trial.compare((dx, *others), "ieee").ok
    assert trial.compare((dx, *others), "given_mean").ok


def test_the_bound_of_a_given_mean_allows_nothing_else() -> None:
    """Where the mean is right it is that of ieee, and elsewhere no more than the slope of what the mean misses."""
    line = "batch_normalization_train_grad x=float32:4x3x5 dy=float32:4x3x5 gamma=float32:1x3x5 mean=float32:1x3x5"
    trial = Subject(cases.parse(f"{line} invstd=float32:1x3x5 mode=per-activation"), 2).trial
    dx, *others = of_the_given_mean(trial.problem, trial.inputs), *trial.values[1:]
    assert trial.compare(tuple(v.astype(np.float32) for v in (dx, *others)), "given_mean").ok
    for wrong in ((dx * 1.0001, *others), (dx, others[0] * 1.0001, others[1]), (dx, others[0], others[1] + 1e-4)):
        assert not trial.compare(tuple(v.astype(np.float32) for v in wrong), "given_mean").ok


@pytest.mark.gpu
@pytest.mark.parametrize("found", FOUND, ids=seeds(FOUND))
def test_the_public_function_keeps_what_is_declared(found: dict[str, Any]) -> None:
    subject = Subject(cases.parse(found["case"]), found["seed"])
    with rounds.quiet(), config.using(workspace_limit=rounds.WORKSPACE, **found["options"]):
        assert [verdict.kind for verdict in examine(subject, "auto", 0)] == ["right"]
