"""The examples do what their first paragraphs say, on the CPU, and on the GPU where there is one."""

import importlib.util
import sys
from typing import Any

import pytest
from folders import ROOT

EXAMPLES = ROOT / "examples"


def example(name: str) -> Any:
    """The module of an example."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


LIBRARIES = ("numpy", pytest.param("torch", marks=pytest.mark.gpu), pytest.param("cupy", marks=pytest.mark.gpu))


@pytest.mark.slow(30)
@pytest.mark.parametrize("library", LIBRARIES)
def test_digits_are_learned(library: str) -> None:
    pytest.importorskip("sklearn")
    if library != "numpy":
        pytest.importorskip(library)
    lines: list[str] = []
    assert example("digits").train(library, epochs=8, report=lines.append) >= 0.97
    assert len(lines) == 8


@pytest.mark.slow(30)
def test_digits_are_learned_in_jax() -> None:
    pytest.importorskip("sklearn")
    pytest.importorskip("jax")
    lines: list[str] = []
    assert example("jax_digits").train(epochs=8, report=lines.append) >= 0.97
    assert len(lines) == 8


def test_the_language_model_says_what_it_takes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["char_lm.py", "--help"])
    with pytest.raises(SystemExit) as exit_of:
        example("char_lm").main()
    assert exit_of.value.code == 0
    assert "[seconds] [{gru,lstm}]" in capsys.readouterr().out


@pytest.mark.slow(15)
def test_digits_are_drawn_again_in_pytorch() -> None:
    pytest.importorskip("sklearn")
    pytest.importorskip("torch")
    lines: list[str] = []
    assert example("torch_vae").train(epochs=10, report=lines.append) < 0.5
    assert len(lines) == 10


@pytest.mark.slow(15)
def test_a_locally_connected_layer_names_digits() -> None:
    pytest.importorskip("sklearn")
    pytest.importorskip("torch")
    assert example("torch_locally_connected").train(True, epochs=15, compiled=True, report=[].append) >= 0.95


def test_a_model_is_converted_and_checked() -> None:
    pytest.importorskip("torch")
    lines: list[str] = []
    difference, within, same = example("torch_convert").run(lines.append)
    assert difference < 1e-5 and within and same and "swapped: 0, 1, 3, 4, 6, 7, 10" in lines
