"""Records of kernels: dataclasses in all that can be seen of them, whose methods none had to compile."""

import copy
import dataclasses
import pickle
from typing import Any

import pytest
from folders import ROOT

from numbadnn.kernels.build import frozen


class Plain:
    rows: int
    columns: int = 8
    name: str = "tile"

    @property
    def size(self) -> int:
        return self.rows * self.columns

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise ValueError(f"rows: expected at least 1, got {self.rows}")


def made_by(dataclass: Any) -> Any:
    fields = dict(vars(Plain))
    for name in ("__dict__", "__weakref__"):
        del fields[name]
    return dataclass(frozen=True, slots=True)(type("Tile", (), fields))


Tile: Any = made_by(frozen.dataclass)
Tile.__qualname__ = "Tile"
Other: Any = made_by(dataclasses.dataclass)
Other.__qualname__ = "Tile"


def test_a_record_is_what_a_frozen_dataclass_is() -> None:
    for given, named in (((4,), {}), ((4, 16, "a"), {}), ((), {"rows": 2, "name": "b"}), ((3,), {"columns": 1})):
        ours, theirs = Tile(*given, **named), Other(*given, **named)
        assert repr(ours) == repr(theirs) and hash(ours) == hash(theirs) and ours.size == theirs.size
        assert dataclasses.astuple(ours) == dataclasses.astuple(theirs)
        assert dataclasses.asdict(ours) == dataclasses.asdict(theirs)
        assert ours == Tile(*given, **named) != dataclasses.replace(ours, rows=99)
        assert ours != theirs and ours != dataclasses.astuple(ours)
        assert pickle.loads(pickle.dumps(ours)) == copy.deepcopy(ours) == ours
    assert [f.name for f in dataclasses.fields(Tile)] == [f.name for f in dataclasses.fields(Other)]
    assert Tile.__match_args__ == Other.__match_args__ and Tile.__slots__ == Other.__slots__


def test_what_a_dataclass_refuses_a_record_refuses() -> None:
    tile = Tile(4)
    for given, named in (((), {}), ((1, 2, "a", 4), {}), ((1,), {"rows": 2}), ((1,), {"depth": 2})):
        for kind in (Tile, Other):
            with pytest.raises(TypeError):
                kind(*given, **named)
    for kind in (Tile, Other):
        with pytest.raises(ValueError, match="rows: expected"):
            kind(0)
    with pytest.raises(dataclasses.FrozenInstanceError, match="'rows'"):
        tile.rows = 5
    with pytest.raises(dataclasses.FrozenInstanceError, match="'rows'"):
        del tile.rows
    with pytest.raises(AttributeError):
        object.__setattr__(tile, "depth", 1)
    with pytest.raises(TypeError, match="frozen=True"):
        frozen.dataclass(frozen=False, slots=True)
    with pytest.raises(TypeError, match="plain fields, got parts"):

        @frozen.dataclass(frozen=True, slots=True)
        class Listed:
            parts: list[int] = dataclasses.field(default_factory=list)


def test_no_record_of_a_kernel_is_compiled() -> None:
    """A process pays for that in its first call."""
    found = [
        str(file.relative_to(ROOT))
        for file in sorted((ROOT / "numbadnn" / "kernels").rglob("*.py"))
        if "from dataclasses import dataclass" in (text := file.read_text())
        and "@dataclass(frozen=True, slots=True)" in text
        and file.name != "frozen.py"
    ]
    assert not found
