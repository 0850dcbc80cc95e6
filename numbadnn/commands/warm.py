"""``numbadnn warm``: what first calls need, compiled ahead and kept where those calls look for it.

For the CPU every small case of the operations runs once, and each kernel that it calls is compiled for one thread and for
several: a machine with other cores finds both. For a GPU what would run is planned, which compiles its kernels, and a small
case of each operation runs. Machine code is of this machine's processor, and of the versions installed here; another compiles
anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from numbadnn import config
from numbadnn.call import info, select
from numbadnn.call.candidates import Candidates
from numbadnn.call.choose import choose
from numbadnn.cases import Case, find
from numbadnn.cpu.lang.parallel import both_builds
from numbadnn.errors import NotSupportedError, NumbaDNNError
from numbadnn.gpu import devices
from numbadnn.host import compiling
from numbadnn.measuring.stage import stage
from numbadnn.validate import report

OK, NOTHING_RAN = 0, 3
CPU, GPU = -1, 0


def run(names: list[str], dtypes: list[str], gpu: bool) -> int:
    """Compile, print, and give the exit status; ValueError means wrong usage."""
    begin = time.perf_counter()
    kept = info.kept()
    places = ("cpu", "cuda") if gpu else ("cpu",)
    if why := next((kept[place] for place in places if kept[place].startswith("nowhere")), ""):
        print(f"compiled kernels are kept {why}")
        return NOTHING_RAN
    if gpu and not devices.gpus():
        print(f"--gpu: {devices.no_gpu_reason()}")
        return NOTHING_RAN
    tasks = [(case, CPU) for case in _cases(names, "contract", dtypes)]
    if gpu:
        tasks += [(case, GPU) for tag in ("bench", "contract") for case in _cases(names, tag, dtypes)]
    if not tasks:
        raise ValueError(f"expected operations that have cases of {' or '.join(dtypes)}, got {' '.join(names)}")
    failed = list(_warmed(tasks))
    print(*failed, sep="\n", end="\n" if failed else "")
    seconds = time.perf_counter() - begin
    print(f"{compiling.compiled} kernels compiled in {seconds:.0f} s, {compiling.found} were there already")
    print(*(f"kept in {kept[place]}" for place in places), sep="\n")
    return OK


def _cases(names: list[str], tag: str, dtypes: list[str]) -> list[Case]:
    """What is named, of these types; a problem line is its own."""
    return [case for case in find(names, tag) if case.problem(small=True).inputs[0].dtype in dtypes]


def _warmed(tasks: list[tuple[Case, int]]) -> Iterator[str]:
    """Compile what each case needs; a line for each that cannot be computed for another reason than that it is not supported."""
    with report.progress(len(tasks)) as advance, both_builds():
        for done, (case, device) in enumerate(tasks, 1):
            advance(f"{case.name}{' on the GPU' if device == GPU else ''}", done)
            try:
                with compiling.operation(case.op):
                    _on(device)(case)
            except NotSupportedError:
                continue
            except (NumbaDNNError, MemoryError) as error:  # which must not end the others
                yield f"{case.name}: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def _on(device: int) -> Callable[[Case], None]:
    return _warm_gpu if device == GPU else _warm_cpu


def _warm_cpu(case: Case) -> None:
    problem, policy = case.problem(small=True), select.policy_in_force(case.op, CPU)
    with stage(problem, policy) as place:
        place.results(_chosen(problem, policy), "random")


def _warm_gpu(case: Case) -> None:
    """Plan it at its size; run it where it is small, which makes cuDNN's shims too."""
    from numbadnn.gpu.context import ensure_context
    from numbadnn.kernels.build.launch import set_cache_folder

    problem, policy = case.problem(), select.policy_in_force(case.op, GPU)
    set_cache_folder(config.current().cache_dir or None)
    with ensure_context(GPU):
        executable = _chosen(problem, policy)
        if "contract" in case.tags:
            with stage(problem, policy) as place:
                place.results(executable, "random")


def _chosen(problem: Any, policy: Any) -> Any:
    """What a call would run."""
    choice = choose(Candidates(problem, policy, config.current().replace({"tune": "cached"}, {})))
    return choice.impl.plan(problem, policy, choice.config)
