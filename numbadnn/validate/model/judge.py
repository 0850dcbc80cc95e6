"""The verdict on each node: every implementation of it on exact inputs, rounded to the model's types, within its bound."""

from __future__ import annotations

import dataclasses
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from numbadnn.validate.check import Subject, check_all
from numbadnn.validate.model import probe
from numbadnn.validate.model.against import Other
from numbadnn.validate.model.alone import write_alone
from numbadnn.validate.model.graph import Value, is_real
from numbadnn.validate.model.walk import carried_error, error_of
from numbadnn.validate.model.work import Work

NUMPY = "numpy"


@dataclasses.dataclass
class NodeRow:
    """``local``: the largest error on exact inputs as a share of its bound; ``carried``: of all so far (``walk.error_of``)."""

    number: int
    name: str
    op: str
    impl: str
    status: str
    reason: str = ""
    local: float | None = None
    carried: float | None = None
    time_us: float | None = None
    problem: str = ""
    replay: str = ""

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


class Judge:
    """Collects ``rows``; ``flops`` of all nodes and of those judged; ``alone``: the file of the first node that is wrong."""

    def __init__(
        self, folder: str, stem: str, backends: Any = None, timed: bool = True, other: Other | None = None
    ) -> None:
        self.rows: list[NodeRow] = []
        self.flops = self.judged = 0
        self.alone, self.interrupted = "", False
        self._folder, self._stem, self._backends, self._timed, self._other = folder, stem, backends, timed, other

    def __call__(self, number: int, name: str, work: Work, inputs: list[Any], outputs: list[Value]) -> None:
        real = any(is_real(a.dtype) for a in (*work.given, *outputs) if a is not None)
        row = (
            self._of_other(NodeRow(number, name, work.node.op, "", "ok"), work, inputs, outputs)
            if self._other
            else None
        )
        if row and (row.status != "ok" or (work.kind.arithmetic and real)):
            self._add([row], work)
        if not work.kind.arithmetic or not real:
            return  # what computes with integers computes shapes and places
        count = work.flops(tuple(v.exact for v in outputs))
        carried = max((e for e in map(carried_error, outputs) if e is not None), default=None)
        rows = list(self._rows(NodeRow(number, name, work.node.op, NUMPY, "ok", carried=carried), work, outputs))
        self.flops += count
        self.judged += count if any(row.status in ("ok", "mismatch", "erratum") for row in rows) else 0
        self._add(rows, work)

    def _add(self, rows: list[NodeRow], work: Work) -> None:
        if not self.alone and any(row.status in ("mismatch", "error") for row in rows):
            number = rows[0].number
            self.alone = write_alone(work, str(Path(self._folder) / f"{self._stem}-node{number}.onnx"))
            for row in rows:
                row.replay = shlex.join(["numbadnn", "validate", self.alone])
        self.rows += rows

    def _of_other(self, row: NodeRow, work: Work, inputs: list[Any], outputs: list[Value]) -> NodeRow | None:
        """The other runtime's own step from its own inputs, and how far off its output is by then."""
        assert self._other
        row.impl = self._other.name
        given, results = self._other.arrays(inputs), self._other.arrays(outputs)
        if any(r is None for r in results) or any(
            g is None and v is not None for g, v in zip(given, inputs, strict=True)
        ):
            return None
        row.carried = max((e for e in map(error_of, results, outputs) if e is not None), default=None)
        own = Work(work.node, given)
        if own.unjudged:
            return None
        right = own.reference()
        found = own.compare(tuple(results), right, own.limits(right, [r.dtype for r in results]))
        row.local = found.worst
        row.status, row.reason = ("ok", "") if found.ok else ("mismatch", str(found))
        if found.ok and (probes := probe.images(own)):
            self._probe(row, own, outputs[0].name, *probes)
        return row

    def _probe(self, row: NodeRow, own: Work, output: str, images: np.ndarray, share: float) -> None:
        """The other runtime's weights one by one."""
        assert self._other
        result = self._other.probed(output, images)
        if result is None:
            return
        probed = Work(own.node, [images, *own.given[1:]])
        right = probed.reference()
        found = probed.compare((result,), right, probed.limits(right, [result.dtype]))
        row.reason = f"{100 * share:.3g} % of the weights probed"
        if not found.ok:
            row.status, row.reason, row.local = "mismatch", f"one weight at a time: {found}", found.worst

    def _rows(self, row: NodeRow, work: Work, outputs: list[Value]) -> Iterator[NodeRow]:
        if work.unjudged:
            impl = NUMPY if work.kind.unjudged else "onnx.reference"
            yield dataclasses.replace(row, impl=impl, status="not judged", reason=work.unjudged)
        elif work.posed:
            row = dataclasses.replace(row, problem=str(work.problem))
            row.replay = shlex.join(["numbadnn", "validate", row.problem])
            yield from self._implementations(row, work)
        else:
            begin = time.perf_counter()
            results = work.carried(work.given)
            spent = 1e6 * (time.perf_counter() - begin) if self._timed else None
            right = work.reference()
            found = work.compare(results, right, work.limits(right, [r.dtype for r in results]))
            status, reason = ("ok", "") if found.ok else ("mismatch", str(found))
            yield dataclasses.replace(row, status=status, reason=reason, local=found.worst, time_us=spent)

    def _implementations(self, row: NodeRow, work: Work) -> Iterator[NodeRow]:
        subject = Subject(row.name, work.problem, work.trial, integers=True)
        found = list(check_all(subject, self._backends, timed=self._timed))
        ran = [one for one in found if one.status != "refused"]
        for one in ran:
            of: dict[str, Any] = {"impl": one.impl, "status": one.status, "reason": one.reason, "local": one.worst}
            yield dataclasses.replace(row, **of, time_us=one.time_us or None)
        if not ran:
            yield dataclasses.replace(row, impl="all", status="not judged", reason=found[0].reason if found else "")
