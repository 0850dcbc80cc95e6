"""What the README's first example costs a new user: with no compiled kernel on disk (cold), and the next process (warm).

Each figure is a process of its own on one core: the seconds of processor time that it took, user and system, and those that
the clock showed; the least of some rounds, since others use the machine too. ``import`` is a process that imports numbadnn and no
more. Python's bytecode is there already, as after an installation. ``--beside COMMIT`` measures the same example on that commit,
round about round. ``python bench/bench_first_minute.py [--rounds N] [--beside COMMIT]``.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness import save, table

ROOT = Path(__file__).parents[1]
COLUMNS = ("tree", "run", "cpu_s", "wall_s")
#: the example, and how many kernels the process compiled, where the tree counts them
COUNT = """
import sys
counting = sys.modules.get("numbadnn.host.compiling")
print("compiled", counting.compiled if counting else -1)
"""


def example() -> str:
    """The first block of Python in the README."""
    found = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert found
    return found[1]


def process(code: str, tree: Path, cache: str) -> tuple[float, float, int]:
    """Seconds of processor time, of the clock, and the kernels compiled, of ``python -c code`` on one core."""
    environment = os.environ | {"PYTHONPATH": str(tree), "NUMBADNN_CACHE_DIR": cache}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    core = min(os.sched_getaffinity(0))
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", code + COUNT],
        env=environment,
        cwd=tree,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )
    wall, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return spent, wall, int(done.stdout.split()[-1])


@contextlib.contextmanager
def tree_of(commit: str) -> Iterator[Path]:
    """A worktree of a commit, for as long as it is measured."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "tree")
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--detach", "--quiet", str(tree), commit], check=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def rounds_of(trees: dict[str, Path], rounds: int) -> list[dict[str, Any]]:
    found: dict[tuple[str, str], list[tuple[float, float, int]]] = {}
    code = example()
    for tree in trees.values():
        subprocess.run([sys.executable, "-m", "compileall", "-q", str(tree / "numbadnn")], check=True)
    for _ in range(rounds):
        for name, tree in trees.items():
            with tempfile.TemporaryDirectory() as cache:
                Path(cache).chmod(0o700)
                for run, what in (("cold", code), ("warm", code), ("import", "import numbadnn")):
                    found.setdefault((name, run), []).append(process(what, tree, cache))
    return [
        {"tree": name, "run": run, "cpu_s": min(t[0] for t in times), "wall_s": min(t[1] for t in times)}
        | ({} if times[0][2] < 0 else {"compiled": times[0][2]})
        for (name, run), times in found.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--beside", metavar="COMMIT", help="measure this commit too")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one round")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        trees = {"this": ROOT}
        if options.beside:
            trees[options.beside] = stack.enter_context(tree_of(options.beside))
        rows = rounds_of(trees, 1 if options.quick else options.rounds)
    print(table(rows, (*COLUMNS, "compiled")))
    print("written to", save("first_minute", rows))


if __name__ == "__main__":
    main()
