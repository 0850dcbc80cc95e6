"""Every option, once: its name, environment variable, values and default; and which value is in force, and why.

Precedence: call argument > ``numbadnn.using(...)`` > environment > default. The environment is read once, at the first
call that needs it. The options in force are one immutable ``Options`` object, the same object for the same values, so
that a plan's key can hold it by identity; ``Options.origin`` says where each value came from.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from numbadnn.errors import warn

BACKENDS = ("cudnn", "numba", "cpu")
_RUNTIME = ("guess_once", "guess_on_shape_change", "time_once", "time_on_shape_change")
_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9}


class Option(NamedTuple):
    """One option: ``parse`` turns text (or a Python value given to ``using``) into its value or raises ValueError."""

    name: str
    values: str
    default: Any
    parse: Callable[[Any], Any]

    @property
    def environment(self) -> str:
        return f"NUMBADNN_{self.name.upper()}"


def _one_of(*values: str) -> Callable[[Any], str]:
    def parse(value: Any) -> str:
        if value not in values:
            raise ValueError(f"expected one of {', '.join(values)}")
        return value

    return parse


def _backends(value: Any) -> tuple[str, ...]:
    """'auto' -> (), 'cudnn' -> ('cudnn',), 'cudnn,numba' or a sequence -> both in order."""
    names = _listed(value)
    if names == ("auto",):
        return ()
    if not names or any(n not in BACKENDS for n in names) or len(set(names)) != len(names):
        raise ValueError(f"expected auto, one of {', '.join(BACKENDS)}, or an ordered list of them without repeats")
    return names


def _listed(value: Any) -> tuple[str, ...]:
    """'a, b' or a list or tuple of names; () for anything else."""
    names = value.split(",") if isinstance(value, str) else value
    return tuple(str(n).strip() for n in names) if isinstance(names, (list, tuple)) else ()


def _size(value: Any) -> int:
    match = re.fullmatch(r"(\d{1,18}(?:\.\d+)?)\s*([A-Za-z]+)", value.strip()) if isinstance(value, str) else None
    if not match or match[2] not in _UNITS:
        raise ValueError(f"expected a size with a unit ({', '.join(_UNITS)}) such as '512MiB'")
    return int(float(match[1]) * _UNITS[match[2]])


def _flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if value not in ("true", "false"):
        raise ValueError("expected true or false")
    return value == "true"


def _path(value: Any) -> str:
    text = os.fspath(value) if isinstance(value, (str, os.PathLike)) else ""
    if not text or "\0" in str(text):
        raise ValueError("expected a path")
    return os.path.expanduser(str(text))  # "~" that no shell has seen: of a quoted value, or of Python's


def _names(value: Any) -> tuple[str, ...]:
    names = _listed(value)
    if not names or not all(re.fullmatch(r"[\w.*]+", n) for n in names):
        raise ValueError("expected implementation names such as numba.direct or cudnn.*, separated by commas")
    return names


def _words(*values: str) -> tuple[str, Callable[[Any], str]]:
    return ", ".join(values), _one_of(*values)


_FFT = ("fft", "fft_tiling", "winograd", "winograd_non_fused")
OPTIONS: dict[str, Option] = {
    o.name: o
    for o in (
        Option("backend", "auto, cudnn, numba, cpu, or an ordered list such as cudnn,numba", (), _backends),
        Option("fallback", _words("allow", "warn", "error")[0], "warn", _one_of("allow", "warn", "error")),
        *(
            Option(name, _words(*values)[0], default, _one_of(*values))
            for name, default, values in (
                (
                    "determinism",
                    "run_to_run",
                    ("not_guaranteed", "run_to_run", "batch_invariant", "gpu_to_gpu"),
                ),
                ("fp32_precision", "ieee", ("ieee", "tf32")),
                ("accuracy", "normwise", ("elementwise", "normwise")),
                ("precision", "as_input_f32", ("as_input_f32", "as_input", "float16", "float32", "float64")),
                ("algo_fwd", "auto", ("auto", "none", "small", "large", *_FFT, *_RUNTIME)),
                ("algo_bwd_data", "auto", ("auto", "none", "deterministic", *_FFT, *_RUNTIME)),
                (
                    "algo_bwd_filter",
                    "auto",
                    ("auto", "none", "deterministic", "small", "fft", "fft_tiling", "winograd_non_fused", *_RUNTIME),
                ),
            )
        ),
        Option("workspace_limit", "size with a unit, such as 512MiB", 1 << 30, _size),
        Option("tune", "heuristic, cached, measure", "cached", _one_of("heuristic", "cached", "measure")),
        Option("plan_file", "path", "", _path),
        Option("plan_strict", "true, false", False, _flag),
        Option("cache_dir", "path (the user's cache folder)", "", _path),
        Option("cudnn_library", "path", "", _path),
        Option("only", "implementation names, comma-separated, * allowed", (), _names),
        Option("exclude", "implementation names, comma-separated, * allowed", (), _names),
        Option("errata_file", "path", "", _path),
        Option("verbose", "none, dispatch, exec, all", "none", _one_of("none", "dispatch", "exec", "all")),
    )
}


class Options:
    """The values in force as attributes; ``origin[name]`` is 'default', 'environment NUMBADNN_X' or 'using'.

    Compared and hashed by identity; ``_intern`` gives one object a combination of values.
    """

    __slots__ = ("__dict__", "origin")

    backend: tuple[str, ...]
    fallback: str
    determinism: str
    fp32_precision: str
    accuracy: str
    precision: str
    algo_fwd: str
    algo_bwd_data: str
    algo_bwd_filter: str
    workspace_limit: int
    tune: str
    plan_file: str
    plan_strict: bool
    cache_dir: str
    cudnn_library: str
    only: tuple[str, ...]
    exclude: tuple[str, ...]
    errata_file: str
    verbose: str

    def __init__(self, values: Mapping[str, Any], origin: Mapping[str, str]) -> None:
        self.__dict__.update(values)
        self.origin = dict(origin)

    def __repr__(self) -> str:
        """Those that are not the default."""
        set_ones = (f"{name}={value!r}" for name, value in self.__dict__.items() if self.origin[name] != "default")
        return f"Options({', '.join(set_ones)})"

    def replace(self, values: Mapping[str, Any], origin: Mapping[str, str]) -> Options:
        return _intern(tuple({**self.__dict__, **values}.items()), tuple({**self.origin, **origin}.items()))


@functools.lru_cache(maxsize=1024)
def _intern(values: tuple[tuple[str, Any], ...], origin: tuple[tuple[str, str], ...]) -> Options:
    return Options(dict(values), dict(origin))


def parse(name: str, value: Any, where: str) -> Any:
    """What the option makes of a value; ValueError that says ``where`` it came from for one that it does not know."""
    try:
        return OPTIONS[name].parse(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"{where}: {error}, got {value!r}") from None


def _warn_of_misspelt(variables: Mapping[str, str]) -> None:
    """A name that is nearly an option's sets nothing, which nobody would notice."""
    known = [option.environment for option in OPTIONS.values()]
    unknown = sorted(n for n in variables if n.startswith("NUMBADNN") and n not in known)
    if not unknown:
        return
    import difflib

    for name in unknown:
        for near in difflib.get_close_matches(name, known, 1, 0.85):
            warn(f"{name} is not an option and sets nothing: {near} is meant?")


#: what ``from_environment`` found, once it was asked: an attribute, for the hot path
environment: Options | None = None


@functools.cache
def from_environment() -> Options:
    """The options as the environment sets them; an unknown ``NUMBADNN_`` option value is a ValueError naming it."""
    global environment
    values, origin = {}, {}
    _warn_of_misspelt(os.environ)
    for option in OPTIONS.values():
        text = os.environ.get(option.environment)
        values[option.name] = option.default if text is None else parse(option.name, text, option.environment)
        origin[option.name] = "default" if text is None else f"environment {option.environment}"
    environment = _intern(tuple(values.items()), tuple(origin.items()))
    return environment


_using: ContextVar[Options | None] = ContextVar("numbadnn_options", default=None)
#: what each block in force here sets, the innermost last
_blocks: ContextVar[tuple[dict[str, Any], ...]] = ContextVar("numbadnn_blocks", default=())


def current() -> Options:
    """The options in force here and now, in this thread or task."""
    return _using.get() or from_environment()


@contextmanager
def using(**options: Any) -> Iterator[Options]:
    """Set options for a block of code, in this thread or task only; blocks nest. None sets an option's default.

    Around the ``yield`` of a generator they are in force for whoever runs it too, until the block ends; it ends for the thread
    or task that ends it, so close a generator where it began.

    Raises TypeError for an unknown option and ValueError, with the valid values, for a wrong value.

    >>> with using(backend="cpu", workspace_limit="512MiB") as options:
    ...     options.workspace_limit
    536870912
    """
    unknown = set(options) - set(OPTIONS)
    if unknown:
        raise TypeError(f"using(): unknown option {sorted(unknown)[0]!r}; options are {', '.join(OPTIONS)}")
    values = {
        name: OPTIONS[name].default if value is None else parse(name, value, f"using({name}=...)")
        for name, value in options.items()
    }
    inner = _set_by(current(), values)  # before anything is set: a wrong value of the environment raises here
    try:
        try:
            _blocks.set((*_blocks.get(), values))
            _using.set(inner)
            yield inner
        finally:
            _end(values)
    except BaseException:  # once more: it may be Ctrl-C, in the end itself
        _end(values)
        raise


def _end(values: dict[str, Any]) -> None:
    """End a block, which need not be the innermost: a generator's may end within one that began later."""
    left = tuple(block for block in _blocks.get() if block is not values)
    _using.set(functools.reduce(_set_by, left, from_environment()) if left else None)
    _blocks.set(left)


def _set_by(options: Options, values: dict[str, Any]) -> Options:
    return options.replace(values, dict.fromkeys(values, "using"))
