"""Reports: what every command writes follows the schema, and the page, the JUnit file and the CSV file say the same."""

from __future__ import annotations

import csv
import html.parser
import importlib.util
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import report_documents

from numbadnn import __main__ as command
from numbadnn.validate import csv as csv_report
from numbadnn.validate import html as html_report
from numbadnn.validate import junit
from numbadnn.validate.check import Row
from numbadnn.validate.documents import document as documents
from numbadnn.validate.documents import flat
from numbadnn.validate.documents.columns import COLUMNS
from numbadnn.validate.documents.files import Files

KINDS = (*report_documents.WORDS, "check", "model")
PAGES = report_documents.SCHEMA.parents[1] / "reports"
RESULTS = Path(__file__).parents[2] / "bench" / "results"


@pytest.fixture(scope="module", params=KINDS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Files]:
    """One run of a command, and what it left."""
    for name in ("jinja2", "matplotlib"):
        pytest.importorskip(name)
    return report_documents.written(request.param, tmp_path_factory.mktemp(request.param))


class Tags(html.parser.HTMLParser):
    """What a page is made of: (tag, attributes) in order, and all text outside scripts and style sheets."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] not in ("script", "style"):
            self.text += data

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)


# ---- JSON ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def validator() -> Any:
    return report_documents.validator()


def test_what_a_command_writes_follows_the_schema(run: tuple[dict[str, Any], Files], validator: Any) -> None:
    document, _ = run
    validator.validate(document)
    kind = documents.kind_of(document)
    cases = 2 if kind == "validate" else 1
    asked = None if kind in ("check", "model") else {"cases": cases, "done": cases, "sample": False}
    assert document["exit_status"] == 0 and document["asked"] == asked


@pytest.mark.parametrize(
    "change",
    (
        {"format": "numbadnn-validate-1"},
        {"format": 1},
        {"exit_status": "good"},
        {"asked": {"cases": 3}},
        {"surprise": 1},
        {"rows": [{"case": "a"}]},
        {"environment": 3},
    ),
    ids=str,
)
def test_the_schema_refuses_what_is_no_report(change: dict[str, Any], validator: Any) -> None:
    document = documents.make("validate", [], seconds=1.0, device=-1, arguments={}, status=0)
    assert validator.is_valid(json.loads(documents.text(document)))
    assert not validator.is_valid(json.loads(documents.text(document)) | change)


def test_a_row_that_was_not_timed_has_null(validator: Any, run: tuple[dict[str, Any], Files]) -> None:
    document = json.loads(json.dumps(run[0]))
    name = documents.FORMATS[documents.kind_of(document)][1]
    inner = {"bench": "timings", "tuning": "candidates"}.get(documents.kind_of(document))
    rows = [row for case in document[name] for row in case[inner]] if inner else document[name]
    if not any("time_us" in row for row in rows):
        return
    for row in rows:
        row["time_us"] = None
    assert validator.is_valid(document)
    rows[0]["time_us"] = 0.0
    assert not validator.is_valid(document)


@pytest.mark.parametrize(
    ("file", "kind", "rows"),
    (
        (Path(__file__).with_name("validate_of_format_1.json"), "validate", 5),
        (Path(__file__).with_name("determinism_without_head.json"), "determinism", 3),
        (RESULTS / "nvidia_h200_tuning_volumes_and_few_channels.json", "tuning", None),
    ),
)
def test_reports_of_earlier_versions_are_read(file: Path, kind: str, rows: int | None) -> None:
    document = documents.read(str(file))
    found = flat.rows(document)
    assert documents.kind_of(document) == kind and found and rows in (None, len(found))
    assert all(row["time_us"] is None for row in found if row["state"] == "out" and "time_us" in row)


@pytest.mark.parametrize(
    "text", ("", "{", "[]", '{"format": "numbadnn-plan-1"}', '{"format": 1}', '{"format": [1], "rows": []}')
)
def test_what_is_no_report_is_said_in_a_line(text: str, tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text(text)
    with pytest.raises(ValueError, match="x.json is no report: "):
        documents.read(str(file))
    with pytest.raises(ValueError, match="cannot read .*nowhere"):
        documents.read(str(tmp_path / "nowhere"))


@pytest.mark.parametrize("kind", documents.FORMATS)
def test_rows_that_are_none_are_said_in_a_line(kind: str) -> None:
    form, name = documents.FORMATS[kind]
    for row in (1, {}, {"case": "a", "timings": 3, "candidates": None, "status": []}):
        with pytest.raises(ValueError, match=f"expected rows as a report of {kind} has them"):
            flat.rows({"format": form, name: [row]})


@pytest.mark.parametrize(
    ("case", "problem", "arguments", "line"),
    (
        ("a", "softmax x=float32:2x3", {}, "numbadnn validate 'softmax x=float32:2x3'"),
        ("photographs/blur/float32", "conv2d x=..", {}, "numbadnn validate photographs/blur/float32"),
        ("a/lost case", "", {}, "numbadnn validate 'a/lost case'"),
        (
            "softmax",
            "softmax x=..",
            {"names": ["softmax"], "data": ["my x.npy"]},
            "numbadnn validate softmax --data 'my x.npy'",
        ),
    ),
)
def test_the_line_that_replays_a_row(case: str, problem: str, arguments: dict[str, Any], line: str) -> None:
    row = Row(case, "cpu.loops", problem, "ok").as_dict()
    (found,) = flat.rows({"format": "numbadnn-validate-2", "arguments": arguments, "rows": [row]})
    assert found["replay"] == line


# ---- CSV and JUnit -----------------------------------------------------------------------------------------------------


def test_csv_and_junit_have_every_row(run: tuple[dict[str, Any], Files]) -> None:
    document, files = run
    rows = flat.rows(document)
    with open(str(files.csv), encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    named = "node" if documents.kind_of(document) == "model" else "case"
    assert [line[named] for line in lines] == [row["case"] for row in rows]
    assert [line["result"] for line in lines] == [row["result"] for row in rows]
    titles = {column.title for column in COLUMNS[documents.kind_of(document)]}
    assert titles | {"problem", "replay"} == set(lines[0])
    suite = ElementTree.parse(str(files.junit)).getroot()[0]
    skipped = sum(row["state"] == "out" for row in rows)
    assert (suite.get("tests"), suite.get("skipped"), suite.get("failures")) == (str(len(rows)), str(skipped), "0")
    assert [test.get("classname") for test in suite] == [row["impl"] for row in rows]


def test_each_row_is_replayed_by_its_line(run: tuple[dict[str, Any], Files], tmp_path: Path) -> None:
    document, _ = run
    lines = {row["replay"] for row in flat.rows(document)}
    for line in lines:
        program, *words = shlex.split(line)
        options = command._parser().parse_args(words)
        names = options.names
        assert program == "numbadnn" and len(names) == 1
    assert lines and all(row["problem"] in [*shlex.split(row["replay"]), ""] for row in flat.rows(document))


def test_junit_says_what_failed(tmp_path: Path) -> None:
    file = tmp_path / "x.xml"
    junit.write(str(file), report_documents.model())
    suite = ElementTree.parse(file).getroot()[0]
    assert suite.attrib.items() >= {"tests": "40", "failures": "1", "errors": "0", "skipped": "8"}.items()
    (failure,) = suite.iter("failure")
    assert failure.get("message") == "error 37.5 of the bound at 0,3,1" and "numbadnn validate 'conv2d" in (
        failure.text or ""
    )


def test_hostile_texts_stay_texts_in_csv_and_junit(run: tuple[dict[str, Any], Files], tmp_path: Path) -> None:
    document = report_documents.hostile(run[0])
    junit.write(str(tmp_path / "x.xml"), document)
    tests = list(ElementTree.parse(tmp_path / "x.xml").getroot().iter("testcase"))
    assert len(tests) == len(flat.rows(document)) and "<script>" in tests[0].get("name", "")
    csv_report.write(str(tmp_path / "x.csv"), document | {"arguments": {}})
    with open(tmp_path / "x.csv", encoding="utf-8", newline="") as file:
        assert len(list(csv.reader(file))) == len(tests) + 1


def test_a_cell_is_no_formula(tmp_path: Path) -> None:
    model = report_documents.model()
    model["nodes"] = model["nodes"][:1]
    model["nodes"][0].update(name="=HYPERLINK(1)", reason="-", local=-1.5)
    csv_report.write(str(tmp_path / "x.csv"), model)
    with open(tmp_path / "x.csv", encoding="utf-8", newline="") as file:
        (line,) = csv.DictReader(file)
    assert (line["node"], line["notes"], line["local error"]) == ("'=HYPERLINK(1)", "-", "-1.5")


# ---- the page ----------------------------------------------------------------------------------------------------------


def test_a_page_has_its_rows_and_needs_no_network(run: tuple[dict[str, Any], Files]) -> None:
    document, files = run
    text = Path(str(files.html)).read_text()
    page, rows = Tags(text), [row for row in flat.rows(document) if row["state"] != "out"]
    assert (
        page.count("svg") == (2 if documents.kind_of(document) == "model" else 1)
        and text.count("<tr><td>") >= len(rows) > 0
    )
    assert not [attrs for _, attrs in page.tags if {"src", "srcset", "data"} & set(attrs)]
    assert all((attrs["href"] or "").startswith("#") for _, attrs in page.tags if "href" in attrs)
    assert "url(" not in text.replace("url(#", "") and "@import" not in text and page.count("script") == 1
    assert all(
        column.legend in page.text
        for column in COLUMNS[documents.kind_of(document)]
        if column.key in ("case", "result")
    )
    assert all(row["replay"] in page.text for row in rows)
    assert "numba" in page.text and str(document["device"]) in page.text


def test_hostile_texts_stay_texts_on_the_page(run: tuple[dict[str, Any], Files]) -> None:
    plain = Tags(html_report.page(run[0]))
    hostile = Tags(html_report.page(report_documents.hostile(run[0])))
    assert hostile.count("script") == plain.count("script") == 1 and hostile.count("img") == 0
    assert (
        "<script>window.hacked" in hostile.text
        and "{{ 7 * 7 }}" in hostile.text
        and "49" not in hostile.text.split("<script>")[1][:80]
    )


def test_a_model_shows_local_and_carried_errors() -> None:
    pytest.importorskip("jinja2")
    pytest.importorskip("matplotlib")
    text = html_report.page(report_documents.model())
    page = Tags(text)
    assert page.count("svg") == 2 and "carried error" in page.text and "node 31" in page.text
    assert "Something does not agree" in page.text and "small.onnx" in page.text
    assert (
        page.text.index("What went wrong") < page.text.index("What the columns mean") < page.text.index("Environment")
    )
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert "another runtime" not in page.text
    model = report_documents.model()
    model["nodes"] += [{**node, "impl": "onnxruntime"} for node in model["nodes"][:3]]
    assert "carried by another runtime" in Tags(html_report.page(model)).text


@pytest.mark.parametrize("file", sorted(PAGES.glob("*.html")), ids=lambda file: file.name)
def test_a_committed_page_is_small_and_names_no_folder_of_a_machine(file: Path) -> None:
    text = file.read_text()
    assert len(text.encode()) < 2**20 and "Environment" in Tags(text).text
    assert not re.search(r"(?<![\w.:/#-])/(tmp|home|root|work|usr|opt)/", text)


@pytest.mark.parametrize("name", ("jinja2", "matplotlib"))
def test_a_page_without_its_packages_is_refused_before_anything_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda asked, *rest: None if asked == name else find(asked, *rest))
    words = ("validate", report_documents.SOFTMAX, "--backend", "cpu", "--html", str(tmp_path / "x.html"))
    assert command.main(words) == 3
    assert capsys.readouterr() == (
        "",
        f"numbadnn validate: --html: a page needs {name}: pip install numbadnn[report]\n",
    )
    with pytest.raises(ImportError, match=f"a page needs {name}: pip install"):
        html_report.page(report_documents.model())


def test_nothing_but_a_page_imports_what_a_page_needs() -> None:
    code = f"""if True:
        import sys
        from numbadnn.__main__ import main
        main(["validate", {report_documents.SOFTMAX!r}, "--backend", "cpu", "--csv", "/dev/null", "--junit", "/dev/null"])
        print(sorted({{"jinja2", "matplotlib"}} & set(sys.modules)))"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("form", Files._fields)
def test_a_file_that_cannot_be_written_is_said_before_anything_runs(
    form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (("validate",), ("validate", "--determinism"), ("bench",), ("tune",)):
        assert command.main([*words, report_documents.SOFTMAX, f"--{form}", "/no/such/file"]) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.endswith(f"--{form}: cannot write /no/such/file: No such file or directory\n")


def test_engines_that_did_alike_on_a_case_share_a_row_of_the_page() -> None:
    pytest.importorskip("jinja2")
    pytest.importorskip("matplotlib")
    row = {
        "case": "small", "problem": "conv2d x=float32:1x1x3x3 w=float32:1x1x3x3", "impl": "cudnn.graph", "dtype": "float32",
        "declared": "run_to_run", "reached": "run_to_run", "sha256": "", "verdict": "ok", "reason": "",
        "trials": {"again": "same"}, "runs": {"again": [4, 4]},
    }  # fmt: skip
    other = {
        "trials": {"again": "different"},
        "runs": {"again": [1, 4]},
        "verdict": "wanting",
        "reached": "not_guaranteed",
    }
    rows = [row | {"config": {"engine": engine}} | (other if engine == 2 else {}) for engine in (30, 2, 1)]
    rows += [row | {"case": "large", "config": {"engine": engine, "form": n}} for n, engine in enumerate((7, 3, 7))]
    text = html_report.page({"format": "numbadnn-determinism-1", "rows": rows})
    table = text[text.index('<table id="rows">') :]
    cells = [f"<td>cudnn.graph {engines}</td>" for engines in ("engines 1, 30", "engine 2", "engines 3, 7 in 3 forms")]
    assert all(table.count(cell) == 1 for cell in cells) and table.count("<td>cudnn.graph") == 3
    assert "<b>5</b> ok" in text and "<b>1</b> wanting" in text  # the counts are of engines
