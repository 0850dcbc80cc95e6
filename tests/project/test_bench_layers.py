"""The bench of layers, without a GPU: which cases, what a result is held against, means, winners, files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
from folders import ROOT

BENCH = ROOT / "bench"
sys.path.insert(0, str(BENCH))

import bench_layers  # noqa: E402
import layers_report  # noqa: E402

from numbadnn.cases import networks  # noqa: E402

ROOFS = {"copy": 4000.0, "fp32": 50.0, "tf32": 400.0, "fp16": 800.0, "bf16": 800.0}


def asked(**changes: Any) -> Namespace:
    options = {"quick": False, "network": [*networks.NETWORKS], "arithmetic": [*bench_layers.USUAL]}
    options |= {"layout": ["nchw", "nhwc"], "slice": "0/1", "tune": False, "deterministic": False}
    return Namespace(**{**options, **changes})


def row(name: str, auto: float, numba: float | None, cudnn: float, torch: float) -> dict[str, Any]:
    us = {"auto": auto, "numba": numba, "cudnn": cudnn, "torch": torch}
    return {
        "network": "resnet50", "layer": name, "direction": "forward", "arithmetic": "fp16", "layout": "nhwc", "flops": 8e9,
        "bytes": 4e6, "us": {k: v for k, v in us.items() if v}, "impl": {"auto": "numba.x"}, "error/bound": {"auto": 0.1},
        "refused": {},
    }  # fmt: skip


def test_slices_part_the_cases_and_quick_takes_some_of_them() -> None:
    every = bench_layers.cases(asked())
    assert len(every) == len(set(every)) == 8 * 3 * sum(len(networks.layers(n)) for n in networks.NETWORKS)
    parts = [bench_layers.cases(asked(slice=f"{i}/3")) for i in range(3)]
    assert sorted(str(case) for part in parts for case in part) == sorted(map(str, every))
    quick = bench_layers.cases(asked(quick=True))
    assert set(quick) < set(every) and {c.layer.network for c in quick} == set(networks.NETWORKS)
    assert {(c.arithmetic, c.layout, c.direction) for c in quick} == {
        (c.arithmetic, c.layout, c.direction) for c in every
    }
    with pytest.raises(ValueError, match="from 0 to N - 1, got '3/3'"):
        bench_layers.cases(asked(slice="3/3"))


def test_ratios_means_and_winners() -> None:
    rows = [row("a", 10, 10, 20, 40), row("b", 20, 40, 20, 20), row("c", 10, 10.1, 10, 10), row("d", 11, None, 10, 11)]
    assert layers_report.ratio(rows[0], "torch", "auto") == 4 and layers_report.ratio(rows[3], "cudnn", "numba") is None
    assert layers_report.best_over_auto(rows[3]) == pytest.approx(10 / 11)
    assert layers_report.roof_us(rows[0], ROOFS) == 10.0
    last = layers_report.means(rows).splitlines()[-1].split()
    assert last[:4] == ["all", "cases", "4", "1.414"]  # (4 * 1 * 1 * 1) ** (1 / 4)
    assert layers_report.winners(rows).splitlines()[-1].split() == ["all", "cases", "4", "25%", "50%", "25%"]


def test_a_report_is_written_and_read_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "one.json"
    assert layers_report.report(file, [row("a", 10, 10, 20, 40)], ROOFS, {"device": "abacus", "commit": "c"}) == 0
    document = json.loads(file.read_text())
    assert document["device"] == "abacus" and document["rows"][0]["us"]["torch"] == 40
    wrong = row("b", 10, 10, 20, 40)
    wrong["us"].pop("numba")
    wrong["refused"] = {"numba": "7 times the bound"}
    assert layers_report.report(file, [wrong], ROOFS) == 1
    assert "REFUSED" in capsys.readouterr().out
    assert layers_report.report(file, [], ROOFS) == 3


def test_float64_tells_a_right_result_from_a_wrong_one() -> None:
    torch = pytest.importorskip("torch")
    import peers

    torch.manual_seed(0)
    for name in ("resnext50", "unet3d"):
        layer = networks.layers(name)[-1]
        layer = layer._replace(image=(layer.image[0], *(4,) * (len(layer.image) - 1)))
        for direction in networks.DIRECTIONS:
            problem = networks.problem(layer, direction, "float32", "nhwc", images=2)
            inputs = tuple(
                torch.empty_strided(s.shape, s.strides, dtype=torch.float32).normal_() for s in problem.inputs
            )
            right = peers.convolution(problem, inputs)()
            wrong = right.clone()
            wrong[wrong.abs() == wrong.abs().max()] *= 1.001  # one where the terms cancel may be off by so much
            found = peers.worst_errors(problem, inputs, {"right": (right, "ieee"), "wrong": (wrong, "ieee")})
            assert tuple(right.shape) == problem.output.shape and found["right"] <= 1 < found["wrong"]


def test_without_a_gpu_it_says_that_it_needs_one() -> None:
    from numbadnn.gpu import devices

    if devices.gpus():
        pytest.skip("there is a GPU")
    for script in ("bench_layers.py", "resnet50_plan.py"):
        env = {**os.environ, "PYTHONPATH": str(BENCH.parent)}
        done = subprocess.run([sys.executable, BENCH / script], capture_output=True, text=True, check=False, env=env)
        assert done.returncode == 3 and "needs an NVIDIA GPU" in done.stderr
