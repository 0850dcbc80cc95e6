"""A problem made ready to run in one thread (``Plan``), and the warm call: allocate, launch, return.

What a call does when its plan is known is here. The common case (new outputs on the GPU, the library's current stream) is a
closure with everything looked up beforehand, ``Plan.quick`` (``quick.py``); the rest goes through ``Plan.launch``.
"""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable
from contextlib import nullcontext
from itertools import zip_longest
from typing import Any

from numbadnn import config
from numbadnn.arrays import LIBRARIES, View, library_of
from numbadnn.call import operands, plan_arguments, select, verbose
from numbadnn.call.quick import quick
from numbadnn.call.seen import Seen
from numbadnn.errors import NotSupportedError, NumbaDNNError, Refusal, is_lack_of_memory
from numbadnn.gpu import driver
from numbadnn.host import log
from numbadnn.kept import machine
from numbadnn.problem import Policy, Spec, channels_last_strides, contiguous_strides, is_dense
from numbadnn.registry import Executable, Impl


class _Thread(threading.local):
    def __init__(self) -> None:
        self.plans: dict[Any, Plan] = {}
        #: calls by which a framework finds its plans sooner; forgotten with them
        self.ready: dict[Any, Any] = {}
        self.last: list[Plan | None] = [None]  # a list, so that plans of the thread can hold it
        self.token = object()  # of this thread alone; a thread's number is given to the next one
        self.misses = 0


#: this thread's plans and last call
thread = _Thread()


def _last_call() -> str:
    plan = thread.last[0]
    return f"{plan.impl.name} on {plan.problem}" if plan else ""


driver.blame = _last_call


class Plan:
    """One problem ready to run in this thread: ``plan(*arrays, out=None, stream=None, workspace=None)``.

    The arrays must have the shapes, strides, dtypes, device and 16-byte alignment it was made for, else ValueError.
    Holds no array; words (a seed) are those of the call it was made by. ``problem``, ``impl``, ``workspace_bytes`` and
    ``facts`` say what it is.
    """

    __slots__ = (
        "_allocate",
        "_checks",
        "_finish",
        "_library",
        "_outside",
        "_ranged",
        "_run",
        "_smaller",
        "_thread",
        "_verbose",
        "careful",
        "careful_out",
        "choice",
        "device",
        "executable",
        "made_for",
        "outputs",
        "policy",
        "problem",
        "quick",
        "replan",
        "reversed",
        "shared",
        "signatures",
        "words",
        "workspace_bytes",
    )

    def __init__(
        self,
        problem: Any,
        policy: Policy,
        choice: select.Choice,
        executable: Executable,
        views: list[View],
        seen: Seen | None = None,
    ) -> None:
        self.problem, self.policy, self.choice, self.executable = problem, policy, choice, executable
        self.device, self.workspace_bytes = policy.device, executable.workspace_bytes
        options = config.current()
        self._verbose, self._ranged = options.verbose, options.nvtx
        self._run = executable.run
        if self._verbose in ("exec", "all"):
            self._run = verbose.timed(executable, self._describe, policy.device)
        if self._ranged:
            from numbadnn.gpu import nvtx

            self._run = nvtx.ranged(self._run, f"numbadnn {choice.impl.name} {problem}")
        #: makes the Plan of the same problem with less workspace; set where the dispatcher can
        self.replan: Callable[[int], Plan] | None = None
        self._smaller: Plan | None = None
        self._library = views[0].library
        #: whether arrays are there whose library does not work in the order of the stream that this runs on
        self._outside = self.device >= 0 and any(v.library is not self._library or v.library.outside for v in views)
        #: library, device and spec of each array
        self.made_for = tuple((v.library, v.device, v.spec()) for v in views)
        #: the outputs as the caller has them
        self.outputs: tuple[Spec, ...] = seen.made if seen else problem.outputs
        #: the inputs that are written to in place, as the outputs behind these
        self.shared = seen.shared if seen else ()
        #: None where no new array has the strides of the ``out`` that it was made with
        self._allocate: tuple[Callable[[], Any], ...] | None = None
        if all(map(is_dense, self.outputs)):
            self._allocate = tuple(self._library.allocator(s, policy.device) for s in self.outputs)
        self._finish = self._library.finish
        self._thread = thread.token
        self.signatures: tuple[Any, ...] = ()
        self.words: tuple[int, ...] = ()
        #: whether the function it was made by takes its arrays the other way round than its problem
        self.reversed = False
        self._checks = operands.overlap_checker(problem, views)
        #: arrays that are not packed are looked at again by their library in each call
        self.careful = any(v.library.check and v.strides not in _packed(v.shape) for v in views)
        self.careful_out = any(s.strides not in _packed(s.shape) for s in self.outputs)
        self.quick = None if self.careful or self._outside else quick(self, thread.last)

    @property
    def impl(self) -> Impl:
        return self.choice.impl

    @property
    def facts(self) -> dict[str, Any]:
        """Engine or configuration, and every copy that is paid."""
        return self.executable.facts

    def launch(
        self,
        arrays: tuple[Any, ...],
        addresses: tuple[Any, ...],
        targets: tuple[Any, ...],
        out: Any,
        stream: Any,
        words: tuple[int, ...] = (),
        workspace: int = 0,
        ordered: bool = False,
    ) -> Any:
        """The warm call: allocate, launch, return. ``addresses`` are the inputs', ``targets`` those of ``out``.

        ``ordered``: the library's current stream already waits for the data, and is waited for afterwards.
        """
        library = self._library
        if not ordered and (stream is not None or self._outside or (out is not None and self._elsewhere(out))):
            return self._launch_on(stream, arrays, addresses, targets, out, words, workspace)
        if out is None:
            assert self._allocate is not None  # asked by whoever calls without ``out``
            results = tuple([make() for make in self._allocate])
            targets = tuple([library.address(r) for r in results])
            if self.shared:
                targets += tuple([addresses[i] for i in self.shared])
        else:
            results = out if type(out) is tuple else (out,)
            self._checks(addresses, targets)
            for result in results:
                written = LIBRARIES[type(result)].written
                if written is not None:
                    written(result)
        if self.device < 0:
            self._run((*addresses, *words), targets, None, None)
        else:
            raw, owner = library.current_stream(self.device), None
            if self.workspace_bytes and not workspace:
                try:
                    owner, workspace = library.scratch(self.workspace_bytes, self.device, raw)
                except Exception as error:
                    results = ()  # new ones go back first: the next plan makes its own
                    return self.smaller(error).launch(arrays, addresses, targets, out, None, words, 0, ordered)
            self._run((*addresses, *words), targets, workspace, raw)
            del owner  # given back in the order of the stream, after what was just enqueued
        thread.last[0] = self
        if self._verbose in ("dispatch", "all"):
            verbose.say(f"numbadnn: {self.choice.impl.name} {self.problem} ({self.choice.decided_by})")
        if self._finish is not None and out is None:
            results = self._finish(results, arrays)
        return results[0] if len(results) == 1 else results

    def _launch_on(
        self,
        stream: Any,
        arrays: tuple[Any, ...],
        addresses: tuple[Any, ...],
        targets: tuple[Any, ...],
        out: Any,
        words: tuple[int, ...],
        workspace: int,
    ) -> Any:
        """Run on the caller's stream, or where arrays of several libraries meet: wait there for the data of each, and have
        each library wait, or keep its memory, until this is done."""
        if self.device < 0:
            raise ValueError(f"stream: expected None for arrays on the CPU, got {stream!r}")
        from numbadnn.gpu import streams
        from numbadnn.gpu.context import ensure_context

        device, library = self.device, self._library
        current = library.current_stream(device)
        raw = current if stream is None else streams.handle(stream)
        outs = () if out is None else out if type(out) is tuple else (out,)
        pairs = [*zip_longest(arrays, addresses), *zip(outs, targets, strict=True)]  # a workspace has no address
        taking_part: dict[Any, list[tuple[Any, Any]]] = {library: []}
        for array, address in pairs:
            taking_part.setdefault(library_of(array), []).append((array, address))
        if raw == current and len(taking_part) == 1 and not library.outside:
            return self.launch(arrays, addresses, targets, out, None, words, workspace, True)
        streams_of = {each: each.current_stream(device) for each in taking_part}
        plain = tuple(map(int, addresses))
        with ensure_context(device):
            capturing = streams.is_capturing(raw)  # there an event of a stream outside the capture would spoil it
            if not capturing:
                for working in streams_of.values():
                    streams.wait(raw, working, device)
            with nullcontext() if raw == current else library.allocating_on(raw, device):
                result = self.launch(arrays, plain, tuple(map(int, targets)), out, None, words, workspace, True)
            for each, theirs in taking_part.items():
                if capturing and each.outside:
                    streams.keep(theirs)
                elif capturing:
                    continue
                elif each.outside or streams_of[each] != raw:
                    if stream is None:  # nobody asked for another stream: all is as if each had worked on its own
                        streams.wait(streams_of[each], raw, device)
                    if stream is not None or each.outside:
                        each.record(theirs, raw, device)
        return result

    def _elsewhere(self, out: Any) -> bool:
        """Whether destinations on a GPU are another library's than the inputs, or of one that works elsewhere."""
        outs = out if type(out) is tuple else (out,)
        return self.device >= 0 and any(
            LIBRARIES[type(o)] is not self._library or LIBRARIES[type(o)].outside for o in outs
        )

    def __call__(self, *arrays: Any, out: Any = None, stream: Any = None, workspace: Any = None) -> Any:
        if thread.token is not self._thread:
            raise NumbaDNNError("this Plan belongs to the thread that made it; make one in each thread")
        outs = () if out is None else out if isinstance(out, tuple) else (out,)
        n = len(self.problem.inputs)
        if len(arrays) != n:
            raise TypeError(f"expected {n} arrays, as this Plan was made with, got {len(arrays)}")
        beta: Any = getattr(self.problem, "beta", 0)
        if out is None and beta:
            raise ValueError(f"out: expected an array, to which beta={beta:g} is applied, got None")
        if out is None and self._allocate is None:
            specs = " ".join(map(str, self.outputs))
            raise ValueError(f"out: expected an array with the strides that this Plan was made for, {specs}, got None")
        if out is not None and not outs:
            raise ValueError("out: expected an array or a tuple of them, got ()")
        if self.reversed:
            arrays = arrays[::-1]
        probed = plan_arguments.probed(self, arrays, outs)
        addresses, space = tuple(address for address, _ in probed), 0
        if workspace is not None:
            space = plan_arguments.workspace_address(workspace, self.workspace_bytes, self.device)
            if self.device >= 0:
                known = (*(spec for _, _, spec in self.made_for), *(self.outputs if outs else ()))
                plan_arguments.check_apart(space, self.workspace_bytes, known, addresses)
            arrays = (*arrays, workspace)  # in use as long as they are
            if (written := library_of(workspace).written) is not None:
                written(workspace)
        return self.launch(arrays, addresses[:n], addresses[n:], out, stream, self.words, space)

    def smaller(self, error: Exception) -> Plan:
        """The Plan to use where there is no memory for this one's workspace; ``error`` itself if it is another, or none is.

        It is made once and says in ``decided_by`` what did not fit; this Plan is tried first again by the next call.
        """
        if not is_lack_of_memory(error) or self.replan is None:
            raise error
        if self._smaller is None:
            try:
                found = self.replan(self.workspace_bytes - 1)
            except NotSupportedError:
                raise error from None
            log.note("info", "%s runs on %s: no memory for %s", self.problem.op, found.impl.name, self)
            if found.workspace_bytes >= self.workspace_bytes:  # a recurrent layer has one way alone
                raise error
            why = f"{self.impl.name} needs a workspace of {self.workspace_bytes} bytes, out of memory"
            found.choice = dataclasses.replace(
                found.choice,
                decided_by=f"{found.choice.decided_by}; {why}",
                refusals=(*found.choice.refusals, Refusal(self.impl.backend, self.impl.name, why)),
            )
            self._smaller = found
        return self._smaller

    def _again(self, words: tuple[Any, ...]) -> Any:
        """The warm call of ``quick``'s arguments: addresses, then words."""
        n = len(self.problem.inputs)
        return self.quick(*words) if self.quick else self.launch((), words[:n], (), None, None, words[n:])

    def _describe(self, spent: str) -> str:
        """A line of ``verbose=exec``."""
        e, c = self.executable, self.choice
        facts = {"impl": c.impl.name, "backend": c.impl.backend, "device": self.device, "time_us": spent}
        more = {"workspace": e.workspace_bytes, "arithmetic": e.arithmetic, "determinism": e.determinism}
        engine = {"config": json.dumps(machine.configuration(e))} if c.impl.space or c.impl.restore else {}
        return verbose.line({**facts, **more, **engine, "decided_by": c.decided_by, "case": self.problem})

    def __repr__(self) -> str:
        """What a user asks of it: operation, arrays and parameters, who computes it, how, and what it needs."""
        e = self.executable
        operation, _, rest = str(self.problem).partition(" ")
        where = operands.place(self.device)
        return (
            f"<Plan of {operation} by {self.impl.name} on {where}: {rest}; arithmetic {e.arithmetic}, determinism "
            f"{e.determinism}, workspace {self.workspace_bytes} bytes>"
        )

    def __copy__(self) -> Plan:
        """The same in the same thread, whose ``choice`` may be told otherwise."""
        found = object.__new__(Plan)
        for name in Plan.__slots__:
            setattr(found, name, getattr(self, name))
        return found

    def __reduce__(self) -> Any:
        raise TypeError(
            "a Plan belongs to the thread and the device that made it and cannot be pickled: make one "
            "there with numbadnn.plan, or replay the choices with the option plan_file"
        )


def _packed(shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """The strides of a packed array of this shape, C order and channels last."""
    return contiguous_strides(shape), channels_last_strides(shape) if len(shape) > 2 else ()
