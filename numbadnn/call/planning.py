"""From a validated problem to a Plan: the choice, shared by the process, then the implementation made ready in one thread.

``make_plan`` asks ``choose`` for an implementation, plans it under the device's context and wraps it with whatever casts the
call needs. A choice, a refusal too, is remembered for the process; a Plan with its buffers and handles belongs to a thread.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from numbadnn import config
from numbadnn.arrays import View
from numbadnn.call import fallback, operands, remembered, select
from numbadnn.call.candidates import Candidates
from numbadnn.call.choose import choose
from numbadnn.call.launch import Plan, thread
from numbadnn.call.seen import Seen, seen_views, through
from numbadnn.errors import CaptureError, NotSupportedError, NumbaDNNError
from numbadnn.host.bounded import MAX_CHOICES, MAX_PLANS
from numbadnn.host.undisturbed import imported
from numbadnn.kept import choices, errata, plan_file
from numbadnn.problem import Policy
from numbadnn.registry import Executable, beyond_limit

#: a problem -> [its choice or refusal, when it was last asked for]. No lock: a problem is hashed and compared by Python code, in
#: which another call may come, of a signal's handler or a ``__del__``; each step is one operation of a dictionary instead
_choices: dict[Any, list[Any]] = {}
_turn = itertools.count()
_left_behind: list[Any] = []  # by the parent of a forked process: plans, and what holds some
_cuda_used = False
_forked_after_cuda = False


def check_compiler() -> None:
    """NumbaDNNError where Numba was told not to compile."""
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        raise NumbaDNNError("NUMBA_DISABLE_JIT is set, but everything here is compiled by Numba; unset it")


def make_plan(
    problem: Any,
    policy: Policy,
    options: config.Options,
    backend: str | None,
    views: list[View],
    stream: Any = None,
    seen: Seen | None = None,
) -> Plan:
    """Choose an implementation for a validated problem and make it ready in this thread.

    ``seen``: how the problem sees these arrays, where not in their own axes.
    """
    thread.misses += 1
    check_compiler()
    if policy.device < 0:
        choice, executable = _ready(problem, policy, options, backend, views, seen)
        return Plan(problem, policy, choice, executable, views, seen)
    global _cuda_used
    from numbadnn.gpu import driver as _driver

    if _forked_after_cuda:
        raise NumbaDNNError(_driver.SPAWN)
    _cuda_used = True
    from numbadnn.gpu import streams
    from numbadnn.gpu.context import ensure_context
    from numbadnn.kernels.build.launch import set_cache_folder

    set_cache_folder(options.cache_dir or None)
    with ensure_context(policy.device):
        raw = streams.handle(stream) if stream is not None else views[0].library.current_stream(policy.device) or 0
        if streams.is_capturing(raw):
            raise CaptureError("this problem was never run before: call it once before capturing a CUDA graph")
        choice, executable = _ready(problem, policy, options, backend, views, seen)
        plan = Plan(problem, policy, choice, executable, views, seen)

    def replan(workspace_limit: int) -> Plan:
        copied = operands.cast_bytes(problem, views)  # which no choice can save
        less = dataclasses.replace(policy, workspace_limit=max(0, workspace_limit - copied))
        return make_plan(problem, less, options, backend, views, stream, seen)

    plan.replan = replan
    return plan


def _ready(
    problem: Any, policy: Policy, options: config.Options, backend: str | None, views: list[View], seen: Seen | None
) -> tuple[select.Choice, Executable]:
    """The choice for a problem and its executable on the caller's arrays, with whatever casts they need."""
    choice, executable = _chosen(problem, policy, options, backend)
    executable = operands.with_casts(
        executable, problem, seen_views(views, seen.inputs) if seen else views, policy.device
    )
    return choice, through(executable, seen, policy.device) if seen else executable


def _chosen(
    problem: Any, policy: Policy, options: config.Options, backend: str | None
) -> tuple[select.Choice, Executable]:
    """The choice for a problem and its executable; what a file remembers and cannot be had any more is chosen anew.

    So is what turns out to need more memory of its own than there may be.
    """
    without: dict[str, str] = {}
    while True:
        choice = _choice(problem, policy, options, backend, without=without)
        if choice.impl is operands.EMPTY:
            return choice, operands.plan_empty(problem, policy)
        anew = functools.partial(_choice, problem, policy, options, backend, from_files=False, without=without)
        choice, executable = remembered.followed(choice, problem, policy, options, anew)
        if not (reason := beyond_limit(executable, policy)):
            break
        without = {**without, choice.impl.name: reason}
    select.note_erratum(choice.impl, problem, executable)
    if options.plan_file:
        key = plan_file.key_of(problem, policy, select.scope(options, backend))
        plan_file.record(options.plan_file, key, choice, executable, policy.device)
    return choice, executable


def _choice(
    problem: Any,
    policy: Policy,
    options: config.Options,
    backend: str | None,
    from_files: bool = True,
    without: Mapping[str, str] | None = None,
) -> select.Choice:
    """The process-wide choice for a problem; a refusal is remembered like a choice, and what was chosen ``without`` others."""
    if operands.is_empty(problem):
        if backend is not None:
            select.check_named(backend, policy)
        return select.Choice(operands.EMPTY, "empty")
    key = (problem, policy, options, backend)
    found = _choices.get(key) if from_files and not without else None
    if found is not None:
        known, found[1] = found[0], next(_turn)
    else:
        try:
            known = choose(Candidates(problem, policy, options, backend, without), from_files)
        except NotSupportedError as error:  # a new one: that has the frames of the call, and so its arrays
            known = NotSupportedError(str(error).splitlines()[0], error.candidates)
        _choices[key] = [known, next(_turn)]
        while len(_choices) > MAX_CHOICES:
            _choices.pop(min(list(_choices.items()), key=lambda item: item[1][1])[0], None)
    if isinstance(known, NotSupportedError):
        raise NotSupportedError(str(known).splitlines()[0], known.candidates)
    return known


class CacheInfo(NamedTuple):
    plans: int
    max_plans: int
    choices: int
    max_choices: int
    misses: int


def cache_info() -> CacheInfo:
    """Plans of this thread, choices of the process, their bounds, and this thread's misses."""
    return CacheInfo(len(thread.plans), MAX_PLANS, len(_choices), MAX_CHOICES, thread.misses)


def clear_caches() -> None:
    """Forget this thread's plans and the process's choices; the files of choices, plans and errata are read again."""
    thread.plans.clear()
    thread.ready.clear()
    thread.last[0] = None
    _choices.clear()
    fallback.SAID.clear()
    for module in (choices, plan_file, errata):
        module.forget()
    if streams := imported("numbadnn.gpu.streams"):
        streams.let_go()
    if named := imported("numbadnn.cudnn.algorithms"):
        named.forget()


def _after_fork() -> None:
    global _forked_after_cuda
    driver = imported("numbadnn.gpu.driver")  # planning alone initialises CUDA, and so does a fuller ``info``
    _forked_after_cuda = _cuda_used or bool(driver and driver.library.cache_info().currsize)
    for name in ("numbadnn.measuring.tune", "numbadnn.cudnn.lib"):  # another thread may have held its lock
        if module := imported(name):
            module.new_lock()
    if _cuda_used:  # they hold handles of the parent's CUDA context, which must not be destroyed here
        _left_behind.extend((*thread.plans.values(), *thread.ready.values()))
    thread.plans.clear()
    thread.ready.clear()


os.register_at_fork(after_in_child=_after_fork)
