"""Frozen dataclasses whose methods are not compiled: for modules that a process imports in its first call.

``dataclasses`` writes six methods of a class as text and compiles them, which took a third of the time that a first
convolution needs of the host. Here all classes share theirs. In all else they are dataclasses, with ``fields``,
``replace`` and ``asdict``.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass

T = TypeVar("T")


def _dataclass(*, frozen: bool, slots: bool) -> Callable[[type[T]], type[T]]:
    """``dataclasses.dataclass(frozen=True, slots=True)`` without fields of default factories or keywords alone.

    >>> @dataclass(frozen=True, slots=True)
    ... class Tile:
    ...     rows: int
    ...     columns: int = 8
    >>> Tile(4), Tile(4) == Tile(4, columns=8), dataclasses.replace(Tile(4), rows=2)
    (Tile(rows=4, columns=8), True, Tile(rows=2, columns=8))
    """
    if not (frozen and slots):
        raise TypeError("expected frozen=True and slots=True: dataclasses.dataclass makes others")
    return _made


def _made(cls: type[T]) -> type[T]:
    own = set(vars(cls))
    for name, method in _SHARED.items():
        if name not in own:
            setattr(cls, name, method)
    made: Any = dataclasses.dataclass(init=False, repr=False, eq=False, slots=True)(cls)
    fields = dataclasses.fields(made)
    if odd := [f.name for f in fields if f.default_factory is not dataclasses.MISSING or not f.init or f.kw_only]:
        raise TypeError(f"{cls.__name__}: expected plain fields, got {', '.join(odd)}")
    names = tuple(f.name for f in fields)
    defaults = {f.name: f.default for f in fields if f.default is not dataclasses.MISSING}
    made.__init__ = _initialiser(made, names, defaults, "__post_init__" in own)
    made._values = property(operator.attrgetter(*names) if len(names) > 1 else lambda self: (getattr(self, names[0]),))
    return made


def _initialiser(cls: Any, names: tuple[str, ...], defaults: dict[str, Any], checks: bool) -> Callable[..., None]:
    setters, count = [getattr(cls, name).__set__ for name in names], len(names)

    def __init__(self: Any, *given: Any, **named: Any) -> None:
        if named or len(given) != count:
            given = _completed(cls.__qualname__, names, defaults, given, named)
        for put, value in zip(setters, given, strict=True):
            put(self, value)
        if checks:
            self.__post_init__()

    return __init__


def _completed(
    what: str, names: tuple[str, ...], defaults: dict[str, Any], given: tuple[Any, ...], named: dict[str, Any]
) -> tuple[Any, ...]:
    """The values of all fields; TypeError as of any call, for too many, unknown, doubled and missing ones."""
    if len(given) > len(names):
        raise TypeError(f"{what}: expected at most {len(names)} values, got {len(given)}")
    values = dict(zip(names, given, strict=False))
    for name in named:
        if name in values or name not in names:
            raise TypeError(f"{what}: {name} was given twice" if name in values else f"{what} has no field {name}")
    values = {**defaults, **values, **named}
    if missing := [name for name in names if name not in values]:
        raise TypeError(f"{what}: expected {', '.join(missing)}")
    return tuple(values[name] for name in names)


def _eq(self: Any, other: object) -> bool:
    return self._values == other._values if other.__class__ is self.__class__ else NotImplemented  # type: ignore[attr-defined]


def _hash(self: Any) -> int:
    return hash(self._values)


def _repr(self: Any) -> str:
    said = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in dataclasses.fields(self))
    return f"{self.__class__.__qualname__}({said})"


def _reduce(self: Any) -> tuple[Any, ...]:
    return self.__class__, self._values


def _frozen(self: Any, name: str, *value: Any) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot {'assign to' if value else 'delete'} field {name!r}")


_SHARED = {
    "__eq__": _eq,
    "__hash__": _hash,
    "__repr__": _repr,
    "__reduce__": _reduce,
    "__setattr__": _frozen,
    "__delattr__": _frozen,
}

if not TYPE_CHECKING:
    dataclass = _dataclass
