"""Small documents of every kind of report: what the commands write, and one whose every text is hostile."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import numbadnn
from numbadnn import __main__ as command
from numbadnn import config
from numbadnn.validate import run
from numbadnn.validate.determinism import report as determinism_report
from numbadnn.validate.documents.files import Files

SCHEMA = Path(__file__).parents[2] / "docs" / "reference" / "report.schema.json"
SOFTMAX = "softmax x=float32:4x7"
HOSTILE = (
    "<script>window.hacked = 1</script>\"'><img src=x onerror='window.hacked = 1'>{{ 7 * 7 }}$\\frac{\x00\ud800é日本"
)
WORDS = {
    "validate": ("validate", SOFTMAX, "conv2d x=float32:2x3x8x8 w=float32:4x3x3x3"),
    "determinism": ("validate", "--determinism", "--backend", "cpu", SOFTMAX),
    "bench": ("bench", "--backend", "cpu", SOFTMAX),
    "tuning": ("tune", SOFTMAX),
}


def validator() -> Any:
    """The published schema of all reports, itself checked."""
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(SCHEMA.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def written(kind: str, folder: Path) -> tuple[dict[str, Any], Files]:
    """What a command leaves: the document that is read back from its JSON file, and all files."""
    files = Files(*(str(folder / f"{kind}.{form}") for form in Files._fields))
    if kind == "check":
        return _checked(files), files
    asked = _small_model(folder) if kind == "model" else WORDS[kind]
    options = [word for form, path in files._asdict().items() for word in (f"--{form}", path)]
    kept = (
        {"cache_dir": str(folder)} if kind in ("tuning", "determinism") else {}
    )  # elsewhere kernels are compiled once more
    with pytest.MonkeyPatch.context() as patch, config.using(**kept):
        patch.setattr(determinism_report, "PROCESSES", 0)  # new processes take seconds to start
        patch.setattr(run, "simulator_jobs", lambda *asked: [])
        assert command.main([*asked, *options]) == 0
    return json.loads(Path(str(files.json)).read_text()), files


def _checked(files: Files) -> dict[str, Any]:
    """What ``numbadnn.check`` found, in all forms."""
    found = numbadnn.check(numbadnn.softmax, np.ones((4, 7), "float32"))
    found.json(files.json)
    document: dict[str, Any] = json.loads(Path(str(files.json)).read_text())
    files.write(document)
    return document


def _small_model(folder: Path) -> tuple[str, ...]:
    """The command on a model of three nodes, two of which numbadnn has no operation for."""
    import onnx_models

    maker = onnx_models.Maker()
    relu = maker.node("Relu", maker.input("x", ["N", 4]))
    dense = maker.node("Gemm", relu, maker.weights(4, 7), maker.weights(7))
    file = maker.save(folder / "small.onnx", maker.node("Softmax", dense))
    return ("validate", file, "--backend", "cpu", "--dim", "N=3")


def model() -> dict[str, Any]:
    """A model of 40 nodes, of which the 31st is wrong and every fifth is not judged."""
    nodes = [
        {
            "number": n,
            "name": f"/layer{n // 6}/node_{n}",
            "op": "Conv" if n % 5 else "Relu",
            "impl": "cpu.im2col" if n % 5 else "",
            "status": "mismatch" if n == 31 else "ok" if n % 5 else "not judged",
            "reason": "error 37.5 of the bound at 0,3,1" if n == 31 else "",
            "local": (37.5 if n == 31 else 0.01 * n) if n % 5 else None,
            "carried": 1e-7 * 1.1**n,
            "time_us": 100.0 - n,
            "problem": f"conv2d x=float32:1x{n}x8x8 w=float32:4x{n}x3x3" if n % 5 else "",
            "replay": f"numbadnn validate 'conv2d x=float32:1x{n}x8x8 w=float32:4x{n}x3x3'" if n % 5 else "",
        }
        for n in range(1, 41)
    ]
    head = {"format": "numbadnn-model-1", "model": "small.onnx", "date": "2026-11-28T12:00:00+00:00", "seconds": 2.5}
    return {
        **head,
        "device": "a CPU",
        "exit_status": 1,
        "asked": None,
        "arguments": {},
        "environment": {},
        "nodes": nodes,
    }


def hostile(document: dict[str, Any]) -> dict[str, Any]:
    """The same document with HOSTILE in the place of every text that is no word of a fixed set."""
    fixed = {
        "format",
        "status",
        "declared",
        "reached",
        "dtype",
        "verdict",
        "trials",
        "runs",
        "arithmetic",
        "backend",
        "config",
    }

    def spoilt(value: Any, key: str = "") -> Any:
        if key in fixed:
            return value
        if isinstance(value, dict):
            return {k: spoilt(v, k) for k, v in value.items()}
        if isinstance(value, list):
            return [spoilt(v, key) for v in value]
        return HOSTILE if isinstance(value, str) and value else value

    return spoilt(copy.deepcopy(document))
