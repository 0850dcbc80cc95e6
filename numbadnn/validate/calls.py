"""``numbadnn.check``: a call of one's own, on one's own arrays, by every implementation against the float64 reference.

The function is called once with a ``Watch`` for its backend: each operation that it consists of is checked when it is asked
for, under the options in force there, and answered with the reference's result, rounded.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from numbadnn import config, dispatch
from numbadnn.arrays import View
from numbadnn.arrays.numpy_ import numpy_dtype
from numbadnn.gpu import devices
from numbadnn.measuring.data import buffer
from numbadnn.ops.rnn_block import Reserve
from numbadnn.problems.dropout import DropoutProblem
from numbadnn.validate import html, report, reserve
from numbadnn.validate.check import Row, Subject, backends_of, check_all
from numbadnn.validate.documents import document
from numbadnn.validate.host import is_array, on_host
from numbadnn.validate.oracle import Trial


@dataclasses.dataclass(repr=False)
class Check:
    """What ``check`` found: ``ok``, ``rows``, and the same as text (shown by itself), JSON or a page.

    A row has ``impl``, ``status`` (ok, mismatch, refused, error, ...), ``reason``, ``worst`` (the largest error as a share of the
    bound) at index ``where``, ``ulp``, ``same_bits`` of ``runs``, ``time_us`` and ``problem``, the line that replays it.
    """

    rows: list[Row] = dataclasses.field(default_factory=list)
    seconds: float = 0.0
    asked: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether something ran, and nothing that ran is outside its bound or failed."""
        return report.exit_status(self.rows) == report.OK

    def table(self) -> str:
        """What ``numbadnn validate`` prints: a line an implementation, what went wrong, and counts."""
        parts = (report.plain_table(self.rows), report.details(self.rows), report.summary(self.rows, self.seconds))
        return "\n\n".join(part for part in parts if part)

    __repr__ = table

    def json(self, path: Any) -> None:
        """Write all of it as a document, as ``numbadnn validate --json`` does; OSError where that cannot be."""
        document.write(str(path), self._document())

    def html(self, path: Any) -> None:
        """Write the document as a page that needs no network (``numbadnn[report]``); OSError where that cannot be."""
        html.write(str(path), self._document())

    def _document(self) -> dict[str, Any]:
        return document.make(
            "check",
            [row.as_dict() for row in self.rows],
            seconds=self.seconds,
            device=0 if devices.gpus() else -1,
            arguments=self.asked,
            status=report.exit_status(self.rows),
        )


def check(
    function: Callable[..., Any], *arrays: Any, backends: str | Iterable[str] | None = None, **parameters: Any
) -> Check:
    """Hold every implementation that admits ``function(*arrays, **parameters)`` against the float64 reference.

    ``function``: any of numbadnn's compute functions or a method of an ``RNNBlock``; ``arrays`` and ``parameters`` as it takes
    them, of any library. Every implementation of ``backends`` (None: cudnn, numba, cpu) runs three times on copies of the arrays,
    in memory of NaN; its result must lie within ``|result - reference| <= bound``, element by element, where the bound follows
    from the arithmetic that it declares and from the arrays. Without a GPU its backends are refused. No array is changed.

    Raises TypeError for another function and for ``backend``, ValueError for an unknown backend, and what the function raises.
    Source of the bounds: Higham 2002, chapters 3 and 4.

    >>> import numpy as np, numbadnn
    >>> x, w = np.ones((1, 2, 5, 5), "float32"), np.ones((3, 2, 3, 3), "float32")
    >>> found = numbadnn.check(numbadnn.conv2d, x, w, backends="cpu", border_mode="half")
    >>> found.ok, {row.status for row in found.rows} <= {"ok", "refused"}
    (True, True)
    """
    dispatch.check_computes(function)
    if "backend" in parameters:
        raise TypeError(f"backend: expected backends=..., those to check, got backend={parameters['backend']!r}")
    chosen, begin = backends_of(backends), time.perf_counter()
    name = getattr(function, "__name__", repr(function))
    found = Check(asked={"function": name, "backends": list(chosen)})

    def look(request: dispatch.Request, views: list[View], outs: list[View], words: tuple[int, ...]) -> Any:
        rows, trial = rows_of(name, request, views, outs, words, chosen)
        found.rows += rows
        if getattr(request.problem, "keeps", False):
            raise dispatch.Intercepted  # what an implementation keeps for its gradient no reference knows
        return _rounded(trial)

    try:
        function(*map(_given, arrays), **{k: _given(v) for k, v in parameters.items()}, backend=dispatch.Watch(look))
    except dispatch.Intercepted:
        pass
    found.seconds = time.perf_counter() - begin
    return found


def rows_of(
    name: str,
    request: dispatch.Request,
    views: list[View],
    outs: list[View],
    words: tuple[int, ...],
    chosen: tuple[str, ...],
) -> tuple[Iterable[Row], Trial]:
    """A row for each implementation of a call that a ``Watch`` was asked about, and the reference's results."""
    problem, old = _plain(request.problem, words), None
    inputs = tuple(view.address for view in views)[: len(problem.inputs)]
    if getattr(problem, "beta", 0.0):
        old = outs[0].address.copy(order="K")
    trial, options = Trial(problem, inputs, old), config.current()
    rules = lambda device: dispatch.policy_of(request, device, options)  # noqa: E731
    return check_all(Subject(name, problem, trial, integers=True), chosen, rules), trial


def _plain(problem: Any, words: tuple[int, ...]) -> Any:
    """The problem that the reference knows: without a reserve, with the seed of this call."""
    if isinstance(problem, DropoutProblem):
        return dataclasses.replace(problem, words=(words[0], words[1]))
    return reserve.alone(problem)


def _rounded(trial: Trial) -> Any:
    """The reference's results in the types and layouts that the call would give."""
    with np.errstate(all="ignore"):
        specs = zip(trial.problem.outputs, trial.values, strict=True)
        results = tuple(buffer(spec, value.astype(numpy_dtype(spec.dtype))).array for spec, value in specs)
    return results[0] if len(results) == 1 else results


def _given(value: Any) -> Any:
    """An argument with its arrays on the host; what is no array of data is the function's to judge."""
    if isinstance(value, Reserve):
        arrays = {name: _given(array) for name, array in value.arrays.items()}
        return value if value.spent else Reserve(value.block, arrays, value.lengths, value.made_by)
    if isinstance(value, tuple) and any(map(is_array, value)):
        return tuple(map(_given, value))
    if not is_array(value):
        return value
    try:
        return on_host(value)
    except (TypeError, ValueError, RuntimeError):  # the function says so, with the argument's name
        return value
