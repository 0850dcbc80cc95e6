"""Convolutions of cuDNN under TF32: what a run on an H200 gave, computed again with factors that are cut off."""

import json
import re
from typing import Any

import numpy as np
import pytest
from folders import ROOT

from numbadnn import cases
from numbadnn.validate.fuzz.trials import Subject
from numbadnn.validate.oracle import Trial

FOUND = json.loads((ROOT / "bench" / "results" / "nvidia_h200_fuzz_cudnn.json").read_text())["findings"]


def cut(array: np.ndarray) -> np.ndarray:
    """11 bits, and none of the rest."""
    return (array.astype(np.float32).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


@pytest.mark.parametrize("found", FOUND, ids=[str(f["seed"]) for f in FOUND])
def test_factors_that_are_cut_off_pass_the_bound_of_rounded_ones_and_keep_their_own(found: dict[str, Any]) -> None:
    problem = cases.parse(found["case"])
    trial = Subject(problem, found["seed"]).trial
    result = Trial(problem, tuple(map(cut, trial.inputs))).value.astype(np.float32)
    at, got = re.search(r"at \(([\d, ]+)\), got (\S+)$", found["text"]).groups()  # type: ignore[union-attr]
    place = tuple(map(int, at.split(",")))
    assert result[place] == pytest.approx(float(got), rel=2e-6), "what the GPU gave"
    assert not trial.compare(result, "tf32").ok
    assert trial.compare(result, "tf32_cut").ok
