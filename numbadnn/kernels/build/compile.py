"""Numba's compiler without what it does again and again: the same code, to the byte, in less than half of the time.

Our kernels are hundreds of small functions written into one (``inline="always"``): thousands of statements in hundreds of
blocks. numba-cuda 0.30 looks at all of them for every variable, copies a function's names with every block of it, repeats
the frontend for each call of the same function, finds what is alive after every pass, and types and lowers each ``a + b``
as if it had never seen one. Inside ``quick()`` the parts that repeat are replaced: what is inlined in ``compile_inline.py``, the
passes in ``compile_passes.py``, the tables that remember here. Another version of numba-cuda is left as it is, and slower.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Iterator
from typing import Any

import numba_cuda

from numbadnn.host.undisturbed import fill_tables, undisturbed

_KNOWN = "0.30."
_one_thread = threading.RLock()
_counting = threading.RLock()  # what is forgotten may have a ``__del__`` that calls
_inside, _quick = 0, 0
_call_types: dict[Any, Any] = {}
_without_array: set[Any] = set()


@contextlib.contextmanager
def quick() -> Iterator[None]:
    """Inside, Numba compiles kernels faster; other threads wait."""
    global _quick
    from numba.cuda.core.compiler_lock import global_compiler_lock
    from numba.cuda.descriptor import cuda_target

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
    """Inside, compilations share what they learn of calls; it is forgotten, and garbage collected, at the end of the last.

    A tenth of the time went into looking for cycles among statements that are all in use.
    """
    global _inside
    with undisturbed():
        with _counting:
            _inside += 1
        try:
            yield
        finally:
            with _counting:
                _inside -= 1
                if not _inside:
                    _call_types.clear()  # it keeps all that it was asked with


@contextlib.contextmanager
def _replaced() -> Iterator[None]:
    from numba.cuda.core.compiler_lock import global_compiler_lock

    from numbadnn.kernels.build import compile_inline as _compile_inline

    with global_compiler_lock:
        replaced = _replacements()
        for owner, name, _, new in replaced:
            setattr(owner, name, new)
        try:
            yield
        finally:
            for owner, name, old, _ in replaced:
                setattr(owner, name, old)
            _compile_inline.callees.clear()


@functools.cache
def _replacements() -> list[tuple[Any, str, Any, Any]]:
    """(module or class, name, what is there, what is put there)."""
    from numba.core.types.functions import BaseFunction
    from numba.cuda import lowering
    from numba.cuda.core import analysis, base, inline_closurecall, ir, postproc, ssa, typed_passes, typeinfer

    from numbadnn.kernels.build import compile_inline as _compile_inline
    from numbadnn.kernels.build import compile_passes as _compile_passes

    news = [
        (inline_closurecall.InlineWorker, "inline_function", _compile_inline.inline_function),
        (postproc.PostProcessor, "run", _compile_passes.post_process),
        (analysis, "compute_live_map", _compile_passes.live_map),
        (ssa, "_run_ssa", _compile_passes.run_ssa),
        (ssa, "_run_ssa_block_pass", _compile_passes.run_ssa_block),
        (typed_passes, "check_and_legalize_ir", _compile_passes.legalize),
        (lowering.Lower, "_find_singly_assigned_variable", _compile_passes.find_singly_assigned),
        (ir.Expr, "list_vars", _compile_passes.list_vars),
        (ir.Stmt, "list_vars", _compile_passes.list_vars),
        (lowering, "new_error_context", _ErrorContext),
        (typeinfer, "new_error_context", _ErrorContext),
        (typeinfer.ConstraintNetwork, "propagate", _compile_passes.propagate),
        (typeinfer.CallConstraint, "resolve", _compile_passes.resolve),
        (base, "_has_loc", functools.lru_cache(lambda function: "loc" in inspect.signature(function).parameters)),
        (base.BaseContext, "get_abi_sizeof", _size_remembered(base.BaseContext.get_abi_sizeof)),
        (base.BaseContext, "get_function", _arrays_remembered(base.BaseContext.get_function)),
        (BaseFunction, "get_call_type", _types_remembered(BaseFunction.get_call_type)),
    ]
    return [(owner, name, vars(owner)[name], new) for owner, name, new in news]


class _ErrorContext:
    """``new_error_context``, which every statement enters, and few leave with an error."""

    def __init__(self, text: str, *args: Any, **kwargs: Any) -> None:
        self.message = text, args, kwargs

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if error is None:
            return
        from numba.cuda.core import errors

        if isinstance(error, errors.NumbaError):
            error.add_context(errors._format_msg(*self.message))


def _types_remembered(get_call_type: Any) -> Any:
    """The type of a call, found once for each function and types of arguments (Numba keeps one object of each type)."""

    def remembered(self: Any, context: Any, args: Any, kws: Any) -> Any:
        key = (id(self), id(context), tuple(map(id, args)), tuple([(k, id(v)) for k, v in kws.items()]))
        known = _call_types.get(key)
        if known is None:  # the arguments are kept with it, or others might get their ids
            known = _call_types[key] = (get_call_type(self, context, args, kws), self, context, args, kws)
        return known[0]

    return remembered


def _arrays_remembered(get_function: Any) -> Any:
    """That a type has no ``__array__`` is found once: Numba reads all its registries again before it believes it."""

    def remembered(self: Any, function: Any, signature: Any, **first: Any) -> Any:
        if function != "__array__":
            return get_function(self, function, signature, **first)
        if signature.args not in _without_array:
            try:
                return get_function(self, function, signature, **first)
            except NotImplementedError:
                _without_array.add(signature.args)
        raise NotImplementedError

    return remembered


def _size_remembered(get_abi_sizeof: Any) -> Any:
    sizes: dict[str, int] = {}

    def remembered(self: Any, kind: Any) -> int:
        text = str(kind)
        if "%" in text:  # the name of a structure, whose members it does not tell
            return int(get_abi_sizeof(self, kind))
        if text not in sizes:
            sizes[text] = get_abi_sizeof(self, kind)
        return sizes[text]

    return remembered
