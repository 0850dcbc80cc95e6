"""The files that a run is to leave: ``--json``, ``--html``, ``--junit`` and ``--csv``."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from numbadnn.errors import NumbaDNNError
from numbadnn.validate import html
from numbadnn.validate.documents import document as documents


class Files(NamedTuple):
    """Where each form goes; None: it is not wanted."""

    json: str | None = None
    html: str | None = None
    junit: str | None = None
    csv: str | None = None

    def check(self) -> None:
        """Before the run: OSError for a file that cannot be written, NumbaDNNError for a package that a page lacks."""
        if self.html and (why := html.lacking()):
            raise NumbaDNNError(f"--html: {why}")
        for form, path in self._asdict().items():
            if path:
                check_writable(path, f"--{form}")

    def write(self, document: dict[str, Any]) -> list[str]:
        """Write all of them; a line for each that cannot be written, as what was found is worth more than the file."""
        return [line for form in self._fields for line in self._write(form, document)]

    def write_json(self, document: dict[str, Any]) -> list[str]:
        """The JSON file alone: as far as it is, for a run that is ended."""
        return self._write("json", document)

    def _write(self, form: str, document: dict[str, Any]) -> list[str]:
        path = getattr(self, form)
        if not path:
            return []
        try:
            _writer(form)(path, document)
        except OSError as error:
            return [f"--{form}: cannot write {path}: {error.strerror}"]
        return []


def _writer(form: str) -> Callable[[str, dict[str, Any]], None]:
    if form == "json":
        return documents.write
    write: Callable[[str, dict[str, Any]], None] = importlib.import_module(f"numbadnn.validate.{form}").write
    return write


def check_writable(path: str, option: str = "--json") -> None:
    """OSError now rather than after the run where the file cannot be written; what is in it stays until then."""
    existed = Path(path).exists()
    try:
        with open(path, "a"):
            pass
    except OSError as error:
        raise OSError(f"{option}: cannot write {path}: {error.strerror}") from error
    if not existed:
        Path(path).unlink()
