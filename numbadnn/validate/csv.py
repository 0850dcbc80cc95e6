"""A report as CSV: a row a line, the columns of the page, the problem and the line that replays it."""

from __future__ import annotations

import csv
import math
from typing import Any

from numbadnn.validate.documents.columns import COLUMNS
from numbadnn.validate.documents.document import kind_of
from numbadnn.validate.documents.flat import rows


def write(path: str, document: dict[str, Any]) -> None:
    """Write every row of a document (as ``--json`` writes it) to ``path``, UTF-8, lines ended as RFC 4180 says.

    What is empty was not measured. A text that a spreadsheet would take for a formula begins with an apostrophe.
    """
    columns = COLUMNS[kind_of(document)]
    keys = [*dict.fromkeys((*(c.key for c in columns), "problem", "replay"))]
    titles = {c.key: c.title for c in columns}
    with open(path, "w", encoding="utf-8", errors="backslashreplace", newline="") as file:
        out = csv.writer(file)
        out.writerow([titles.get(key, key) for key in keys])
        out.writerows([_cell(row.get(key)) for key in keys] for row in rows(document))


def _cell(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = str(value)
    formula = isinstance(value, str) and len(text) > 1 and text[0] in "=+-@\t\r"
    return f"'{text}" if formula else text
