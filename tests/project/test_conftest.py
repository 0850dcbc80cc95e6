"""The rules of conftest.py: what GPU runs are recorded, which skips are failures. Each in a pytest of its own."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from folders import SUPPORT, TESTS

SAMPLE = """
import pytest

@pytest.mark.gpu
def test_on_the_gpu():
    pass

@pytest.mark.gpu
def test_another():
    assert {passes}

def test_elsewhere():
    {elsewhere}
"""

FAKE_GPU = """
import gpu_verified
gpu_verified.gpu_count = lambda: {gpus}
gpu_verified.gpu_facts = lambda: {{"gpu": "a GPU", "driver": "1.2"}}
gpu_verified.versions = lambda: {{"numpy": "0"}}
"""


def run(tmp_path, *arguments, gpus=1, passes=True, elsewhere="pass", more="", **environment):
    """Run SAMPLE under copies of conftest.py and gpu_verified.py with a made-up GPU: (exit status, output, record).

    ``more`` is the text of another file of tests.
    """
    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "support").mkdir()
    (tests / "conftest.py").write_text((TESTS / "conftest.py").read_text() + FAKE_GPU.format(gpus=gpus))
    shutil.copy(SUPPORT / "gpu_verified.py", tests / "support")
    (tests / "test_sample.py").write_text(SAMPLE.format(passes=passes, elsewhere=elsewhere))
    (tests / "test_more.py").write_text(more)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = gpu\ntestpaths = tests\npythonpath = tests/support\n")
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("NUMBADNN_", "PYTEST_"))}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        cwd=tmp_path,
        env=clean | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    record = tests / "gpu_verified.json"
    return done.returncode, done.stdout + done.stderr, json.loads(record.read_text()) if record.exists() else None


@pytest.mark.parametrize("arguments", [(), ("-m", "gpu"), ("tests",), (".", "-m", "gpu")])
def test_a_full_passing_run_is_recorded(tmp_path, arguments):
    status, output, record = run(tmp_path, *arguments, NUMBADNN_COMMIT="0123abc-dirty")
    assert status == 0, output
    assert record is not None, output
    assert record["counts"] == {"passed": 2, "failed": 0, "skipped": 0}
    assert (record["commit"], record["dirty"], record["gpu"]) == ("0123abc", True, "a GPU")
    assert {"date", "driver", "versions"} <= record.keys()


@pytest.mark.parametrize(
    ("arguments", "options", "status"),
    [
        (("-k", "gpu"), {}, 0),
        (("tests/test_sample.py",), {}, 0),
        (("tests/test_sample.py::test_another",), {}, 0),
        (("-m", "not gpu"), {}, 0),
        (("-m", "gpu and not slow"), {}, 0),
        (("--deselect", "tests/test_sample.py::test_another"), {}, 0),
        (("--collect-only",), {}, 0),
        ((), {"passes": False}, 1),
        ((), {"elsewhere": "assert False"}, 1),
        ((), {"gpus": 0}, 0),
    ],
)
def test_anything_less_is_not(tmp_path, arguments, options, status):
    code, output, record = run(tmp_path, *arguments, **options)
    assert (code, record) == (status, None), output


def test_the_record_can_go_elsewhere_and_names_the_commit(tmp_path):
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@x", "-C", str(tmp_path)]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "empty"], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    elsewhere = tmp_path / "out" / "record.json"
    status, output, record = run(tmp_path, NUMBADNN_GPU_VERIFIED=str(elsewhere), NUMBADNN_COMMIT="wrong")
    assert (status, record) == (0, None), output
    written = json.loads(elsewhere.read_text())
    assert (written["commit"], written["dirty"]) == (head, True)  # the sample's own files are not committed


def test_without_a_gpu_its_tests_are_skipped_with_the_reason(tmp_path):
    status, output, _ = run(tmp_path, "-rs", gpus=0)
    assert status == 0
    assert "1 passed, 2 skipped" in output
    assert "no NVIDIA GPU is visible" in output


@pytest.mark.parametrize(
    ("variable", "statement"),
    [
        ("NUMBADNN_REQUIRE_CUDNN", "pytest.skip('cuDNN is not installed')"),
        ("NUMBADNN_REQUIRE_PTXAS", "pytest.skip('ptxas not found')"),
        ("NUMBADNN_REQUIRE_TORCH", "pytest.importorskip('torch_not_there')"),
    ],
)
def test_a_skip_for_lack_of_what_is_required_is_a_failure(tmp_path, variable, statement):
    status, output, _ = run(tmp_path, gpus=0, elsewhere=statement, **{variable: "1"})
    assert status == 1, output
    assert f"{variable} is set, but this was skipped" in output
    (tmp_path / "unset").mkdir()
    status, output, _ = run(tmp_path / "unset", gpus=0, elsewhere=statement)
    assert (status, "3 skipped" in output) == (0, True)


def test_a_whole_file_skipped_for_lack_of_what_is_required_is_an_error(tmp_path):
    statement = "pass\n\npytest.importorskip('torch_not_there')"
    status, output, _ = run(tmp_path, gpus=0, elsewhere=statement, NUMBADNN_REQUIRE_TORCH="1")
    assert status == 2, output
    assert "NUMBADNN_REQUIRE_TORCH is set" in output


def test_options_of_the_shell_do_not_reach_the_tests(tmp_path):
    statement = "import os; assert 'NUMBADNN_BACKEND' not in os.environ"
    status, output, _ = run(tmp_path, elsewhere=statement, NUMBADNN_BACKEND="cpu")
    assert status == 0, output


def test_processes_share_the_gpus_out(tmp_path):
    pytest.importorskip("xdist")
    sees = "import os, pathlib; pathlib.Path(os.environ['PYTEST_XDIST_WORKER']).write_text(os.environ['CUDA_VISIBLE_DEVICES'])"
    status, output, _ = run(
        tmp_path, "-n2", "--dist=each", gpus=2, elsewhere=sees, CUDA_VISIBLE_DEVICES="5,7", NUMBADNN_COMMIT="0"
    )
    assert status == 0, output
    assert {w: (tmp_path / w).read_text() for w in ("gw0", "gw1")} == {"gw0": "5", "gw1": "7"}


def test_for_a_gpu_only_files_that_have_its_tests_are_imported(tmp_path):
    broken = "raise AssertionError('imported')"
    status, output, record = run(tmp_path, "-m", "gpu", more=broken)
    assert status == 0 and record["counts"]["passed"] == 2, output
    (tmp_path / "all").mkdir()
    assert run(tmp_path / "all", more=broken)[0] == 2


MANY = r"""
import os, pathlib, time
import pytest

pytestmark = pytest.mark.gpu

def note(text):
    with open(os.environ["PYTEST_XDIST_WORKER"], "a") as file:
        file.write(text + "\n")

@pytest.mark.parametrize("n", range(40))
def test_quick(n):
    note(f"quick {n}")
    time.sleep(0.03)

@pytest.mark.slow(9)
@pytest.mark.parametrize("n", range(6))
def test_slow(n):
    note(f"slow {n}")
    time.sleep(0.05)

@pytest.mark.slow(30)
def test_slowest():
    note("slowest")
    time.sleep(0.1)
"""


def test_each_process_begins_with_slow_tests_and_keeps_together_what_stands_together(tmp_path):
    pytest.importorskip("xdist")
    status, output, _ = run(tmp_path, "-m", "gpu", "-n3", "--dist=worksteal", more=MANY)
    assert status == 0, output
    ran = [(tmp_path / f"gw{n}").read_text().splitlines() for n in range(3)]
    first = [[name for name in names if name.startswith("slow")] for names in ran]
    assert sorted(first) == [["slow 0", "slow 1", "slow 4", "slow 5"], ["slow 2", "slow 3"], ["slowest"]]
    assert all(names[: len(slow)] == slow for names, slow in zip(ran, first, strict=True))
    assert sum(map(len, ran)) == 47
