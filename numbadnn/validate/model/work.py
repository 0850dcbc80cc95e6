"""One node with its inputs: computed in float64, computed as the model's types carry it, and how far others may be off."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

import numbadnn
from numbadnn.measuring.compare import NORMAL, UNIT, Bound, Comparison, compare, worst
from numbadnn.validate.model.graph import ModelError, Node, is_real, widened
from numbadnn.validate.model.nodes import TABLE
from numbadnn.validate.model.nodes.kinds import Given, Kind, Outputs
from numbadnn.validate.model.nodes.movement import by_onnx
from numbadnn.validate.model.posed import Posed, Unposed, bounds, exact
from numbadnn.validate.oracle import Trial

_UNKNOWN = Kind(None, by_onnx)


class Work:
    """A node on ``given``, arrays of the model's own types; ``problem`` is numbadnn's where it has the operation.

    ``unjudged`` says why nobody can say how far a result may be off ("" = it can be said).
    """

    def __init__(self, node: Node, given: Given) -> None:
        self.node, self.given = node, given
        self.kind, self.unjudged = TABLE.get(node.op, _UNKNOWN), ""
        self.posed: Posed | None = None
        self.problem: Any = None
        self._trial: Trial | None = None
        if self.kind is _UNKNOWN:
            self.unjudged = f"no bound is known for {node.op}"
        if self.kind.pose:
            try:
                self.posed = self.kind.pose(node, given)
                self.problem = self.posed.problem
            except Unposed as why:
                self.posed = None
                self.unjudged = "" if self.kind.compute else f"{node.op} with {why}"

    @property
    def trial(self) -> Trial:
        """The problem with its arrays, for every implementation."""
        if self._trial is None:
            assert self.posed
            self._trial = Trial(self.problem, self.posed.arrays)
        return self._trial

    def wide(self, given: Given) -> Outputs:
        """The outputs in float64, from inputs in float64."""
        if self.posed and self.kind.pose:
            return exact(self.kind.pose(self.node, given), self.problem)
        return tuple(widened(array) for array in self._plainly(given, self.kind.wide or self.kind.compute))

    def carried(self, given: Given) -> Outputs:
        """The outputs in the model's types: what numbadnn computes by itself, else NumPy."""
        if self.posed and self.kind.pose:
            posed = self.kind.pose(self.node, given)
            results = getattr(numbadnn, posed.function)(*posed.arrays, **posed.keywords)
            return posed.finish(results if isinstance(results, tuple) else (results,))
        return self._plainly(given, self.kind.compute)

    def _plainly(self, given: Given, compute: Any) -> Outputs:
        compute = compute or self.kind.unjudged or by_onnx
        if compute is not by_onnx:
            try:
                return compute(self.node, given)
            except Unposed as why:
                self.unjudged = f"{self.node.op} with {why}"
        try:
            return by_onnx(self.node, given)
        except Exception:  # its own classes; some operators it knows in the model's types alone
            if [v.dtype for v in given if v is not None] == [v.dtype for v in self.given if v is not None]:
                raise
            return by_onnx(self.node, self.given)

    def reference(self) -> Outputs:
        """The outputs in float64 on the very inputs."""
        if self.posed:
            with np.errstate(all="ignore"):
                return self.posed.finish(self.trial.values)
        return self.wide([None if a is None else widened(a) for a in self.given])

    def limits(self, outputs: Outputs, dtypes: list[Any]) -> list[Any]:
        """How far each output may be off of one who adds in any order; None: not at all."""
        if self.kind.errors is None:
            return [*bounds(self.posed, self.trial)] if self.posed else [None] * len(outputs)
        given = [None if a is None else widened(a) for a in self.given]
        unit = max((UNIT[np.dtype(d).name] for d in dtypes if is_real(d)), default=UNIT["float32"])
        with np.errstate(all="ignore"):
            errors = self.kind.errors(self.node, given, outputs, unit)
            if self.posed:
                known = bounds(self.posed, self.trial)
                return [
                    replace(b, accumulated=np.maximum(b.accumulated, e)) for b, e in zip(known, errors, strict=True)
                ]
        triples = zip(errors, dtypes, strict=False)
        return [_bound(np.asarray(e), np.dtype(d).name) if is_real(d) else e for e, d in triples]

    def compare(self, results: Outputs, outputs: Outputs, limits: list[Any]) -> Comparison:
        """Results of the model's types held against the reference's."""
        found = [_compare(*triple) for triple in zip(results, outputs, limits, strict=False)]
        return worst(found)

    def flops(self, outputs: Outputs) -> int:
        if self.kind.flops:
            return self.kind.flops(self.node, self.given, outputs)
        return sum(int(array.size) for array in outputs)


def _bound(error: np.ndarray, dtype: str) -> Bound:
    """What lies below the smallest normal number may be flushed to zero, but in 16 bits, where it is not small."""
    return Bound(error + (NORMAL[dtype] if dtype in ("float32", "float64") else 0), dtype)


def _compare(result: np.ndarray, right: np.ndarray, limit: Any) -> Comparison:
    if result.shape != right.shape:
        return Comparison(np.inf, (), 0, max(1, right.size), f"expected shape {right.shape}, got {result.shape}")
    if isinstance(limit, Bound):
        return compare(result, right, limit)
    if is_real(result.dtype):
        wrong = ~((result.astype(np.float64) == right.astype(result.dtype)) | (np.isnan(right) & (result != result)))
    else:
        wrong = np.abs(result.astype(np.float64) - right.astype(np.float64)) > (0 if limit is None else limit)
    if not wrong.any():
        return Comparison(0.0, (), 0, 0)
    where = tuple(int(i) for i in np.unravel_index(int(np.argmax(wrong)), wrong.shape))
    note = f"expected exactly {right[where]} at {where}, got {result[where]}"
    return Comparison(np.inf, where, 0, int(wrong.sum()), note)


def run(node: Node, compute: Any) -> Any:
    """What ``compute()`` gives; whatever goes wrong in a node is a ModelError that names it."""
    try:
        return compute()
    except (ModelError, MemoryError, KeyboardInterrupt):
        raise
    except Exception as error:
        raise ModelError(f"node {node.name} ({node.op}): {type(error).__name__}: {error}") from error
