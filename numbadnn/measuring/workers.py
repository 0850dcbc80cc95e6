"""Processes that do one task after the other beside each other, and are replaced when they die or spoil their CUDA context.

A kernel that reads beyond its memory ends the context of its whole process, and an engine that crashes the process itself: what
was measured before must not be lost, nor what comes after. ``each`` gives tasks to processes as they are free; a task that
ended its process comes back with what it was at, and is tried again in a fresh one if ``again`` makes another task of it.
"""

from __future__ import annotations

import multiprocessing
import operator
import queue
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

Note = Callable[[str], None]
Work = Callable[[Any, Note], Any]  # (task, note) -> result; ``note`` says what it is at


class Ended(NamedTuple):
    """In place of a result: the process died, or its CUDA context is spoilt; ``at`` is what it noted last."""

    why: str
    at: str


def each(
    tasks: Iterable[Any],
    work: Work,
    jobs: int,
    over: Callable[[], bool] = lambda: False,
    again: Callable[[Any, Ended], Any] = lambda task, ended: None,
) -> Iterator[tuple[Any, Any]]:
    """(task, result) as they are done, by ``jobs`` processes; no task is begun once ``over()``.

    ``work`` is a module's function. A result is Ended where the task ended its process and ``again`` gave None. Whoever stops
    listening, by Ctrl-C or an error of its own, ends the processes and what they are at.
    """
    todo, taking, results = iter(tasks), threading.Lock(), queue.Queue[Any]()
    stop = threading.Event()

    def follow(process: _Process) -> None:
        try:
            while True:
                with taking:
                    task = None if stop.is_set() or over() else next(todo, None)
                if task is None:
                    return
                result = process.do(task)
                while isinstance(result, Ended) and not stop.is_set() and (another := again(task, result)) is not None:
                    task = another
                    result = process.do(task)
                results.put((task, result))
        finally:
            process.end()
            results.put(None)

    processes = [_Process(work) for _ in range(min(jobs, operator.length_hint(tasks, jobs)))]
    threads = [threading.Thread(target=follow, args=(process,)) for process in processes]
    for thread in threads:
        thread.start()
    working = len(threads)
    try:
        while working:
            found = results.get()
            if found is None:
                working -= 1
            else:
                yield found
    finally:
        stop.set()
        for thread, process in zip(threads, processes, strict=True):
            while thread.is_alive():  # it may just have started another process
                process.kill()
                thread.join(0.1)


class _Process:
    """A process that is started when it is first needed, and again after it ended."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.process: Any = None
        self.pipe: Any = None
        self.spawn = multiprocessing.get_context("spawn")  # a forked child could not use CUDA

    def do(self, task: Any) -> Any:
        if self.process is not None and not self.process.is_alive():  # it died since its last task
            self.end()
        if self.process is None:
            self.pipe, theirs = self.spawn.Pipe()
            self.process = self.spawn.Process(target=_serve, args=(self.work, theirs), daemon=True)
            self.process.start()
            theirs.close()
        at, given = "", False
        while True:
            try:
                if not given:
                    self.pipe.send(task)
                    given = True
                what, value = self.pipe.recv()
            except (EOFError, OSError):
                self.process.join()
                status, self.process = self.process.exitcode, None
                return Ended(f"its process ended with status {status}", at)
            if what == "done":
                return value
            if what == "spoilt":
                self.end()
                return Ended(f"it spoilt the CUDA context: {value}", at)
            at = value

    def kill(self) -> None:
        """End it from another thread than the one that waits for it, which then finds it ended."""
        process = self.process
        if process is not None and process.pid is not None:
            process.kill()

    def end(self) -> None:
        if self.process is not None:
            self.pipe.close()
            self.process.join(5)
            if self.process.is_alive():
                self.process.kill()
            self.process = None


def _serve(work: Work, pipe: Any) -> None:
    """In the process: tasks in; notes, results and the state of the context out, until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all; the parent ends this one
    while True:
        try:
            task = pipe.recv()
        except EOFError:
            return
        result = work(task, lambda text: pipe.send(("at", text)))
        if trouble := spoilt():
            pipe.send(("spoilt", trouble))
            return
        pipe.send(("done", result))


def spoilt() -> str:
    """What is wrong with this process's CUDA context for good ("" = nothing, or CUDA was not used)."""
    import sys

    if "cuda.bindings.driver" not in sys.modules:
        return ""
    pass
    from numbadnn.errors import BackendUnavailableError, NumbaDNNError
    from numbadnn.gpu import bindings
    from numbadnn.gpu.context import ensure_context

    try:
        with ensure_context(0):
            bindings.check(bindings.driver().cuCtxSynchronize())
    except BackendUnavailableError:
        return ""  # imported where there is no driver
    except NumbaDNNError as error:
        return str(error)
    return ""
