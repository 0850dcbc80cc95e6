"""The README names what there is: every operation's implementations."""

from pathlib import Path

from numbadnn.registry import FAMILY, implementations

README = (Path(__file__).parent.parent / "README.md").read_text()


def test_every_implementation_is_in_the_table() -> None:
    names = {impl.name for op in FAMILY for impl in implementations(op)}
    assert len(names) > 25 and not [name for name in names if name not in README]
