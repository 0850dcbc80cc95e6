"""One module for each build: machine code is made of a kernel with all that it calls, and of nothing else.

Numba makes a library of each function, links into it all that the function calls, optimises that, and makes machine code of it;
then the same in each caller. So LLVM optimises the innermost function once for each level above it, and makes machine code that
is never run. Here such a function is a ``Part``, optimised once, alone. The ``Whole`` links each of its parts once, optimises
all together, and makes machine code.

Parts without a loop are not optimised alone: there is nothing in them that the whole would not do. Those with loops are, since
the passes find less in a loop that stands in a large function (not done, convolutions take 1.2 to 1.7 times as long).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from llvmlite import ir

from numbadnn.host import quick
from numbadnn.host.numba_names import JITCodeLibrary, global_compiler_lock


class Whole(JITCodeLibrary):
    """The library of what Python calls."""

    def finalize(self) -> None:
        """Link the parts, optimise, make machine code."""
        self._codegen._check_llvm_bugs()
        self._raise_if_finalized()
        _link(self, self._final_module)
        self._optimize_final_module()
        self._final_module.verify()
        self._finalize_final_module()


class Part(JITCodeLibrary):
    """The library of what other functions call: without machine code, unless Python calls it too."""

    _native: Any = None
    _shared_module: Any
    _loops = False

    @property
    def codegen(self) -> Any:
        return self._codegen if self._native else _WithoutAddresses(self._codegen)

    def finalize(self) -> None:
        """Optimise what loops; each whole may have its own copy."""
        self._raise_if_finalized()
        self._finalize_dynamic_globals()
        if self._loops:
            self._optimize_final_module()
        _shared(self._final_module)
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        """The address of a wrapper for Python, for which the part is compiled as a whole of its own; 0 where it has none."""
        self._ensure_finalized()
        # the body of a ``prange`` has a wrapper that nobody calls
        if "__numba_parfor" in name or not any(f.name == name for f in self._final_module.functions):
            return 0
        if self._native is None:
            self._native = native = Whole(self._codegen, self._name)
            native._linking_libraries = list(self._linking_libraries)
            native._final_module = self._final_module.clone()
            for function in native._final_module.functions:
                if not function.is_declaration and function.linkage.name == "linkonce_odr":
                    function.linkage = "external"
        return int(self._native.get_pointer_to_function(name))

    def add_ir_module(self, ir_module: Any) -> None:
        """As ever, but for what has no loop."""
        self._loops = self._loops or any(map(_loops, ir_module.functions))
        super().add_ir_module(ir_module)

    def _optimize_functions(self, ll_module: Any) -> None:
        if self._loops:
            super()._optimize_functions(ll_module)
        else:
            ll_module.data_layout = self._codegen._data_layout

    def _get_module_for_linking(self) -> Any:
        """With all that it calls, for a library that is no ``Whole``."""
        self._ensure_finalized()
        if self._shared_module is None:
            self._shared_module = self._final_module.clone()
            _link(self, self._shared_module)
        return self._shared_module


class _WithoutAddresses:
    """A code generator for a part, in which the objects of Python that it reads have no address."""

    def __init__(self, codegen: Any) -> None:
        self._codegen = codegen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._codegen, name)

    def set_env(self, name: str, environment: Any) -> None:
        """The whole has a copy of its own to set."""


@contextlib.contextmanager
def parts(codegen: Any) -> Iterator[None]:
    """Inside, a library that Numba makes is a ``Part``; other threads that compile wait."""
    with libraries(codegen, Part), quick.quick():
        yield


@contextlib.contextmanager
def libraries(codegen: Any, kind: type[JITCodeLibrary]) -> Iterator[None]:
    """Inside, a library that Numba makes is of a kind; other threads that compile wait."""
    with global_compiler_lock:
        before, codegen._library_class = codegen._library_class, kind
        try:
            yield
        finally:
            codegen._library_class = before


def _link(library: Any, module: Any) -> None:
    """Put into ``module`` what a library calls, directly or not, each once.

    Callers come first: LLVM leaves out what nobody calls yet.
    """
    for one in _callers_first(library):
        if hasattr(one, "_reload_init"):  # not in Numba 0.62
            library._reload_init.update(one._reload_init)
        module.link_in(one._final_module if isinstance(one, Part) else one._get_module_for_linking(), preserve=True)


def _callers_first(library: Any) -> list[Any]:
    begun: set[Any] = set()
    found: list[Any] = []

    def visit(one: Any) -> None:
        begun.add(one)
        for called in one._linking_libraries if one is library or isinstance(one, Part) else ():
            if called not in begun:
                visit(called)
        found.append(one)

    visit(library)
    return found[-2::-1]


def _shared(module: Any) -> None:
    for function in module.functions:
        if not function.is_declaration and function.linkage.name == "external":
            function.linkage = "linkonce_odr"


def _loops(function: Any) -> bool:
    """Whether a block of a function of llvmlite's can be reached from itself."""
    begun: set[Any] = set()
    done: set[Any] = set()
    path = [function.blocks[0]] if function.blocks else []
    while path:
        block = path[-1]
        if block in begun:
            done.add(path.pop())
            continue
        begun.add(block)
        for after in block.terminator.operands:
            if after in begun and after not in done:
                return True
            if isinstance(after, ir.Block) and after not in begun:
                path.append(after)
    return False
