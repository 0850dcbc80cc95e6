"""The errata that the package ships: what they keep from being chosen, what runs all the same, and where they are listed."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from folders import ROOT

from numbadnn import cases, config
from numbadnn.call import candidates, info, select
from numbadnn.call.candidates import Candidates
from numbadnn.call.choose import choose
from numbadnn.call.remembered import restored
from numbadnn.cases import Case
from numbadnn.cudnn import lib
from numbadnn.gpu import devices
from numbadnn.kept import shipped_errata
from numbadnn.measuring.laws import law
from numbadnn.problem import Policy
from numbadnn.registry import DETERMINISM, FAMILY, Executable, Impl, implementations
from numbadnn.validate import report
from numbadnn.validate.check import Row, Subject, check, judge
from numbadnn.validate.oracle import Trial

GPU = Policy(device=0)
AVOIDED = [e for e in shipped_errata.entries() if e.effect == "avoided"]
EDGE = cases.find(["edge"])


def subject_of(case: Case) -> Subject:
    problem = case.problem(small=True)
    return Subject(case.name, problem, Trial.of(problem, 0, case.data))


def edge_of(entry: shipped_errata.Erratum, op: str) -> Case:
    """A case that shows an entry."""
    fitting = [c for c in EDGE if c.op == op and c.data == entry.data]
    return next(c for c in fitting if entry.means(entry.impl, c.problem(), entry.engine, {}))


# ---- the list --------------------------------------------------------------------------------------------------------


def test_every_entry_is_whole() -> None:
    known = {impl.name: impl.op for op in FAMILY for impl in implementations(op)}
    ids = [e.id for e in shipped_errata.entries()]
    assert len(set(ids)) == len(ids)
    for entry in shipped_errata.entries():
        assert entry.effect in shipped_errata.EFFECTS and entry.impl in known and entry.says and entry.seen
        assert set(entry.ops) <= set(FAMILY) and 90000 <= entry.since < (entry.below or 10**6)
        assert entry.engine is None or entry.effect == "refused"
        if entry.effect != "refused":
            for op in entry.ops:
                assert entry.data in law(op).EDGES[op] and edge_of(entry, op)


def test_the_document_and_info_list_every_entry() -> None:
    text = (ROOT / "docs" / "errata.md").read_text()
    listed = re.findall(r"^\| ([a-z0-9-]+) \|", text, re.M)
    ids = [e.id for e in shipped_errata.entries()]
    assert sorted(set(listed) - {"refused", "avoided", "normwise", "effect", "entry"}) == sorted(ids)
    shown = info.text()
    for entry in shipped_errata.entries():
        assert f"{entry.effect:8} {entry.id}: {entry.conditions}: {entry.says}" in shown


def test_an_entry_holds_for_its_versions() -> None:
    entry = AVOIDED[0].__class__(**{**AVOIDED[0].__dict__, "since": 91900, "below": 92800})
    assert [entry.holds(v) for v in (91800, 91900, 92799, 92800)] == [False, True, True, False]


# ---- choosing --------------------------------------------------------------------------------------------------------


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """cuDNN and one other implementation can do everything; cuDNN is the first to be asked."""
    library = SimpleNamespace(version=92800, path="/fake/libcudnn.so.9", trail=[])
    monkeypatch.setattr(lib, "_LOADED", library)
    monkeypatch.setattr(select, "unavailable", lambda backend, device: "")

    def both(op: str, backends: Any) -> list[Impl]:
        def made(backend: str, name: str, rank: float) -> Impl:
            return Impl(op, backend, name, lambda p, q: "", lambda p, q, c: Executable(print), lambda p: rank)

        found = [made("cudnn", next(e.impl for e in AVOIDED if op in e.ops), 1.0), made("numba", "numba.other", 1e6)]
        return [impl for impl in found if impl.backend in backends]

    monkeypatch.setattr(candidates, "implementations", both)
    monkeypatch.setattr("numbadnn.kept.ranks.estimate", lambda impl, *more: impl.rank(None))
    return library


@pytest.mark.parametrize(("entry", "op"), [(e, op) for e in AVOIDED for op in e.ops], ids=lambda v: getattr(v, "id", v))
def test_auto_avoids_it_and_who_names_cudnn_gets_it_recorded(on_a_gpu: Any, entry: Any, op: str) -> None:
    problem = edge_of(entry, op).problem()

    def choice(call: str | None = None, **options: Any) -> select.Choice:
        with config.using(**options) as inner:
            return choose(Candidates(problem, GPU, inner, call))

    chosen = choice()
    assert chosen.impl.name == "numba.other"
    assert f"wrong on some data, so it runs where backend='cudnn' is named: {entry.id}" in chosen.refusals[0].reason
    assert choice(backend="numba").impl.backend == choice(only="numba.*").impl.backend == "numba"
    for named in (choice("cudnn"), choice(backend="cudnn,numba"), choice(only="cudnn.*")):
        assert named.impl.name == entry.impl
        executable = Executable(print)
        select.note_erratum(named.impl, problem, executable)
        assert executable.facts["erratum"].startswith(entry.id)
    on_a_gpu.version = 80900  # of which nobody knows anything
    assert choice().impl.name == entry.impl
    on_a_gpu.version = 92800
    stored = {"impl": entry.impl, "config": None}
    with config.using() as options:
        backends = ("cudnn", "numba")
        assert "wrong on some data" in restored(stored, Candidates(problem, GPU, options), backends)
        assert not isinstance(restored(stored, Candidates(problem, GPU, options, "cudnn"), backends), str)


def test_other_problems_of_the_operation_are_not_meant(on_a_gpu: Any) -> None:
    for line in ("softmax x=float32:4x5 algo=accurate", "pool x=float32:1x2x4x4 window=2x2 mode=average_inc_pad"):
        with config.using() as options:
            assert choose(Candidates(cases.parse(line), GPU, options)).impl.backend == "cudnn"


# ---- validate --------------------------------------------------------------------------------------------------------


def spoiled(case: Case, name: str, spoil: float | None) -> Impl:
    """The reference under another's name, with one number wrong."""

    def plan(problem: Any, policy: Policy, config: Any) -> Executable:
        def run(inputs: Any, outputs: Any, workspace: Any, stream: Any) -> None:
            for out, value in zip(outputs, Trial(problem, inputs).values, strict=True):
                out[...] = value
            if spoil is not None:
                outputs[0].flat[0] = spoil

        return Executable(run)

    return Impl(case.op, "cudnn", name, lambda p, q: "", plan, lambda p: 1.0, determinism=DETERMINISM[1])


@pytest.mark.parametrize("entry", AVOIDED, ids=lambda e: e.id)
def test_validate_calls_it_an_erratum_on_its_own_data_alone(on_a_gpu: Any, entry: Any) -> None:
    case = next(c for c in EDGE if c.op == entry.ops[0] and c.data == entry.data and c.name.endswith("float32"))
    subject = subject_of(case)

    def row(name: str, spoil: float | None, subject: Subject = subject) -> Row:
        return judge(Row(case.name, name, case.text, "ok"), spoiled(case, name, spoil), subject, Policy(), False)

    shown = row(entry.impl, 12345.0)
    assert shown.status == "erratum" and shown.reason.startswith(f"{entry.id}: ")
    assert report.exit_status([shown]) == 0 and "show a known erratum" in report.summary([shown], 1.0)
    assert entry.id in report.details([shown])
    fine = row(entry.impl, None)
    assert fine.status == "ok" and fine.facts["erratum"] == f"{entry.id} does not show here"
    assert row("cudnn.another", 12345.0).status == "mismatch"
    ordinary = Subject(case.name, subject.problem, Trial.of(subject.problem))
    assert row(entry.impl, 12345.0, ordinary).status == "mismatch"


def test_a_transform_says_how_far_it_is_from_the_bound_of_each_element() -> None:
    case = next(c for c in EDGE if c.data == "spike" and c.name.endswith("float32"))
    subject = subject_of(case)

    def plan(problem: Any, policy: Policy, config: Any) -> Executable:
        def run(inputs: Any, outputs: Any, workspace: Any, stream: Any) -> None:
            limit = subject.trial.bounds("fft")[0].total(subject.trial.value)
            outputs[0][...] = subject.trial.value + limit / 2

        return Executable(run, arithmetic="fft")

    impl = Impl(case.op, "cpu", "cpu.spreads", lambda p, q: "", plan, lambda p: 1.0, "fft")
    row = judge(Row(case.name, impl.name, case.text, "ok"), impl, subject, Policy(), False)
    assert row.status == "ok" and re.search(r"of the bound of ieee", row.facts["elementwise"])
    assert float(row.facts["elementwise"].split()[0]) > 1e6


#: what cuDNN gives where its errata show, beside what is right
@pytest.mark.parametrize(("line", "kind", "wrong"), [
    ("softmax x=float32:2x1000 algo=log", "equal", 0.0),
    ("batch_normalization_train x=float32:10x5x10x10 mode=spatial epsilon=1e-5", "constant", 104448.0),
    ("pool x=float16:1x2x9x8 window=3x3 stride=2x2 pad=1x1", "lowest", -65504.0),
    ("spatialtf_sampler img=float32:2x8x5x9 grid=float32:2x4x6x2", "nan", 0.0),
    ("conv2d x=float32:2x3x9x9 w=float32:4x3x3x3 pad=1,1,1,1", "spike", 50.0),
])  # fmt: skip
def test_the_data_shows_the_fault(line: str, kind: str, wrong: float) -> None:
    """The bounds are tight enough there to see it: one such number is a mismatch, the right numbers are none."""
    trial = Trial.of(cases.parse(line), 0, kind)
    right = [v.astype(s.dtype) for v, s in zip(trial.values, trial.problem.outputs, strict=True)]
    assert trial.compare(tuple(right), "ieee").ok
    y = right[0].reshape(-1)
    at = {"lowest": np.flatnonzero(np.isneginf(y)), "nan": np.flatnonzero(np.isnan(y))}.get(kind, [len(y) // 2])[0]
    if kind == "spike":
        at = 0
    if kind == "constant":  # the channel of 1e10
        at = int(np.argmax(np.abs(np.broadcast_to(trial.inputs[0], right[0].shape)).reshape(-1)))
    y[at] = wrong
    assert not trial.compare(tuple(right), "ieee").ok


ON_THE_CPU = [c for c in EDGE if c.name.endswith("/float32") and "nhwc" not in c.name and "5x5" not in c.name]


@pytest.mark.parametrize("case", ON_THE_CPU, ids=lambda c: c.name)
def test_the_cpu_is_right_at_the_edges(case: Case) -> None:
    subject, ran = subject_of(case), 0
    for impl in implementations(case.op):
        if impl.backend == "cpu":
            row = check(impl, subject, Policy(), timed=False)
            assert row.status in ("ok", "refused"), row.reason
            ran += row.status == "ok"
    assert ran


@pytest.mark.gpu
@pytest.mark.skipif(not devices.gpus(), reason=devices.no_gpu_reason())
@pytest.mark.parametrize("case", EDGE, ids=lambda c: c.name)
def test_on_a_gpu_nothing_is_wrong_at_the_edges_but_what_is_known(case: Case) -> None:
    from numbadnn.gpu.context import ensure_context

    subject = Subject(case.name, case.problem(), Trial.of(case.problem(), 0, case.data))
    with ensure_context(0):
        for impl in implementations(case.op):
            if impl.backend != "cpu":
                row = check(impl, subject, GPU, timed=False)
                allowed = ("ok", "refused", "skipped") + (("erratum",) if impl.backend == "cudnn" else ())
                assert row.status in allowed, f"{impl.name}: {row.reason}"
