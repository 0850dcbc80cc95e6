"""What Numba compiles for the host, kept on disk: found again by the next process, or compiled again.

Numba's own cache of ``@njit(cache=True)`` is not used, because it

* names functions by a counter of the process. An inner function of a factory (``applier.<locals>.apply [abi:v342]``) then has
  other bodies in the builds of other processes, and a process that loads two such builds runs one body for both;
* goes on using code that was compiled under debugging flags, or from sources that it cannot see;
* unpickles what lies in a folder that others may write to;
* raises what reading a damaged file raises, and believes code that lies under the name of another build.

Here a build is one file (``private``) under a key of all that it is made of: code, types, options, flags, machine and
versions. Its functions have names that hold the key, or names that no other build sees. Importing this module imports Numba.
"""

from __future__ import annotations

import functools
import hashlib
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from numbadnn.host import files, log, private, sources
from numbadnn.host.compiling import compiling, was_found
from numbadnn.host.undisturbed import load_numba, ready_to_compile, undisturbed

load_numba()
import llvmlite  # noqa: E402
import numba  # noqa: E402
from numba import njit  # noqa: E402

from numbadnn.host import symbols, whole  # noqa: E402
from numbadnn.host.numba_names import (  # noqa: E402
    Compiler,
    CompileResult,
    Environment,
    _nrt_python,
    dumps,
    global_compiler_lock,
    lookup_environment,
    normalize_signature,
)

_FORMAT = "numbadnn-build-1"
_VERSIONS = f"{_FORMAT} {sys.version} numba={numba.__version__} llvmlite={llvmlite.__version__} numpy={np.__version__}"
_holder = 0  # the thread that forks now


def _before_fork() -> None:
    """A child that is forked while another thread compiles would find the compiler locked for ever: wait until it is not.

    Ctrl-C ends the wait: Python prints it, as it does with all that such a hook raises, and forks.
    """
    global _holder
    global_compiler_lock.acquire()
    _holder = threading.get_ident()


def _after_fork() -> None:
    global _holder
    if _holder == threading.get_ident():
        _holder = 0
        global_compiler_lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)


def compiled(
    body: Callable[..., Any],
    stamp: str,
    made: Callable[[Any, tuple[Any, ...]], None] = lambda build, args: None,
    **options: Any,
) -> Any:
    """``njit(**options)(body)`` kept on disk; ``stamp``: of all modules that it is made of.

    Calls ``made(build, arguments)`` after each first call of a signature. Where it cannot be kept, a build serves this process
    alone, and a warning says so.
    """
    if numba.config.DISABLE_JIT:
        return body
    place = files.builds_folder()
    why = private.unusable(place) or ("" if stamp else private.UNREAD)
    kept = Kept(body, stamp, options, None if why else place, why)
    build = njit(**options, pipeline_class=kept.pipeline())(body)
    build._cache = kept
    return _undisturbed(build, made if kept.cache_path else None)


def _undisturbed(build: Any, made: Callable[[Any, tuple[Any, ...]], None] | None) -> Any:
    """The same, compiled or loaded from disk as a whole; a call that it is ready for does not come here."""
    make = build._compile_for_args

    def whole(*args: Any, **kwargs: Any) -> Any:
        with undisturbed():
            found = make(*args, **kwargs)
            if made:
                made(build, args)
            return found

    build._compile_for_args, build.made = whole, made or (lambda build, args: None)
    return build


@functools.cache
def _name_runtime() -> None:
    """Tell LLVM where Numba's runtime is, as Numba does when it first compiles: else it knows no build that calls it."""
    for name, address in _nrt_python.c_helpers.items():
        llvmlite.binding.add_symbol(name if name.startswith("_") else f"NRT_{name}", address)


class Kept:
    """The builds of one function, one for each signature: what a dispatcher asks of Numba's cache."""

    def __init__(
        self, body: Callable[..., Any], stamp: str, options: dict[str, Any], place: Path | None, why: str = ""
    ) -> None:
        self.cache_path = place and str(place)  # None: nothing is kept, and ``why``
        self._why = why
        self._environments: list[Environment] = []
        compiler = sources.modules(__name__, "numbadnn.host.whole", "numbadnn.host.quick")
        self._made_of = "\0".join([_VERSIONS, compiler, stamp, sources.content([body, options])])

    def key(self, signature: Any, codegen: Any) -> str:
        """Of all that a build is made of; the name of its file and a part of its functions' names."""
        arguments, result = normalize_signature(signature)
        parts = [self._made_of, str(arguments), str(result), str(codegen.magic_tuple()), sources.flags()]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:40]

    def load_overload(self, signature: Any, context: Any) -> CompileResult | None:
        """The build of a signature; None where there is none, or what is there is not that."""
        build = self._on_disk(signature, context) if self.cache_path else None
        if build is None:
            ready_to_compile()
        return build

    def _on_disk(self, signature: Any, context: Any) -> CompileResult | None:
        key = self.key(signature, context.codegen())
        found = private.read(self._file(key), _FORMAT, key)
        _name_runtime()
        try:
            with whole.libraries(context.codegen(), symbols.Found):
                build = found and CompileResult._rebuild(context, *pickle.loads(found[1]))
            if build:
                was_found()
            return build
        except Exception:  # whatever a file that holds something else may raise
            return None

    def save_overload(self, signature: Any, build: CompileResult) -> None:
        """Keep a build; where the disk refuses, it serves this process all the same."""
        private.say_unkept(self._why)
        if (
            not self.cache_path
            or build.lifted
            or build.library.has_dynamic_globals
            or not all(map(_keeps, self._environments))
        ):
            return  # it reads what only this process has
        key = self.key(signature, build.codegen)
        image = dumps(build._replace(type_annotation="")._reduce())
        private.say_unkept(private.write(self._file(key), _FORMAT, key, image, function=build.fndesc.qualname))

    def _file(self, key: str) -> Path:
        return Path(str(self.cache_path), f"{key}.build")

    def enable(self) -> None:
        """Always is."""

    disable = flush = enable

    def pipeline(self) -> type[Compiler]:
        """A compiler that names what it makes by the key."""
        kept = self

        class Named(Compiler):
            def _compile_bytecode(self) -> Any:
                state = self.state
                codegen, function = state.targetctx.codegen(), state.func_id
                key = kept.key(state.args if state.return_type is None else state.return_type(*state.args), codegen)
                function.unique_id, function.unique_name = key, f"{function.func_qualname}${key}"
                state.library = library = whole.Whole(codegen, function.func_qualname)
                library.enable_object_caching()
                environments: list[Environment] = []
                library._optimize_final_module = partial(
                    _hide, library, library._optimize_final_module, key, environments
                )
                begin = time.perf_counter()
                with compiling(function.func_name, "CPU", bool(kept.cache_path)), whole.parts(codegen):
                    made = super()._compile_bytecode()
                log.note(
                    "info", "compiled %s for this CPU in %.2f s", function.func_qualname, time.perf_counter() - begin
                )
                for environment in environments:
                    codegen.set_env(environment.env_name, environment)
                kept._environments += environments  # which Numba holds by weak references
                return made

        return Named


def _keeps(environment: Environment) -> bool:
    """Whether another process can have it: its module can be named, or nothing is read of it, as of a ``prange``'s body."""
    return environment.can_cache() or not environment.consts


def _hide(library: Any, optimize: Callable[[], None], key: str, environments: list[Environment]) -> None:
    """Optimise a build; then no other build sees what it calls: other processes number functions of its names otherwise.

    Done before, LLVM would inline what it does not otherwise. ``environments``: of Python's objects that functions read, under
    other names.
    """
    optimize()
    module = library._final_module
    for number, value in enumerate([*module.functions, *module.global_variables]):
        if value.is_declaration or value.linkage.name in ("internal", "private") or key in value.name:
            continue
        if environment := lookup_environment(value.name):
            value.name += f".{key}"
            environments.append(_named(environment, value.name))
        elif not value.name.startswith("numba.dynamic.globals"):  # by which Numba knows that addresses are in it
            value.name, value.linkage = f"{key}.{number}", "internal"


def _named(environment: Environment, name: str) -> Environment:
    """The same objects under another name."""
    made = Environment(environment.globals)
    made.consts[:], made.env_name = environment.consts, name
    return Environment._memo.setdefault(name, made)
