"""Examples in pages are tests: fenced blocks of ``pycon``, which begin with ``>>>``, are run by the doctest builder."""

from typing import Any

from docutils import nodes


def mark(app: Any, doctree: nodes.document) -> None:
    for block in doctree.findall(nodes.literal_block):
        if block.get("language") == "pycon":
            block["testnodetype"], block["groups"] = "doctest", ["default"]


def setup(app: Any) -> dict[str, bool]:
    app.connect("doctree-read", mark)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
