"""Docstrings name the page of their rules as a file; on the site that is a link to it."""

import re
from typing import Any

PAGE = re.compile(r"docs/([\w/-]+)\.md(?:#([\w-]+))?")


def linked(line: str, root: str) -> str:
    """A line of a docstring with links, ``root`` leading from its page to that of the whole site.

    >>> linked("Source: docs/explanation/semantics.md#pooling.", "../")
    'Source: `explanation/semantics, pooling <../explanation/semantics.html#pooling>`__.'
    >>> linked("Source: ``docs/errata.md``", "")
    'Source: ``docs/errata.md``'
    """

    def link(found: re.Match[str]) -> str:
        if line[: found.start()].endswith("`"):  # quoted
            return found[0]
        page, heading = found[1], found[2]
        name, anchor = (f"{page}, {heading.replace('-', ' ')}", f"#{heading}") if heading else (page, "")
        return f"`{name} <{root}{page}.html{anchor}>`__"

    return PAGE.sub(link, line)


def process(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    root = "../" * app.env.current_document.docname.count("/")
    lines[:] = [linked(line, root) for line in lines]


def setup(app: Any) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", process)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
