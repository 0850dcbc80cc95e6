"""What every test stands on: clean options, GPU tests that skip themselves, required packages, the record of a GPU run.

- Tests marked ``gpu`` are skipped where no GPU is visible and run where one is; ``-m gpu`` runs them alone.
- With NUMBADNN_REQUIRE_CUDNN, _PTXAS, _TORCH, _JAX, _DASK, _MYPY or _CHROMIUM set, a skip for lack of it is a failure (CI).
- Processes of pytest-xdist share several GPUs out: each sees one.
- ``-m gpu`` imports only files that have such tests. With ``--dist worksteal`` tests that stand together, which need the same
  kernels and the same libraries, run in one process (``in_shares``).
- A passing run of *all* GPU tests writes tests/gpu_verified.json (NUMBADNN_GPU_VERIFIED: elsewhere): gpu_verified.py.
"""

import gc
import itertools
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import gpu_verified
import hypothesis
import pytest

# Programs that tests start in processes of their own: imported here, with a fake driver, they would spoil this one.
collect_ignore_glob = ["support/simulated_*.py"]

# Options of the caller's shell must not change what is tested; these do not.
KEPT = (
    "NUMBADNN_REQUIRE_",
    "NUMBADNN_COMMIT",
    "NUMBADNN_GPU_VERIFIED",
    "NUMBADNN_CUDNN_LIBRARY",
    "NUMBADNN_CACHE_DIR",
    "NUMBADNN_SPECIFICATION",
)
for _name in [n for n in os.environ if n.startswith("NUMBADNN_") and not n.startswith(KEPT)]:
    del os.environ[_name]

# Processes of pytest-xdist share the cores out. Where each has as many threads for NumPy's products as there are cores, they
# actively wait for one another: a step of an LSTM takes ten times as long and more. Set before NumPy is imported.
if "PYTEST_XDIST_WORKER_COUNT" in os.environ:
    _cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    _share = _cores // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    os.environ.setdefault("OPENBLAS_NUM_THREADS", str(max(_share, 1)))

# JAX would take three quarters of the GPU's memory for each process of the tests
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

hypothesis.settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
if os.environ.get("CI"):
    hypothesis.settings.load_profile("ci")

#: variable -> words, one of which stands in the reason of a skip for lack of the thing
REQUIRED = {
    "NUMBADNN_REQUIRE_CUDNN": ("cudnn",),
    "NUMBADNN_REQUIRE_PTXAS": ("ptxas", "nvvm", "numba-cuda", "numba_cuda", "numba.cuda", "cuda.bindings"),
    "NUMBADNN_REQUIRE_TORCH": ("torch",),
    "NUMBADNN_REQUIRE_JAX": ("jax",),
    "NUMBADNN_REQUIRE_ONNX": ("onnx", "silero", "rapidocr"),
    "NUMBADNN_REQUIRE_SAFETENSORS": ("safetensors",),
    "NUMBADNN_REQUIRE_DASK": ("dask", "distributed", "zarr"),
    "NUMBADNN_REQUIRE_CHROMIUM": ("chromium", "selenium", "jinja2", "matplotlib"),
    "NUMBADNN_REQUIRE_MYPY": ("mypy",),
}
NO_GPU = "no NVIDIA GPU is visible"


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """pytest-xdist, in the process that starts the others: how many GPUs there are, without CUDA's start in each."""
    node.workerinput["gpus"] = gpu_verified.gpu_count()
    options = node.config.option
    node.workerinput["shares"] = options.dist == "worksteal" and options.markexpr == "gpu"


def pytest_configure(config: pytest.Config) -> None:
    given = getattr(config, "workerinput", {})
    if given.get("gpus", 0) > 1:
        listed = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(given["gpus"])))
        os.environ["TESTS_GPUS"] = listed  # for test_two_gpus.py
        number = int(given["workerid"].removeprefix("gw"))
        os.environ["CUDA_VISIBLE_DEVICES"] = listed.split(",")[number % given["gpus"]]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With ``-m gpu`` a file without the mark has nothing to give; with all of them each process looks half as long again."""
    if config.option.markexpr == "gpu" and collection_path.suffix == ".py":
        return "mark.gpu" not in collection_path.read_text(encoding="utf-8") or None
    return None


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, Any, Any]:
    """A million objects are made that stay to the end: looking for garbage among them takes a third of the time, and later
    half a second whenever a test, or Numba in its compilations, has all of them looked through.
    """
    thresholds = gc.get_threshold()
    gc.set_threshold(10**9)  # not disabled: what is imported here may keep for good that it was
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(*thresholds)


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None, Any, Any]:
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    if gpu_items and not gpu_verified.gpu_count():
        for item in gpu_items:
            item.add_marker(pytest.mark.skip(reason=NO_GPU))
    # the slowest first, so that no process is left alone with one in the end
    items.sort(key=_seconds, reverse=True)
    result = yield  # those that were not asked for go
    if getattr(config, "workerinput", {}).get("shares"):
        items[:] = in_shares(items, int(os.environ["PYTEST_XDIST_WORKER_COUNT"]))
    return result


def in_shares(items: list[pytest.Item], processes: int) -> list[pytest.Item]:
    """The same tests, so that each process begins with slow ones: it gets the next of as many equal parts of the list.

    The slow tests of one function go on in few processes, each some that follow each other, to whichever has least to do. When
    a process is done, it takes over from the end of the longest part, where the quick ones are.
    """
    slow, quick = [i for i in items if _seconds(i)], [i for i in items if not _seconds(i)]
    runs: list[list[pytest.Item]] = []
    for _, found in itertools.groupby(slow, lambda item: item.nodeid.partition("[")[0]):
        tests = list(found)
        length = -(-len(tests) // processes)
        runs += [tests[i : i + length] for i in range(0, len(tests), length)]
    shares: list[list[pytest.Item]] = [[] for _ in range(processes)]
    for run in sorted(runs, key=lambda run: sum(map(_seconds, run)), reverse=True):
        min(shares, key=lambda share: sum(map(_seconds, share))).extend(run)
    left, rest = len(items), iter(quick)
    for number, share in enumerate(shares):
        size = left // (processes - number)  # as pytest-xdist cuts
        share.extend(itertools.islice(rest, max(0, size - len(share))))
        left -= size
    return [*itertools.chain.from_iterable(shares), *rest]


def _seconds(item: pytest.Item) -> float:
    """Roughly what a test takes: 5 if it is only marked as slow."""
    marker = item.get_closest_marker("slow")
    return float(marker.args[0] if marker.args else 5) if marker else 0.0


def _lacking(report: Any) -> str:
    """Why this skip is not allowed here, "" if it is."""
    if not report.skipped or hasattr(report, "wasxfail") or not isinstance(report.longrepr, tuple):
        return ""
    reason = report.longrepr[2]
    if NO_GPU in reason:
        return ""
    for variable, words in REQUIRED.items():
        if os.environ.get(variable) and any(word in reason.lower() for word in words):
            return f"{variable} is set, but this was skipped: {reason}"
    return ""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    report = yield
    if why := _lacking(report):
        report.outcome, report.longrepr = "failed", why
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    report = yield
    if why := _lacking(report):
        report.outcome, report.longrepr = "failed", why
    return report


# ---- the record of a GPU run -----------------------------------------------------------------------------------------

_outcomes: dict[str, str] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """The worst outcome of each GPU test's phases."""
    if "gpu" in report.keywords:
        worst = {"passed": 0, "skipped": 1, "failed": 2}
        before = _outcomes.get(report.nodeid, "passed")
        _outcomes[report.nodeid] = max(before, report.outcome, key=worst.__getitem__)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workerinput"):  # a worker of pytest-xdist: the controller sees every report
        return
    counts = {outcome: list(_outcomes.values()).count(outcome) for outcome in ("passed", "failed", "skipped")}
    complete = gpu_verified.is_complete(session.config) and session.testsfailed == 0 and session.shouldstop is False
    if complete and counts["passed"] and not counts["failed"] and gpu_verified.gpu_count():
        path = gpu_verified.write(counts)
        if reporter := session.config.pluginmanager.get_plugin("terminalreporter"):
            reporter.write_line(f"\nall {counts['passed']} GPU tests passed: wrote {path}")
