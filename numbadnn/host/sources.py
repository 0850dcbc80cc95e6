"""What machine code is made of, as text for the keys it is kept under: modules, functions with what they enclose, Numba's flags.

Modules are read through whatever loaded them: files, a zip, bytecode alone, a frozen program. What cannot be read has no key, and
nothing made of it is kept.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.util
import os
import pkgutil
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from importlib.machinery import FileFinder, ModuleSpec, all_suffixes
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

#: Numba's settings that no machine code depends on: what is printed, where things lie, how many threads there are
_NOT_OF_CODE = re.compile(
    r"(CUDA_(LOG|WARN|LOW_|DEALLOCS|MEMORY_MANAGER|VERBOSE|DRIVER|MAX_PENDING|ARRAY_INTERFACE)|DUMP_|DEBUG_(PRINT|CACHE|FRONTEND"
    r"|TYPEINFER|INLINE|ARRAY_OPT(_STATS)?$|NRT_STACK)|DEBUG$|DEVELOPER_|DISABLE_(PERFORMANCE|TYPEINFER)|FULL_|SHOW_|COLOR_"
    r"|ALWAYS_WARN|HIGHLIGHT|FUNCTION_CACHE|CACHE_|TRACE$|CHROME_|ANNOTATE|HTML|DIFF_IR|PARALLEL_DIAG|THREADING_|NUM_THREADS"
    r"|NUMBA_(DEFAULT_)?NUM_THREADS|GDB_|LLVM_PASS_TIMINGS|RUNNING_UNDER|ENABLE_(SYS_MONITORING|CUDASIM)|DISABLE_CUDA)"
)


#: how the file of a module ends
_MODULES = tuple(all_suffixes())

#: settings that Numba reads beside the environment, in the working folder
NUMBAS_FILE = ".numba_config.yaml"


@functools.cache
def package(name: str) -> str:
    """A digest of the code of all modules of an imported package, folders below it included; "" where one cannot be read."""
    found = hashlib.sha256()
    for module, content in _package(name):
        if content is None:
            return ""
        found.update(module.encode() + b"\0" + content + b"\0")
    return found.hexdigest()


def modules(*names: str) -> str:
    """The same of imported modules."""
    contents = [_content(name, getattr(sys.modules.get(name), "__spec__", None)) for name in sorted(names)]
    return hashlib.sha256(b"\0".join(c or b"" for c in contents)).hexdigest() if all(contents) else ""


def _package(name: str) -> Iterator[tuple[str, bytes | None]]:
    package = sys.modules[name]
    yield name, _content(name, package.__spec__)
    yield from _below(package.__path__, name + ".")


def _below(paths: Any, prefix: str) -> Iterator[tuple[str, bytes | None]]:
    paths = list(paths)
    if all(type(pkgutil.get_importer(path)) is FileFinder for path in paths):
        for path in paths:
            yield from _files(path, prefix)
        return
    for info in sorted(pkgutil.iter_modules(paths, prefix), key=lambda info: info.name):
        spec = info.module_finder.find_spec(info.name, None)  # nothing is imported
        yield info.name, _content(info.name, spec)
        if info.ispkg:
            yield from _below(spec.submodule_search_locations if spec else [], info.name + ".")


def _files(folder: str, prefix: str) -> Iterator[tuple[str, bytes | None]]:
    """The modules in a folder and below it, as they lie there: half the time of asking for the loader of each.

    A name that begins with a dot is no module's: editors leave links of such names that lead nowhere.
    """
    try:
        with os.scandir(folder) as entries:
            found = sorted((e.name, e.path, e.is_dir()) for e in entries if not e.name.startswith("."))
    except OSError:
        yield prefix, None
        return
    for name, path, below in found:
        if below:
            if name != "__pycache__":
                yield from _files(path, f"{prefix}{name}.")
        elif name.endswith(_MODULES):
            try:
                with open(path, "rb") as file:
                    content = file.read()
            except OSError:
                content = None
            yield prefix + name, content


def _content(name: str, spec: ModuleSpec | None) -> bytes | None:
    """What a module is made of: the file that was found for it, or its code."""
    if spec is None:
        return None
    loader: Any = spec.loader
    ways: list[Callable[[], bytes]] = [
        lambda: Path(spec.origin or "").read_bytes(),
        lambda: bytes(loader.get_data(spec.origin)),  # in a zip
        lambda: content(loader.get_code(name)).encode(),  # frozen
    ]
    for way in ways[0 if spec.has_location else 2 :]:
        try:
            return way()
        except (OSError, ImportError, AttributeError, TypeError, ValueError):
            continue
    return None


def content(value: Any, around: tuple[int, ...] = ()) -> str:
    """Text that is the same for the same code and values in any process; TypeError where there is none.

    Of functions: their code and what they enclose. What their globals mean, the modules' digests say.
    """
    if id(value) in around:
        return f"<{around[::-1].index(id(value))}>"  # a function that encloses itself
    around = (*around, id(value))
    one = functools.partial(content, around=around)
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes, type(...), np.generic, np.dtype)):
        return repr(value)
    if isinstance(value, (tuple, list)):
        return f"{type(value).__name__}({', '.join(map(one, value))})"
    if isinstance(value, (set, frozenset)):
        return f"set({', '.join(sorted(map(one, value)))})"
    if isinstance(value, dict):
        return f"dict({', '.join(f'{one(k)}: {one(v)}' for k, v in value.items())})"
    if isinstance(value, CodeType):
        parts = [
            value.co_code,
            value.co_names,
            value.co_varnames,
            value.co_freevars,
            value.co_cellvars,
            value.co_consts,
        ]
        return f"code({', '.join(map(one, [value.co_qualname, *parts, getattr(value, 'co_exceptiontable', b'')]))})"
    if isinstance(value, FunctionType):
        cells = [one(cell.cell_contents) for cell in value.__closure__ or ()]
        defaults = one([value.__defaults__, value.__kwdefaults__])
        return f"{value.__module__}.{value.__qualname__}({one(value.__code__)}, {defaults}, {', '.join(cells)})"
    if isinstance(value, np.ndarray):
        return f"array({value.dtype}, {value.shape}, {value.tobytes()!r})"
    if isinstance(value, ModuleType):
        return f"module {value.__name__}"
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    if dataclasses.is_dataclass(value):
        return f"{one(type(value))}({', '.join(one(getattr(value, f.name)) for f in dataclasses.fields(value))})"
    return _of_numba(value, one)


def _of_numba(value: Any, one: Callable[[Any], str]) -> str:
    """``content`` of what Numba makes of functions, and of its types."""
    from numbadnn.host.numba_names import Type

    if isinstance(value, Type):
        return f"{one(type(value))} {value}"
    if hasattr(value, "py_func"):
        return f"compiled({one(value.py_func)}, {one(sorted(getattr(value, 'targetoptions', {}).items()))})"
    if hasattr(value, "_defn"):
        return f"intrinsic({one(value._defn)})"
    raise TypeError(f"no key can be made of {value!r}")


def is_of_code(name: str) -> bool:
    """Whether machine code depends on a setting of Numba's."""
    return not _NOT_OF_CODE.match(name)


def settings() -> list[str]:
    """Of Numba's settings those that machine code depends on and that the environment has, as text; Numba is not asked."""
    given = (
        f"{name}={text}" for name, text in os.environ.items() if name.startswith("NUMBA_") and is_of_code(name[6:])
    )
    return sorted(given)


def flags(cuda: bool = False) -> str:
    """Numba's settings that machine code depends on; ``cuda``: those of kernels.

    Those of kernels are what the environment has and what a program has set in ``numba.config``, for which it has imported
    Numba: it is imported here only where it would read a file of settings. What it makes of the environment, its version says,
    which is part of each key.
    """
    if cuda and not os.path.exists(NUMBAS_FILE):
        return " ".join([*settings(), *deviations()])
    from numbadnn.host.undisturbed import load_numba

    load_numba()
    from numbadnn.host.numba_names import config

    config.reload_config()
    found = _settings(config)
    return " ".join([*(settings() if cuda else ()), *_spelled(found)])


def deviations() -> list[str]:
    """Numba's settings that a program has set in ``numba.config``: a process of this environment alone has others."""
    from numbadnn.host.undisturbed import imported

    if imported("numba") is None:
        return []
    from numbadnn.host.numba_names import config

    config.reload_config()
    here, anew = _settings(config), _of_environment(tuple(settings()))
    return _spelled({name: value for name, value in here.items() if name in anew and anew[name] != value})


@functools.lru_cache(8)
def _of_environment(_given: tuple[str, ...]) -> dict[str, str]:
    """What Numba makes of the environment, be it set otherwise in this process or not."""
    from numbadnn.host.numba_names import config

    spec: Any = config.__spec__
    anew = importlib.util.module_from_spec(spec)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what it cannot read it has warned
        spec.loader.exec_module(anew)
    return _settings(anew)


def _settings(config: ModuleType) -> dict[str, str]:
    """Those that are not of CUDA, but for debugging information, which numba-cuda reads here too.

    A name with an underscore is none: it says whether PyYAML is installed.
    """
    read = {name: repr(value) for name, value in vars(config).items() if name.isupper() and name[0] != "_"}
    return {name: value for name, value in read.items() if "CUDA" not in name or name == "CUDA_DEBUGINFO_DEFAULT"}


def _spelled(found: dict[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in sorted(found.items()) if is_of_code(name)]
