"""A kernel is compiled as one module; what it calls can be called from Python, and from other modules, all the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import numbadnn
from numbadnn.host.undisturbed import load_numba, ready_to_compile

load_numba()
from numba import njit  # noqa: E402
from numba.core import typeinfer  # noqa: E402
from numba.core.codegen import JitEngine  # noqa: E402
from numba.core.errors import TypingError  # noqa: E402
from numba.core.types.functions import BaseFunction  # noqa: E402

from numbadnn.host import private, quick, whole  # noqa: E402
from numbadnn.host.builds import compiled  # noqa: E402


@njit(no_cpython_wrapper=True, no_cfunc_wrapper=True)
def half(x):
    return x / 2


@njit(no_cpython_wrapper=True, no_cfunc_wrapper=True)
def total(x):
    found = 0.0
    for value in x:
        found += half(value)
    return found


@njit
def more(x, least):
    found = 0.0
    for value in x:
        if value < least:
            raise ValueError("less than", least)
        found += half(value)
    return found


def kernel(x, least):
    return total(x) + more(x, least)


@pytest.fixture(params=[True, False], ids=["kept", "not kept"])
def build(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(private, "_said", {"that nothing is kept"})
    with numbadnn.using(cache_dir=tmp_path):
        yield lambda body: compiled(body, "any" if request.param else "")


def test_machine_code_is_made_once(build, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numba alone makes it of each function that is called, too."""
    ready_to_compile()  # which compiles something of Numba's own
    made = []
    finalize = JitEngine.finalize_object
    monkeypatch.setattr(JitEngine, "finalize_object", lambda self: made.append(1) or finalize(self), raising=True)
    one = build(lambda x: total(x))
    assert one(np.arange(5.0, dtype=np.float32)) == 5 and len(made) == 1
    assert all(isinstance(f.library, whole.Part) for f in total.overloads.values())


def test_a_part_is_called_from_python_too(build) -> None:
    x = np.arange(5.0)
    one = build(kernel)
    assert one(x, 0) == 10
    assert more(x, 0) == 5
    for function in (one, more):
        with pytest.raises(ValueError, match="less than") as error:
            function(x, 2)
        assert error.value.args == ("less than", 2)
    assert njit(lambda x: total(x) + more(x, 0))(x) == 10, "a module of Numba's that calls parts"


def test_a_part_that_calls_itself(build) -> None:
    @njit
    def factorial(n):
        return 1 if n < 2 else n * factorial(n - 1)

    assert build(lambda n: factorial(n))(5) == 120


def test_what_is_replaced_in_numba_comes_back() -> None:
    names = [(owner, name) for owner, name, _ in quick._of_the_cpu()]
    before = [vars(owner)[name] for owner, name in names]
    first, second = quick.quick(), quick.replaced([(BaseFunction, "get_call_type", quick._remembered_type)])
    first.__enter__()
    second.__enter__()
    assert vars(typeinfer)["new_error_context"] is not before[names.index((typeinfer, "new_error_context"))]
    first.__exit__(None, None, None)  # as a thread that compiles for the CPU while another compiles for a GPU
    assert vars(BaseFunction)["get_call_type"] is quick._remembered_type
    second.__exit__(None, None, None)
    assert [vars(owner)[name] for owner, name in names] == before and not quick._call_types


def test_errors_say_where(build) -> None:
    @njit(no_cpython_wrapper=True, no_cfunc_wrapper=True)
    def wrong(x):
        return x + "text"

    with pytest.raises(TypingError) as error:
        build(lambda x: wrong(x))(1)
    text = str(error.value)
    assert "During: resolving callee type" in text and "During: typing of" in text and text.count(__file__) >= 2
