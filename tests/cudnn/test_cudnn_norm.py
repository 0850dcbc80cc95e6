"""Batch normalization's gradient of cuDNN: what a run on an H200 gave, computed again as if the mean were exact."""

import json
import re
from typing import Any

import numpy as np
import pytest
from folders import ROOT

from numbadnn import cases
from numbadnn.cudnn import norm
from numbadnn.problems.norm import TRAIN_GRAD
from numbadnn.registry import SEQUENCE
from numbadnn.validate.fuzz.trials import Subject
from numbadnn.validate.oracle import Trial

RUN = json.loads((ROOT / "bench" / "results" / "nvidia_h200_fuzz_auto_3.json").read_text())
FOUND = [f for f in RUN["findings"] if f["impl"] == "cudnn.norm"]


def as_if_exact(trial: Trial) -> tuple[np.ndarray, ...]:
    """The gradients per activation in float32, without the mean of the deviations from the mean."""
    x, dy, gamma, mean, invstd = trial.inputs
    count, d = np.float32(len(x)), x - mean
    total, product = dy.sum(0, keepdims=True), (dy * d).sum(0, keepdims=True)
    return gamma * invstd / count * (count * dy - total - d * invstd * invstd * product), product * invstd, total


@pytest.mark.parametrize("found", FOUND, ids=[str(f["seed"]) for f in FOUND])
def test_a_mean_that_is_taken_for_exact_passes_the_bound_of_the_definition_and_keeps_its_own(
    found: dict[str, Any],
) -> None:
    trial = Subject(cases.parse(found["case"]), found["seed"]).trial
    results = as_if_exact(trial)
    at, got = re.search(r"at \(([\d, ]+)\), got (\S+)$", found["text"]).groups()  # type: ignore[union-attr]
    place = tuple(map(int, at.split(",")))
    assert results[0][place] == pytest.approx(float(got), rel=2e-6), "what the GPU gave"
    assert not trial.compare(results, "ieee", SEQUENCE).ok
    assert trial.compare(results, norm.ARITHMETIC[TRAIN_GRAD], SEQUENCE).ok


def test_its_bound_sees_a_deviation_that_is_left_out() -> None:
    line = "batch_normalization_train_grad x=float32:4x3x5x5 dy=float32:4x3x5x5 mode=spatial epsilon=1e-4"
    trial = Trial.of(cases.parse(line))
    right = tuple(v.astype("float32") for v in trial.values)
    assert trial.compare(right, "exact_mean", SEQUENCE).ok
    x, dy, gamma, mean, invstd = trial.inputs
    without = gamma * invstd * (dy - dy.mean((0, 2, 3), keepdims=True))
    assert not trial.compare((without, *right[1:]), "exact_mean", SEQUENCE).ok
