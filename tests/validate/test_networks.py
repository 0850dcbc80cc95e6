"""The layers of networks: known sizes, and that what is tuned by name is what arrays ask for."""

from __future__ import annotations

import math

import numpy as np
import pytest

import numbadnn
from numbadnn import dispatch
from numbadnn.cases import networks, parse
from numbadnn.commands.tune import cases_of


def test_resnet50_has_the_arithmetic_it_is_known_for() -> None:
    """4.1e9 multiply-adds an image with the stride in the 3x3, as it is in use (3.8e9 in the paper, with it in the 1x1)."""
    repeats = {"2a-1x1": 1, "2b-3x3": 3, "2c-1x1": 4, "2d-1x1": 2, "3d-1x1": 3, "3b-3x3": 3, "3c-1x1": 4}
    repeats |= {"4d-1x1": 5, "4b-3x3": 5, "4c-1x1": 6, "5d-1x1": 2, "5b-3x3": 2, "5c-1x1": 3}
    total = 0
    for layer in networks.layers("resnet50"):
        total += repeats.get(layer.name, 1) * networks.problem(layer, "forward", "float32", images=1).flops // 2
    assert total == pytest.approx(4.09e9, rel=0.01)


@pytest.mark.parametrize("network", networks.NETWORKS)
def test_every_layer_parses_back_and_has_a_name_of_its_own(network: str) -> None:
    cases = list(networks.cases(network))
    assert len({case.name for case in cases}) == len({case.text for case in cases}) == len(cases)
    for case in cases:
        problem = parse(case.text)
        assert str(problem) == case.text and math.prod(problem.output.shape) == problem.output.size
        assert parse(case.small).x.shape[1:] == problem.x.shape[1:] and parse(case.small).x.shape[0] <= 2


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("name", ["conv1", "2c-1x1", "4-shortcut", "5b-3x3"])
def test_what_is_tuned_by_name_is_what_arrays_ask_for(name: str, layout: str) -> None:
    (layer,) = (found for found in networks.layers("resnet50") if found.name == name)
    for direction in networks.DIRECTIONS:
        problem = networks.problem(layer, direction, "float32", layout, images=2)
        arrays = []
        for spec in problem.inputs:
            a = np.empty(spec.shape, "float32")
            arrays.append(a.transpose(0, 2, 3, 1).copy().transpose(0, 3, 1, 2) if layout == "nhwc" else a)
        asked = dispatch.intercept("problem", getattr(numbadnn, problem.op), tuple(arrays), problem.keywords)
        assert str(asked) == str(problem)


def test_a_network_stands_for_all_its_layers_where_cases_are_tuned() -> None:
    found = cases_of(["vgg16"])
    assert len(found) == 9 * 3 * len(networks.SETTINGS)
    assert found[0].name == "vgg16/1-1/forward/float16-nhwc"
    with pytest.raises(ValueError, match="got 'vgg17'"):
        cases_of(["vgg17"])
