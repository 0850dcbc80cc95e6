"""The arguments of a kernel by name: one record gives the text of its parameters and the tuple of their values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Arguments(str):
    """The text of a kernel's parameters, which also knows their names.

    Each part is a type as in ``lang/cuda.py`` and the names of the kernel's parameters that have it, in the kernel's order.
    Addresses come first and have no names: each call gives them. Called with a value for each name, in any order, the record
    gives the values in the kernel's order; what is not given by name is looked up in the mapping ``facts``.

    >>> record = Arguments("ptr:2", "i32 count channels", "i64*2 strides")
    >>> str(record), record(channels=3, count=7, strides=(1, 2)), record({"channels": 3, "count": 9}, strides=(1, 2))
    ('ptr ptr i32 i32 i64*2', (7, 3, (1, 2)), (9, 3, (1, 2)))
    """

    names: tuple[str, ...]

    def __new__(cls, *parts: str) -> Arguments:
        types: list[str] = []
        names: list[str] = []
        for part in parts:
            kind, *named = part.split()
            address, _, count = kind.partition(":")
            is_address = address in ("ptr", "map")
            types += [address] * int(count or 1) if is_address else [kind] * len(named)
            names += named
            if is_address == bool(named) or (count and not is_address):
                raise ValueError(f"expected addresses without names and other types with names, got {part!r}")
        record = super().__new__(cls, " ".join(types))
        record.names = tuple(names)
        return record

    def __call__(self, facts: Mapping[str, Any] | None = None, /, **given: Any) -> tuple[Any, ...]:
        """The values in the kernel's order; TypeError where a name is missing or strange."""
        facts = facts or {}
        strange = given.keys() - set(self.names)
        missing = [name for name in self.names if name not in given and name not in facts]
        if strange or missing:
            raise TypeError(f"expected {', '.join(self.names)}; missing {missing}, not among them {sorted(strange)}")
        return tuple(given[name] if name in given else facts[name] for name in self.names)
