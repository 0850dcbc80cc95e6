"""Private names of Numba and numba-cuda: all of them stand in two files, and the versions installed have them."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import numbadnn
from numbadnn.host import cuda_names, numba_names

LIBRARY = Path(numbadnn.__file__).parent
#: what Numba documents, as the modules whose names are imported
PUBLIC = {
    "numba",
    "numba.extending",
    "numba.cuda",
    "numba.cuda.extending",
    "numba.cuda.types",
    "numba_cuda",
    "llvmlite",
}


def gone(names: dict[str, str], attributes: Iterable[str]) -> list[str]:
    """The names that what is installed lacks."""
    dotted = [f"{module}.{name}" for name, module in names.items()] + list(attributes)
    return [name for name in dotted if not _is_there(name)]


def _is_there(dotted: str) -> bool:
    words, at = dotted.split("."), 1
    value: Any = importlib.import_module(words[0])
    while at < len(words):
        if not hasattr(value, words[at]):
            try:
                importlib.import_module(".".join(words[: at + 1]))
            except ImportError:
                return False
        value, at = getattr(value, words[at]), at + 1
    return True


def test_numba_has_every_private_name() -> None:
    import numba

    missing = gone(numba_names.NAMES, numba_names.ATTRIBUTES)
    assert not missing, f"Numba {numba.__version__} lacks {', '.join(missing)}: see numbadnn/host/numba_names.py"


def test_numba_cuda_has_every_private_name() -> None:
    if importlib.util.find_spec("numba_cuda") is None:
        if os.environ.get("NUMBADNN_REQUIRE_CUDNN"):
            pytest.fail("numba-cuda is not installed")
        pytest.skip("numba-cuda is not installed")
    import numba_cuda

    missing = gone(cuda_names.NAMES | cuda_names.SIMULATED, cuda_names.ATTRIBUTES)
    assert not missing, (
        f"numba-cuda {numba_cuda.__version__} lacks {', '.join(missing)}: see numbadnn/host/cuda_names.py"
    )


def test_what_is_gone_is_named() -> None:
    there = "numba.core.codegen.JITCodeLibrary.finalize"
    assert gone({"Compiler": "numba.core.compilers"}, [there, there + "_"]) == [
        "numba.core.compilers.Compiler",
        there + "_",
    ]
    with pytest.raises(ImportError, match=r"numba \d+\.\d+.* lacks numba\.core\.codegen\.Gone, a private name"):
        numba_names.named("numba.core.codegen", "Gone")


def test_no_other_file_imports_private_names() -> None:
    found = []
    for path in LIBRARY.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [node.module] if isinstance(node, ast.ImportFrom) and not node.level else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            private = [m for m in modules if m and m.split(".")[0] in ("numba", "numba_cuda") and m not in PUBLIC]
            found += [f"{path.relative_to(LIBRARY)}: {name}" for name in private]
    assert not found


def test_every_name_is_used() -> None:
    used: dict[str, set[str]] = {"numba_names": set(), "cuda_names": set()}
    for path in LIBRARY.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("numbadnn.host."):
                used.get(node.module.removeprefix("numbadnn.host."), set()).update(alias.name for alias in node.names)
    assert used["numba_names"] - {"named"} == set(numba_names.NAMES)
    assert used["cuda_names"] == set(cuda_names.NAMES | cuda_names.SIMULATED)
