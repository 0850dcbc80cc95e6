"""The verdict on links to other hosts: one that is gone fails; a host that does not answer says nothing of the link.

python docs/_ext/gone.py build/docs/linkcheck/output.json
"""

import json
import sys
from pathlib import Path

#: what a host answers where there is nothing
GONE = ("404 ", "410 ")


def gone(report: str) -> list[str]:
    """The links of a report of Sphinx's linkcheck that the host says are not there, or that name a page which is not.

    >>> gone('{"status": "broken", "uri": "https://a", "filename": "x.md", "lineno": 3, "info": "404 Client Error: Not Found"}')
    ['x.md:3: https://a: 404 Client Error: Not Found']
    >>> gone('{"status": "broken", "uri": "https://a", "filename": "x.md", "lineno": 3, "info": "no route to host"}')
    []
    """
    rows = [json.loads(line) for line in report.splitlines()]
    return [
        f"{row['filename']}:{row['lineno']}: {row['uri']}: {row['info']}"
        for row in rows
        if row["status"] == "broken" and ("://" not in row["uri"] or row["info"].startswith(GONE))
    ]


if __name__ == "__main__":
    lost = gone(Path(sys.argv[1]).read_text())
    sys.exit("\n".join(lost) or 0)
