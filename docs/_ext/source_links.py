"""Docstrings name the page of their rules as a file; on the site that is a link to it, and the link is checked."""

import re
from pathlib import Path
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


def lost(folder: Path) -> list[str]:
    """The links of this kind in built pages whose page or heading is not there."""
    found, ids = [], {}
    for page in sorted(folder.rglob("*.html")):
        for path, heading in set(re.findall(r'href="((?:\.\./)+[\w/-]+\.html)#([\w-]+)"', page.read_text())):
            target = (page.parent / path).resolve()
            if target not in ids:
                ids[target] = set(re.findall(r'\bid="([^"]+)"', target.read_text())) if target.exists() else set()
            if heading not in ids[target]:
                found.append(f"{page.relative_to(folder)}: {path}#{heading}")
    return found


def check(app: Any, error: Exception | None) -> None:
    from sphinx.util import logging

    if error is None and app.builder.format == "html":
        for link in lost(Path(app.outdir)):
            logging.getLogger(__name__).warning("a link that leads nowhere: %s", link)


def setup(app: Any) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", process)
    app.connect("build-finished", check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
