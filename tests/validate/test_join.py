"""Reports of parts of the cases become one; the later rows of a case and backend count."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
import report_documents

from numbadnn.validate import html, join, report
from numbadnn.validate.check import Row
from numbadnn.validate.determinism import rows as determinism
from numbadnn.validate.documents import document, words


def written(file: Path, kind: str, rows: list[Any], cases: int, **more: Any) -> str:
    done = len({row.case for row in rows if getattr(row, "status", "") != report.NOT_RUN})
    found = document.make(
        kind,
        list(map(dataclasses.asdict, rows)),
        seconds=1.5,
        device=-1,
        arguments={},
        asked=words.asked(cases, done),
        **more,
    )
    document.write(str(file), found)
    return str(file)


def row(case: str, impl: str, status: str = "ok", reason: str = "") -> Row:
    return Row(case, impl, f"softmax x=float32:{len(case)}x3", status, reason)


def test_what_one_run_left_another_adds(tmp_path: Path) -> None:
    late = [row(name, "all", report.NOT_RUN, "the budget of 2 s was spent") for name in ("b", "c")]
    first = [row("a", "cudnn.softmax"), row("a", "numba.old"), row("a", "cpu.loops"), *late]
    second = [row("a", "numba.new"), row("b", "cpu.loops"), row("b", "numba.new", "refused", "needs 4")]
    files = [
        written(tmp_path / "1.json", "validate", first, 3, commit="one"),
        written(tmp_path / "2.json", "validate", second, 3, commit="two"),
    ]
    found = join.join(str(tmp_path / "all.json"), files)
    assert {(r["case"], r["impl"]) for r in found["rows"]} == {
        ("a", "cudnn.softmax"), ("a", "numba.new"), ("a", "cpu.loops"), ("b", "cpu.loops"), ("b", "numba.new"), ("c", "all"),
    }  # fmt: skip
    assert found["exit_status"] == report.INCOMPLETE and found["asked"] == words.asked(3, 2)
    assert [(part["commit"], part["cases"]) for part in found["parts"]] == [("one", 1), ("two", 2)]
    third = written(tmp_path / "3.json", "validate", [row("c", "cpu.loops")], 1)
    found = join.join(str(tmp_path / "all.json"), [*files, third])
    assert found["exit_status"] == report.OK and found["asked"] == words.asked(3, 3) and found["seconds"] == 4.5
    assert json.loads((tmp_path / "all.json").read_text()) == json.loads(document.text(found))
    wrong = written(tmp_path / "4.json", "validate", [row("b", "cpu.loops", "mismatch", "beyond")], 1)
    assert join.join(str(tmp_path / "all.json"), [*files, third, wrong])["exit_status"] == report.MISMATCH
    report_documents.validator().validate(json.loads((tmp_path / "all.json").read_text()))
    pytest.importorskip("jinja2")
    pytest.importorskip("matplotlib")
    assert "1 cases on" in html.page(found) and " at one; " in html.page(found)


def test_determinism_and_what_does_not_go_together(tmp_path: Path) -> None:
    files = []
    for number in range(2):
        rows = [
            determinism.Row(
                case, f"softmax {case}", "numba.rows", None, "float32", "gpu_to_gpu", sha256=str(number), verdict="ok"
            )
            for case in ("both", str(number))
        ]
        files.append(written(tmp_path / f"{number}.json", "determinism", rows, 3))
    found = join.join(str(tmp_path / "all.json"), files)
    assert {r["case"]: r["sha256"] for r in found["rows"]} == {"both": "1", "0": "0", "1": "1"}
    assert found["exit_status"] == report.OK and len(determinism.read_report(str(tmp_path / "all.json"))[1]) == 3
    assert join.join(str(tmp_path / "all.json"), files[:1])["exit_status"] == report.INCOMPLETE
    with pytest.raises(ValueError, match="got determinism, validate"):
        join.join(
            str(tmp_path / "all.json"), [files[0], written(tmp_path / "v.json", "validate", [row("a", "cpu.loops")], 1)]
        )
    other = json.loads(Path(files[0]).read_text()) | {"device": "another"}
    (tmp_path / "other.json").write_text(json.dumps(other))
    with pytest.raises(ValueError, match="expected reports of one device"):
        join.join(str(tmp_path / "all.json"), [files[0], str(tmp_path / "other.json")])


def test_the_command_ends_with_the_status_of_the_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = str(tmp_path / "all.json")
    ok = written(tmp_path / "ok.json", "validate", [row("a", "cpu.loops")], 1)
    left = written(tmp_path / "left.json", "validate", [row("b", "all", report.NOT_RUN)], 1)
    wrong = written(tmp_path / "wrong.json", "validate", [row("c", "cpu.loops", "mismatch", "beyond")], 1)
    assert [join.main([whole, *files]) for files in ([ok], [ok, left], [ok, left, wrong])] == [0, 4, 1]
    capsys.readouterr()
    model = written(tmp_path / "model.json", "model", [], 1)
    for names, text in (
        ([whole], "usage: "),
        ([whole, ok, str(tmp_path / "none.json")], "none.json: No such file"),
        ([whole, ok, model], "expected reports of validate, .* got model, validate"),
    ):
        assert join.main(names) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert re.search(text, line), line
