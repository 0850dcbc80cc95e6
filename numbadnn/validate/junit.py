"""A report as JUnit XML, which CI servers show: a test case a row, what was refused or left out as skipped."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

from numbadnn.validate.documents.document import kind_of
from numbadnn.validate.documents.flat import rows

#: state of a row -> the element that says so
_ELEMENTS = {"wrong": "failure", "failed": "error", "out": "skipped"}
#: characters that XML 1.0 has no way to write
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def write(path: str, document: dict[str, Any]) -> None:
    """Write a document (as ``--json`` writes it) to ``path``: ``classname`` is the implementation, ``name`` the case."""
    kind, flat = kind_of(document), rows(document)
    numbers = {
        "tests": len(flat),
        "failures": sum(row["state"] == "wrong" for row in flat),
        "errors": sum(row["state"] == "failed" for row in flat),
        "skipped": sum(row["state"] == "out" for row in flat),
    }
    suite = ElementTree.Element("testsuite", {"name": f"numbadnn.{kind}"} | {k: str(v) for k, v in numbers.items()})
    suite.set("timestamp", _text(document.get("date") or ""))
    suite.set("time", _text(document.get("seconds") or 0))
    for row in flat:
        test = ElementTree.SubElement(
            suite, "testcase", classname=_text(row.get("impl") or kind), name=_text(row["case"])
        )
        if row.get("time_us"):
            test.set("time", f"{row['time_us'] / 1e6:.9f}")
        if row["state"] in _ELEMENTS:
            said = ElementTree.SubElement(test, _ELEMENTS[row["state"]], message=_text(row["notes"] or row["result"]))
            said.set("type", _text(row["result"]))
            said.text = _text(f"{row['problem']}\nreplay: {row['replay']}")
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    ElementTree.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)


def _text(value: Any) -> str:
    return _NOT_XML.sub("\ufffd", str(value))
