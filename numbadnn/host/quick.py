"""Numba's compiler for the host without repeated work: the same code in less time.

For each statement Numba enters a context for the text of an error, sets filters of warnings, and looks through all that the
statement is made of for variables. It types each ``a + b`` as if it had never seen one, and asks LLVM for the size of a pointer
anew. What is here does that once, and gives what was given. ``common`` serves Numba's compiler and numba-cuda's, which has
modules of the same names.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
import types
from collections.abc import Iterator
from typing import Any

from numbadnn.host.numba_names import BaseFunction

#: (module or class, name, what is put there)
Replacement = tuple[Any, str, Any]

_counting = threading.RLock()  # what is forgotten may have a ``__del__`` that calls
_inside = 0
_replaced: dict[tuple[Any, str], tuple[int, Any]] = {}  # how often, and what was there
_call_types: dict[Any, Any] = {}


@contextlib.contextmanager
def replaced(replacements: list[Replacement]) -> Iterator[None]:
    """Inside, names of Numba mean other functions. Two compilers may share a name, and what is put there."""
    with _counting:
        for owner, name, new in replacements:
            times, old = _replaced.get((owner, name), (0, vars(owner)[name]))
            _replaced[owner, name] = times + 1, old
            setattr(owner, name, new)
    try:
        yield
    finally:
        with _counting:
            for owner, name, _ in replacements:
                times, old = _replaced.pop((owner, name))
                if times > 1:
                    _replaced[owner, name] = times - 1, old
                else:
                    setattr(owner, name, old)


@contextlib.contextmanager
def quick() -> Iterator[None]:
    """Inside, Numba compiles for the CPU faster."""
    with together(), replaced(_of_the_cpu()):
        yield


@functools.cache
def _of_the_cpu() -> list[Replacement]:
    from numbadnn.host.numba_names import base, errors, ir, lowering, ssa, typeinfer

    return common(base, errors, ir, lowering, ssa, typeinfer)


@contextlib.contextmanager
def together() -> Iterator[None]:
    """Inside, compilations share what they learn of calls; it is forgotten at the end of the last."""
    global _inside
    with _counting:
        _inside += 1
    try:
        yield
    finally:
        with _counting:
            _inside -= 1
            if not _inside:
                _call_types.clear()  # it keeps all that it was asked with


def common(base: Any, errors: Any, ir: Any, lowering: Any, ssa: Any, typeinfer: Any) -> list[Replacement]:
    """What is replaced in these modules of a compiler."""
    context = functools.partial(_ErrorContext, errors)
    list_vars = _lists_variables(ir)
    return [
        (ir.Expr, "list_vars", list_vars),
        (ir.Stmt, "list_vars", list_vars),
        (ssa, "_run_ssa_block_pass", _runs_ssa_block(ir)),
        (lowering, "new_error_context", context),
        (typeinfer, "new_error_context", context),
        (typeinfer.ConstraintNetwork, "propagate", _propagates(typeinfer, typeinfer.ConstraintNetwork.propagate)),
        (typeinfer.CallConstraint, "resolve", _resolves_once(typeinfer.CallConstraint.resolve)),
        (base, "_has_loc", functools.lru_cache(lambda function: "loc" in inspect.signature(function).parameters)),
        (base.BaseContext, "get_abi_sizeof", _size_remembered(base.BaseContext.get_abi_sizeof)),
        (base.BaseContext, "get_function", _arrays_remembered(base.BaseContext.get_function)),
        (BaseFunction, "get_call_type", _remembered_type),
    ]


class _ErrorContext:
    """``new_error_context``, which every statement enters, and few leave with an error."""

    def __init__(self, errors: Any, text: str, *args: Any, **kwargs: Any) -> None:
        self.errors, self.message = errors, (text, args, kwargs)

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if isinstance(error, self.errors.NumbaError):
            error.add_context(self.errors._format_msg(*self.message))


def _lists_variables(ir: Any) -> Any:
    """``Expr.list_vars`` and ``Stmt.list_vars``."""
    variable, expression = ir.Var, ir.Expr
    without = {str, int, bool, type(None), types.BuiltinFunctionType, ir.Loc, ir.Const, ir.Global, ir.FreeVar, ir.Arg}

    def list_vars(self: Any) -> list[Any]:
        found = []
        for value in (self._kws if type(self) is expression else self.__dict__).values():
            kind = type(value)
            if kind is variable:
                found.append(value)
            elif kind not in without:
                found.extend(self._rec_list_vars(value))
        return found

    return list_vars


def _runs_ssa_block(ir: Any) -> Any:
    """``_run_ssa_block_pass`` without words for a log that nobody reads."""
    assigns = getattr(ir, "assign_types", ir.Assign)

    def run(states: Any, block: Any, handler: Any) -> Any:
        for stmt in block.body:
            yield (handler.on_assign if isinstance(stmt, assigns) else handler.on_other)(states, stmt)

    return run


def _propagates(typeinfer: Any, propagate: Any) -> Any:
    """``ConstraintNetwork.propagate``: Python's filters of warnings are set once, not for each statement."""

    def quietly(self: Any, inferer: Any) -> Any:
        warnings = inferer.warnings
        inferer.warnings = types.SimpleNamespace(catch_warnings=lambda **_: contextlib.nullcontext())
        try:
            with warnings.catch_warnings():
                return propagate(self, inferer)
        finally:
            inferer.warnings = warnings

    return quietly


def _resolves_once(resolve: Any) -> Any:
    """``CallConstraint.resolve`` where types are not what they were: all calls are asked again until no type changes."""

    def once(self: Any, inferer: Any, typevars: Any, fnty: Any) -> None:
        asked = fnty, *[typevars[v.name].type for v in self.args]
        if asked == getattr(self, "asked", None):
            return
        resolve(self, inferer, typevars, fnty)
        known = self.signature is not None and self.signature.return_type.is_precise()
        if known and not self.kws and self.vararg is None:
            self.asked = asked

    return once


def _types_remembered(get_call_type: Any) -> Any:
    """The type of a call, found once for each function and types of arguments (Numba keeps one object of each type)."""

    def remembered(self: Any, context: Any, args: Any, kws: Any) -> Any:
        key = (id(self), id(context), tuple(map(id, args)), tuple([(k, id(v)) for k, v in kws.items()]))
        known = _call_types.get(key)
        if known is None:  # the arguments are kept with it, or others might get their ids
            known = _call_types[key] = (get_call_type(self, context, args, kws), self, context, args, kws)
        return known[0]

    return remembered


_remembered_type = _types_remembered(BaseFunction.get_call_type)


def _arrays_remembered(get_function: Any) -> Any:
    """That a type has no ``__array__`` is found once: Numba reads all its registries again before it believes it."""
    without: set[Any] = set()

    def remembered(self: Any, function: Any, signature: Any, **first: Any) -> Any:
        if function != "__array__":
            return get_function(self, function, signature, **first)
        if signature.args not in without:
            try:
                return get_function(self, function, signature, **first)
            except NotImplementedError:
                without.add(signature.args)
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
