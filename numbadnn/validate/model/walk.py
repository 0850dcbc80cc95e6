"""A walk through a model: every node once, in float64 and as its types carry it; branches and loops are walked into.

An array is kept while a node that is still to come reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from numbadnn.validate.model.graph import Graph, ModelError, Node, Value, is_real
from numbadnn.validate.model.work import Work, run

#: called for each node with (its number, its name, the work, the inputs' values, the outputs' values)
Look = Callable[[int, str, Work, list[Value | None], list[Value]], None]
#: more turns than this are no loop that ends
MOST_TURNS = 100_000


class Walk:
    """``outputs`` of the whole after ``run``; ``look`` sees every node but those that only branch."""

    def __init__(self, look: Look) -> None:
        self.look, self.count = look, 0

    def run(self, graph: Graph, feeds: Mapping[str, np.ndarray]) -> dict[str, Value]:
        found = self._graph(graph, {name: Value(array, None, name) for name, array in feeds.items()}, {}, "")
        return dict(zip(graph.outputs, found, strict=True))

    def _graph(self, graph: Graph, given: Mapping[str, Value], around: Mapping[str, Value], prefix: str) -> list[Value]:
        constants = {name: Value(array, None, prefix + name) for name, array in graph.constants.items()}
        values: dict[str, Value] = {**constants, **given}
        last = {name: number for number, node in enumerate(graph.nodes) for name in node.reads}
        for name in graph.outputs:
            last[name] = len(graph.nodes)
        for number, node in enumerate(graph.nodes):
            inputs = [None if not name else values[name] if name in values else around[name] for name in node.inputs]
            outputs = self._node(node, inputs, {**around, **values} if any(True for _ in node.graphs) else {}, prefix)
            for name, value in zip(node.outputs, outputs, strict=False):
                if name:
                    values[name] = value
            for name in {*node.reads, *node.outputs}:
                if last.get(name, -1) <= number:
                    values.pop(name, None)
        return [values[name] if name in values else around[name] for name in graph.outputs]

    def _node(self, node: Node, inputs: list[Any], around: Mapping[str, Value], prefix: str) -> list[Value]:
        name = prefix + node.name
        if node.op == "If":
            which = "then_branch" if _number(inputs[0], name) else "else_branch"
            return self._graph(_graph_of(node, which, name), {}, around, f"{name}/")
        if node.op == "Loop":
            return self._loop(node, inputs, around, name)
        self.count += 1
        number = self.count
        return run(node, lambda: self._compute(node, inputs, number, name))

    def _compute(self, node: Node, inputs: list[Any], number: int, name: str) -> list[Value]:
        work = Work(node, [None if v is None else v.rounded for v in inputs])
        if all(v is None or v.wide is None for v in inputs) and not work.kind.arithmetic:
            outputs = [Value(np.asarray(array)) for array in work.carried(work.given)]  # constants stay constants
        else:
            wide = work.wide([None if v is None else v.exact for v in inputs])
            carried = work.carried([None if v is None else v.carried for v in inputs])
            outputs = [Value(np.asarray(c), np.asarray(w)) for c, w in zip(carried, wide, strict=False)]
        prefix = name.removesuffix(node.name)
        for value, own in zip(outputs, node.outputs, strict=False):
            value.name = prefix + own
        self.look(number, name, work, inputs, outputs)
        return outputs

    def _loop(self, node: Node, inputs: list[Any], around: Mapping[str, Value], name: str) -> list[Value]:
        turns, condition, *state = inputs
        body = _graph_of(node, "body", name)
        if len(body.inputs) != 2 + len(state) or len(body.outputs) < 1 + len(state):
            raise ModelError(
                f"node {name} (Loop): expected a body with {2 + len(state)} inputs and {1 + len(state)} outputs or more, "
                f"got {len(body.inputs)} and {len(body.outputs)}"
            )
        most = MOST_TURNS + 1 if turns is None else int(_number(turns, name))
        kept, rows = state, []
        turn, going = 0, condition is None or bool(_number(condition, name))
        while going and turn < most:
            if turn >= MOST_TURNS:
                raise ModelError(f"node {name} (Loop): expected at most {MOST_TURNS} turns")
            inside = f"{name}[{turn}]/"
            start = [
                Value(np.asarray(turn, np.int64), None, f"{inside}turn"),
                Value(np.asarray(True), None, f"{inside}on"),
            ]
            given = dict(zip(body.inputs, (*start, *kept), strict=True))
            condition, *found = self._graph(body, given, around, inside)
            kept, turn = found[: len(state)], turn + 1
            rows.append(found[len(state) :])
            going = bool(_number(condition, name))
        scanned = len(node.outputs) - len(state)
        if not rows and scanned:
            raise ModelError(f"node {name} (Loop): expected at least one turn, got none")
        return [*kept, *(_stacked([row[i] for row in rows], f"{name}/{i}") for i in range(scanned))]


def _number(value: Value, name: str) -> Any:
    """The only element of what a branch or a loop asks."""
    if value.exact.size != 1:
        raise ModelError(f"node {name}: expected one number to branch or to count by, got shape {value.exact.shape}")
    return value.exact.ravel()[0]


def _graph_of(node: Node, which: str, name: str) -> Graph:
    graph = node.get(which)
    if not isinstance(graph, Graph):
        raise ModelError(f"node {name} ({node.op}): expected a graph as its {which}, got none")
    return graph


def _stacked(values: list[Value], name: str) -> Value:
    return Value(np.stack([v.carried for v in values]), np.stack([v.exact for v in values]), name)


def carried_error(value: Value) -> float | None:
    """The largest difference between what is carried and what is exact, as a share of the largest exact number."""
    return None if value.wide is None else error_of(value.carried, value)


def error_of(array: np.ndarray, value: Value) -> float | None:
    """The same of anybody's array for this value; None where it is no number that rounds."""
    exact = value.exact
    if not is_real(value.dtype) or array.shape != exact.shape or not exact.size:
        return None
    with np.errstate(all="ignore"):
        apart = np.abs(array.astype(np.float64) - exact)
        top = np.abs(exact[np.isfinite(exact)]).max(initial=0)
        most = float(np.nanmax(apart, initial=0))
        return most / float(top) if top else most
