"""What a new operation or implementation needs beside its code: each of these tests names what is missing.

An operation is an entry of ``registry.FAMILY``, an implementation what a backend registers. ``docs/how-to/add-an-operation.md``
has the order in which to write all this.
"""

import ast
import functools
import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from folders import ROOT, TESTS

import numbadnn
from numbadnn import cases, kernels, reference, registry
from numbadnn.kernels.build import simulate
from numbadnn.problem import Policy
from numbadnn.registry import FAMILY, MODULES, Executable, Impl, implementations
from numbadnn.validate.determinism import batches
from numbadnn.validate.fuzz import draws
from numbadnn.validate.fuzz.picks import Seeded

#: what a module of numbadnn/measuring/laws has
LAW = ("values", "extra_kinds", "exact_integers", "errors", "EDGES", "WORK")
#: tags of cases that every operation has, and those that one of its family's has
TAGS, OF_A_FAMILY = ("contract",), ("validate", "bench")


def forgotten(op: str) -> list[str]:
    """What an operation lacks, each in words that say where it goes."""
    family = FAMILY[op]
    return [
        *_of_the_code(op, family),
        *_of_the_cases(op, family),
        *_of_the_tests(op),
        *_of_the_pages(op, family),
    ]


def _of_the_code(op: str, family: str) -> Iterator[str]:
    if not callable(getattr(numbadnn, op, None)) or op not in numbadnn.__all__:
        yield f"a public function numbadnn.{op}, in numbadnn/ops/ and in __all__"
    if not callable(getattr(reference, op, None)) or op not in reference.__all__:
        yield f"a reference numbadnn.reference.{op}"
    try:
        law = importlib.import_module(f"numbadnn.measuring.laws.{family}")
    except ImportError:
        yield f"a law numbadnn/measuring/laws/{family}.py: test data and the bound"
    else:
        yield from (f"{name} in numbadnn/measuring/laws/{family}.py" for name in LAW if not hasattr(law, name))
    if not any(impl.complete for impl in _implementations(op)):
        yield f"an implementation of {op} that is complete: it takes every problem"


def _implementations(op: str) -> list[Impl]:
    """Those of the backends that have the operation's family."""
    there = [
        b
        for b in ("cpu", "numba")
        if (ROOT / MODULES[b].format(FAMILY[op]).replace(".", "/")).with_suffix(".py").is_file()
    ]
    return implementations(op, there)


def _of_the_cases(op: str, family: str) -> Iterator[str]:
    known = cases.all_cases().values()
    of_op = {tag for case in known if case.op == op for tag in case.tags}
    of_family = {tag for case in known if FAMILY[case.op] == family for tag in case.tags}
    missing = [tag for tag in TAGS if tag not in of_op] + [tag for tag in OF_A_FAMILY if tag not in of_family]
    yield from (f"cases of {op} with the tag {tag!r} in numbadnn/cases/{family}.py" for tag in missing)
    if "simulate" not in of_family and family not in in_tests_of_kernels():
        yield f"cases of {op} with the tag 'simulate' in numbadnn/cases/{family}.py: tiny ones for the simulator"
    if op not in batches.BATCHED | batches.WHOLE | batches.UNSPLIT:
        yield f"{op} in BATCHED or WHOLE of numbadnn/validate/determinism/batches.py, for validate --determinism"


def _of_the_tests(op: str) -> Iterator[str]:
    if op not in drawn():
        yield f"a random problem of {op} in numbadnn/validate/fuzz/draws.py"
    if op not in refused():
        yield f"bad input for {op}: rows in tests/ops/ whose errors are looked at"


@functools.cache
def drawn() -> frozenset[str]:
    """The functions of which the fuzzer draws calls."""
    some = (draws.FAMILIES[n % len(draws.FAMILIES)](Seeded(n, n, tiny=True)) for n in range(400))
    return frozenset(call.function for call in some)


@functools.cache
def refused() -> frozenset[str]:
    """The operations that a test in ops/ calls with something wrong: names in tests that expect an error, and in their rows."""
    found: set[str] = set()
    for path in (TESTS / "ops").glob("test_*.py"):
        lines = path.read_text(encoding="utf-8").splitlines()
        for node in ast.parse("\n".join(lines)).body:
            first = min((d.lineno for d in getattr(node, "decorator_list", [])), default=node.lineno)
            text = "\n".join(lines[first - 1 : node.end_lineno])
            rows = isinstance(node, ast.Assign | ast.AnnAssign) and ("bad" in path.name or "Error" in text)
            if rows or "pytest.raises" in text:
                found |= set(re.findall(r"\w+", text))
    return frozenset(found & set(FAMILY))


def _of_the_pages(op: str, family: str) -> Iterator[str]:
    if op not in re.findall(r"\w+", (ROOT / "docs/explanation/semantics.md").read_text(encoding="utf-8")):
        yield f"the rules of {op} in docs/explanation/semantics.md"
    named = {op, family, *(other for other, of in FAMILY.items() if of == family)}
    if not named & set(re.findall(r"\w+", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))):
        yield f"a line in CHANGELOG.md that names {op}"


@pytest.mark.parametrize("op", FAMILY)
def test_an_operation_has_all_that_it_needs(op: str) -> None:
    missing = forgotten(op)
    assert not missing, "\n".join(missing)


def test_a_new_operation_is_told_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILY, "nothing_yet", "of_its_own")
    assert implementations("nothing_yet") == []  # nor is there a folder of its family yet
    words = "\n".join(forgotten("nothing_yet"))
    for wanted in (
        "public function", "reference", "law", "complete", "'contract'", "'simulate'", "'validate'", "'bench'", "BATCHED",
        "random problem", "bad input", "semantics.md", "CHANGELOG.md",
    ):  # fmt: skip
        assert wanted in words


# ---- implementations -------------------------------------------------------------------------------------------------


def forgotten_by(impl: Impl) -> list[str]:
    """What an implementation of ours lacks."""
    found = []
    known = [case.problem() for case in cases.all_cases().values() if case.op == impl.op]
    if (
        not any(takes(impl, problem) for problem in known)
        and impl.name.removeprefix("numba.") not in in_tests_of_kernels()
    ):
        found.append(f"a case of {impl.op} that {impl.name} takes, or a test in tests/kernels/ that names it")
    planned = impl.plan.__module__
    elsewhere = "numbadnn.problems.conv_routes"  # these stand on others
    if impl.backend == "numba" and not planned.startswith((*compiled(), elsewhere)):
        found.append(f"the module of {impl.name} in numbadnn.kernels.HOSTS, whose kernels a test compiles")
    return found


def takes(impl: Impl, problem: Any) -> bool:
    """Whether it would run, in the simulator where it needs a GPU."""
    policy = Policy(device=-1 if impl.backend == "cpu" else 0, determinism="not_guaranteed")
    return not impl.supports(problem, policy)


@functools.cache
def in_tests_of_kernels() -> frozenset[str]:
    """The words of the tests of kernels, which have GPUs or what stands for them: among them the kernels that they try."""
    files = [*(TESTS / "kernels").rglob("*.py"), *(TESTS / "support").glob("simulated*.py")]
    return frozenset(word for file in files for word in re.findall(r"\w+", file.read_text(encoding="utf-8")))


def compiled() -> list[str]:
    """The folders of the modules whose kernels tests compile for every architecture."""
    return [f"numbadnn.kernels.{host}".rpartition(".")[0] for host in kernels.HOSTS]


OURS = [impl for op in FAMILY for impl in implementations(op, ("cpu", "numba"))]


@pytest.mark.parametrize("impl", [pytest.param(impl, id=f"{impl.op}-{impl.name}") for impl in OURS])
def test_an_implementation_has_all_that_it_needs(impl: Impl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulate, "active", lambda: True)
    missing = forgotten_by(impl)
    assert not missing, "\n".join(missing)


def test_a_new_implementation_is_told_everything() -> None:
    def plan(problem: Any, policy: Policy, config: Any) -> Any:
        raise AssertionError("nothing is planned")

    new = Impl(
        "pool", "numba", "numba.pool_new", lambda problem, policy: "takes nothing yet", plan, lambda problem: 1.0
    )
    assert [words.split(" ")[0] for words in forgotten_by(new)] == ["a", "the"]


# ---- reserved names --------------------------------------------------------------------------------------------------


def test_a_field_with_a_reserved_name_is_refused_at_registration(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class ResponseProblem:
        op: str
        alpha: float = 1e-4

    class Scaled(ResponseProblem):
        MEANT = ("alpha",)

    before = implementations("pool")
    monkeypatch.setattr(registry, "problem_class", lambda op: ResponseProblem)
    impl = Impl("pool", "cpu", "cpu.new", lambda p, q: "", lambda p, q, c: Executable(lambda *a: None), lambda p: 1.0)
    with pytest.raises(
        ValueError, match="ResponseProblem: the field 'alpha' is read of every problem as what a result is"
    ):
        registry.register(impl)
    assert implementations("pool") == before
    registry.check_fields(Scaled)
