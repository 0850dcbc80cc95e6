"""The values of options and of arguments that are words, as types: mypy finds a misspelt one in a user's program.

``config`` reads the words that it accepts from here.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal, TypedDict

Backend = Literal["cudnn", "numba", "cpu"]
#: text that names several backends, in the order in which they are asked
BackendOrder = Literal[
    "auto", "cudnn,numba", "numba,cudnn", "cudnn,cpu", "cpu,cudnn", "numba,cpu", "cpu,numba",
    "cudnn,numba,cpu", "cudnn,cpu,numba", "numba,cudnn,cpu", "numba,cpu,cudnn", "cpu,cudnn,numba", "cpu,numba,cudnn",
]  # fmt: skip
Fallback = Literal["allow", "warn", "error"]
Determinism = Literal["not_guaranteed", "run_to_run", "batch_invariant", "gpu_to_gpu"]
Fp32Precision = Literal["ieee", "tf32"]
Accuracy = Literal["elementwise", "normwise"]
Precision = Literal["as_input_f32", "as_input", "float16", "float32", "float64"]
AlgoFwd = Literal[
    "auto", "none", "small", "large", "fft", "fft_tiling", "winograd", "winograd_non_fused",
    "guess_once", "guess_on_shape_change", "time_once", "time_on_shape_change",
]  # fmt: skip
AlgoBwdData = Literal[
    "auto", "none", "deterministic", "fft", "fft_tiling", "winograd", "winograd_non_fused",
    "guess_once", "guess_on_shape_change", "time_once", "time_on_shape_change",
]  # fmt: skip
AlgoBwdFilter = Literal[
    "auto", "none", "deterministic", "small", "fft", "fft_tiling", "winograd_non_fused",
    "guess_once", "guess_on_shape_change", "time_once", "time_on_shape_change",
]  # fmt: skip
#: of a call, whichever its direction
Algo = AlgoFwd | AlgoBwdData | AlgoBwdFilter
Tune = Literal["heuristic", "cached", "likely", "measure"]
Verbose = Literal["none", "quiet", "dispatch", "exec", "all"]

PoolMode = Literal["max", "max_deterministic", "average_inc_pad", "average_exc_pad", "sum", "average"]
SoftmaxAlgo = Literal["fast", "accurate", "log"]
SoftmaxMode = Literal["channel", "instance"]
NormMode = Literal["per-activation", "spatial"]

_Path = str | os.PathLike[str]


class OptionValues(TypedDict, total=False):
    """The keyword arguments of ``using`` and ``set_options``; None sets an option's default."""

    backend: Backend | BackendOrder | Sequence[Backend] | None
    fallback: Fallback | None
    determinism: Determinism | None
    fp32_precision: Fp32Precision | None
    accuracy: Accuracy | None
    precision: Precision | None
    algo_fwd: AlgoFwd | None
    algo_bwd_data: AlgoBwdData | None
    algo_bwd_filter: AlgoBwdFilter | None
    workspace_limit: str | None
    tune: Tune | None
    plan_file: _Path | None
    plan_strict: bool | Literal["true", "false"] | None
    cache_dir: _Path | None
    cudnn_library: _Path | None
    only: str | Sequence[str] | None
    exclude: str | Sequence[str] | None
    errata_file: _Path | None
    verbose: Verbose | None
    nvtx: bool | Literal["true", "false"] | None
    threads: int | str | None
