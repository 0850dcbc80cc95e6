"""A model's graph in Python's own terms: nodes, their attributes, and constants as NumPy arrays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np


class ModelError(ValueError):
    """A model that cannot be read or run, in one line, however many a library's own error has."""

    def __init__(self, text: str) -> None:
        super().__init__(" ".join(text.split()))


@dataclass(frozen=True, eq=False)
class Node:
    """One node: ``inputs`` that are left out are ""; an attribute that is a graph is a ``Graph``."""

    op: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any]
    opset: int
    proto: Any = None

    def get(self, name: str, default: Any = None) -> Any:
        return self.attributes.get(name, default)

    @property
    def graphs(self) -> Iterator[Graph]:
        """The graphs of its branches or its body."""
        return (value for value in self.attributes.values() if isinstance(value, Graph))

    @property
    def reads(self) -> set[str]:
        """Every name that it reads, those that its own graphs take from around them among them."""
        return {name for name in self.inputs if name}.union(*(graph.free for graph in self.graphs))


@dataclass(frozen=True, eq=False)
class Graph:
    """``nodes`` in an order in which they can run; ``constants`` by name; names of the inputs (no constants) and outputs."""

    nodes: tuple[Node, ...]
    constants: dict[str, np.ndarray]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    input_types: dict[str, Any] = field(default_factory=dict)

    @property
    def free(self) -> set[str]:
        """The names that it takes from the graph around it."""
        made = {*self.constants, *self.inputs}.union(*(node.outputs for node in self.nodes))
        return set(self.outputs).union(*(node.reads for node in self.nodes)) - made


@dataclass(eq=False)
class Value:
    """What a name holds: as if computed in float64 (``exact``), and as the model's own types carry it (``carried``).

    ``dtype`` is the model's. A constant holds one array, which is both. ``name``: no other value of the walk has it.
    """

    carried: np.ndarray
    wide: np.ndarray | None = None
    name: str = ""

    @property
    def dtype(self) -> Any:
        return self.carried.dtype

    @property
    def exact(self) -> np.ndarray:
        return widened(self.carried) if self.wide is None else self.wide

    @property
    def rounded(self) -> np.ndarray:
        """The exact value in the model's type: what a node is judged on."""
        if self.wide is None or self.wide.dtype == self.dtype:
            return self.carried if self.wide is None else self.wide
        with np.errstate(over="ignore"):
            return self.wide.astype(self.dtype)


def is_real(dtype: Any) -> bool:
    """Whether the type is one that rounds: float16, bfloat16, float32 or float64."""
    return np.dtype(dtype).name in ("float16", "bfloat16", "float32", "float64")


def widened(array: np.ndarray) -> np.ndarray:
    """In float64 where the type rounds, else as it is."""
    return array.astype(np.float64) if is_real(array.dtype) else array
