"""Runs cudnn_real_checks.py, the binding against the real libcudnn, in a process of its own.

One of cuDNN's parts links against the CUDA driver. Where there is none, an empty stand-in takes its place, which no
other test should meet; hence the process.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from folders import SUPPORT

from numbadnn.cudnn import _find

WHEEL = any((Path(f) / "lib" / _find.SONAME).is_file() for f in _find.wheel_folders())

#: what libcudnn's parts import from the driver by name, and what the binding asks it after a failed execution: without
#: those an error of cuDNN's would be hidden by that of the question
DRIVER = ("cuGetErrorString", "cuModuleGetFunction", "cuModuleLoadData", "cuModuleUnload", "cuTensorMapEncodeIm2col",
          "cuTensorMapEncodeTiled", "cuInit", "cuGetErrorName")  # fmt: skip


@pytest.mark.skipif(not WHEEL, reason="no cuDNN wheel is installed")
def test_the_real_library_without_a_gpu(tmp_path):
    here = SUPPORT
    environment = os.environ | {
        "NUMBADNN_CACHE_DIR": str(tmp_path)
    }  # errata of the user's would ask for the GPU's name
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        compiler = shutil.which("gcc") or shutil.which("cc")
        if compiler is None:
            pytest.skip("no CUDA driver, and no C compiler to make a stand-in")
        source = tmp_path / "driver.c"
        source.write_text("".join(f"int {name}(void) {{ return 100; }}\n" for name in DRIVER))
        library = tmp_path / "libcuda.so.1"
        subprocess.run([compiler, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", library, source], check=True)
        environment["LD_LIBRARY_PATH"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(here / "cudnn_real_checks.py")],
        env=environment, capture_output=True, text=True, check=False, cwd=here.parent,
    )  # fmt: skip
    tail = done.stdout[-3000:]
    assert done.returncode == 0, tail
    assert " passed" in tail, tail
