"""Numba's compiler without repeated work: the same code, to the byte, in less than half of the time.

Our kernels are hundreds of small functions written into one (``inline="always"``): thousands of statements in hundreds of
blocks. numba-cuda 0.30 looks at all of them for every variable, copies a function's names with every block of it, repeats
the frontend for each call of the same function, finds what is alive after every pass, and types and lowers each ``a + b``
as if it had never seen one. Inside ``quick()`` the parts that repeat are replaced: what is inlined in ``compile_inline.py``, the
passes in ``compile_passes.py``, the tables that remember here. Another version of numba-cuda is left as it is, and slower.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator

import numba_cuda

from numbadnn.host import quick as shared
from numbadnn.host.undisturbed import fill_tables, undisturbed

_KNOWN = "0.30."
_one_thread = threading.RLock()
_quick = 0


@contextlib.contextmanager
def quick() -> Iterator[None]:
    """Inside, Numba compiles kernels faster; other threads wait."""
    global _quick
    from numbadnn.host.cuda_names import cuda_target, global_compiler_lock

    with undisturbed(), _one_thread:
        with global_compiler_lock:
            fill_tables(cuda_target)
        if not numba_cuda.__version__.startswith(_KNOWN) or _quick:
            yield
            return
        _quick += 1
        try:
            with together(), _replaced():
                yield
        finally:
            _quick -= 1


@contextlib.contextmanager
def together() -> Iterator[None]:
    """Inside, compilations share what they learn of calls, and no garbage is collected.

    A tenth of the time went into looking for cycles among statements that are all in use.
    """
    with undisturbed(), shared.together():
        yield


@contextlib.contextmanager
def _replaced() -> Iterator[None]:
    from numbadnn.host.cuda_names import global_compiler_lock
    from numbadnn.kernels.build import compile_inline as _compile_inline

    with global_compiler_lock:
        try:
            with shared.replaced(_replacements()):
                yield
        finally:
            _compile_inline.callees.clear()


@functools.cache
def _replacements() -> list[shared.Replacement]:
    from numbadnn.host.cuda_names import (
        analysis,
        base,
        errors,
        inline_closurecall,
        ir,
        lowering,
        postproc,
        ssa,
        typed_passes,
        typeinfer,
    )
    from numbadnn.kernels.build import compile_inline as _compile_inline
    from numbadnn.kernels.build import compile_passes as _compile_passes

    return [
        *shared.common(base, errors, ir, lowering, ssa, typeinfer),
        (inline_closurecall.InlineWorker, "inline_function", _compile_inline.inline_function),
        (postproc.PostProcessor, "run", _compile_passes.post_process),
        (analysis, "compute_live_map", _compile_passes.live_map),
        (ssa, "_run_ssa", _compile_passes.run_ssa),
        (typed_passes, "check_and_legalize_ir", _compile_passes.legalize),
        (lowering.Lower, "_find_singly_assigned_variable", _compile_passes.find_singly_assigned),
    ]
