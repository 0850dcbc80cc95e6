"""Every option, once: its name, environment variable, values and default; and which value is in force, and why.

Precedence: call argument > ``numbadnn.using(...)`` > ``numbadnn.set_options(...)`` > environment > default. The environment
is read once, at the first call that needs it. The options in force are one immutable ``Options`` object, the same object for
the same values, so that a plan's key can hold it by identity; ``Options.origin`` says where each value came from.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ContextDecorator, contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, Unpack, get_args

from numbadnn import option_types as types
from numbadnn.errors import warn
from numbadnn.option_types import OptionValues

BACKENDS: tuple[str, ...] = get_args(types.Backend)
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
        hint = not_a_place(names[0] if names else "")
        raise ValueError(
            f"expected auto, one of {', '.join(BACKENDS)}, or an ordered list of them without repeats{hint}"
        )
    return names


def not_a_place(name: Any) -> str:
    """What to add to an error where a device is named instead of a backend ("" = it is none)."""
    return ": arrays on a GPU are computed there" if isinstance(name, str) and name.lower() in ("gpu", "cuda") else ""


def _listed(value: Any) -> tuple[str, ...]:
    """'a, b' or a list or tuple of names; () for anything else."""
    names = value.split(",") if isinstance(value, str) else value
    return tuple(str(n).strip() for n in names) if isinstance(names, (list, tuple)) else ()


def _size(value: Any) -> int:
    match = re.fullmatch(r"(\d{1,18}(?:\.\d+)?)\s*([A-Za-z]+)", value.strip()) if isinstance(value, str) else None
    if not match or match[2] not in _UNITS:
        raise ValueError(f"expected a size with a unit ({', '.join(_UNITS)}) such as '512MiB'")
    return int(float(match[1]) * _UNITS[match[2]])


def _threads(value: Any) -> int:
    """'auto' -> 0, else the number."""
    if value == "auto":
        return 0
    number = int(value) if isinstance(value, str) and re.fullmatch(r"\d{1,5}", value) else value
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise ValueError("expected auto or a number of threads, at least 1")
    return number


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


def _words(name: str, kind: Any, default: str) -> Option:
    """An option whose values are the words of a type."""
    words = get_args(kind)
    return Option(name, ", ".join(words), default, _one_of(*words))


OPTIONS: dict[str, Option] = {
    o.name: o
    for o in (
        Option("backend", "auto, cudnn, numba, cpu, or an ordered list such as cudnn,numba", (), _backends),
        _words("fallback", types.Fallback, "warn"),
        _words("determinism", types.Determinism, "run_to_run"),
        _words("fp32_precision", types.Fp32Precision, "ieee"),
        _words("accuracy", types.Accuracy, "normwise"),
        _words("precision", types.Precision, "as_input_f32"),
        _words("algo_fwd", types.AlgoFwd, "auto"),
        _words("algo_bwd_data", types.AlgoBwdData, "auto"),
        _words("algo_bwd_filter", types.AlgoBwdFilter, "auto"),
        Option("workspace_limit", "size with a unit, such as 512MiB", 1 << 30, _size),
        _words("tune", types.Tune, "cached"),
        Option("plan_file", "path", "", _path),
        Option("plan_strict", "true, false", False, _flag),
        Option("cache_dir", "path (the user's cache folder)", "", _path),
        Option("cudnn_library", "path", "", _path),
        Option("only", "implementation names, comma-separated, * allowed", (), _names),
        Option("exclude", "implementation names, comma-separated, * allowed", (), _names),
        Option("errata_file", "path", "", _path),
        _words("verbose", types.Verbose, "none"),
        Option("threads", "auto (the process's processors), or a number", 0, _threads),
        Option("nvtx", "true, false", False, _flag),
    )
}


class Options:
    """The values in force as attributes; ``origin[name]`` is 'default', 'environment NUMBADNN_X', 'set_options' or 'using'.

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
    nvtx: bool
    threads: int

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
    unknown = sorted(n for n in variables if n.upper().startswith("NUMBADNN") and n not in known)
    if not unknown:
        return
    import difflib

    for name in unknown:
        for near in difflib.get_close_matches(name.upper(), known, 1, 0.85):
            warn(f"{name} is not an option and sets nothing: {near} is meant?")


#: the options of the process, once it was asked for them: the environment's, and on top what ``set_options`` set; an attribute,
#: for the hot path
process: Options | None = None
_set: dict[str, Any] = {}


@functools.cache
def from_environment() -> Options:
    """The options as the environment sets them; an unknown ``NUMBADNN_`` option value is a ValueError naming it."""
    values, origin = {}, {}
    _warn_of_misspelt(os.environ)
    for option in OPTIONS.values():
        text = os.environ.get(option.environment)
        if text == "":
            raise ValueError(f"{option.environment}: expected {option.values}, or unset for the default, got ''")
        values[option.name] = option.default if text is None else parse(option.name, text, option.environment)
        origin[option.name] = "default" if text is None else f"environment {option.environment}"
    return _intern(tuple(values.items()), tuple(origin.items()))


def of_process() -> Options:
    """The options in force outside of all blocks of ``using``."""
    global process
    if process is None:
        process = from_environment()
    return process


def set_options(**options: Unpack[OptionValues]) -> Options:
    """Set options for the whole process, all of its threads, until they are set again; None gives one back to the environment.

    ``using`` beats them, and blocks of it that other threads are in keep what they began with. Processes that are started later
    know nothing of them. Raises TypeError for an unknown option and ValueError, with the valid values, for a wrong value.
    Source: docs/explanation/semantics.md#common-rules.

    >>> set_options(fallback="error").fallback, set_options(fallback=None).fallback
    ('error', 'warn')
    """
    global process
    _check_known("set_options", options)
    wanted = {n: v if v is None else parse(n, v, f"set_options({n}=...)") for n, v in options.items()}
    found = {n: v for n, v in {**_set, **wanted}.items() if v is not None}
    base = from_environment().replace(found, dict.fromkeys(found, "set_options"))  # a wrong value of it raises here
    _set.clear()
    _set.update(found)
    process = base
    _using.set(functools.reduce(_set_by, _blocks.get(), base) if _blocks.get() else None)
    return current()


def _check_known(function: str, options: Mapping[str, Any]) -> None:
    unknown = sorted(set(options) - set(OPTIONS))
    if unknown:
        import difflib

        near = difflib.get_close_matches(unknown[0], OPTIONS, 1)
        meant = f" ({near[0]!r} is meant?)" if near else ""
        raise TypeError(f"{function}(): unknown option {unknown[0]!r}{meant}; options are {', '.join(OPTIONS)}")


_using: ContextVar[Options | None] = ContextVar("numbadnn_options", default=None)
#: what each block in force here sets, the innermost last
_blocks: ContextVar[tuple[dict[str, Any], ...]] = ContextVar("numbadnn_blocks", default=())


def current() -> Options:
    """The options in force here and now, in this thread or task."""
    return _using.get() or of_process()


class using(ContextDecorator):
    """Set options for a block of code, in this thread or task only; blocks nest. None sets an option's default.

    A block that has ended can begin again; one that is in force cannot, and a RuntimeError says so. Around the ``yield`` of a
    generator they are in force for whoever runs it too, until the block ends; it ends for the thread or task that ends it, so
    close a generator where it began. It decorates functions too. Without ``with`` nothing is set, and a RuntimeWarning says so;
    ``set_options`` is for the whole process.

    Raises TypeError for an unknown option and ValueError, with the valid values, for a wrong value.

    >>> with using(backend="cpu", workspace_limit="512MiB") as options:
    ...     options.workspace_limit
    536870912
    """

    _begun = True  # until there is something to begin
    _inside = False

    def __init__(self, **options: Unpack[OptionValues]) -> None:
        _check_known("using", options)
        self._values = _parsed(options)
        self._inner = _block(self._values)
        self._begun = False

    def __enter__(self) -> Options:
        if self._inside:
            raise RuntimeError(
                "this block of using() is in force: make another, numbadnn.using(...), to begin one within it"
            )
        self._begun = self._inside = True
        try:
            return self._inner.__enter__()
        except BaseException:
            self._reset()
            raise

    def __exit__(self, *error: Any) -> None:
        try:
            self._inner.__exit__(*error)
        finally:
            self._reset()

    def _reset(self) -> None:
        """The block may begin once more."""
        self._inner, self._inside = _block(self._values), False

    def __call__(self, function: Any) -> Any:
        self._begun = True
        return self._inner(function)

    def __del__(self) -> None:
        if not self._begun and not sys.is_finalizing():
            given = ", ".join(f"{name}=..." for name in self._values)
            warn(
                f"using({given}) sets nothing by itself: write 'with numbadnn.using({given}):', or "
                f"numbadnn.set_options({given}) for the whole process"
            )


def _parsed(options: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: OPTIONS[name].default if value is None else parse(name, value, f"using({name}=...)")
        for name, value in options.items()
    }


@contextmanager
def _block(values: dict[str, Any]) -> Iterator[Options]:
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


def in_force(**values: Any) -> Any:
    """``using`` for values that are parsed already: a block that costs a call little."""
    return _block(values)


def _end(values: dict[str, Any]) -> None:
    """End a block, which need not be the innermost: a generator's may end within one that began later."""
    left = tuple(block for block in _blocks.get() if block is not values)
    _using.set(functools.reduce(_set_by, left, of_process()) if left else None)
    _blocks.set(left)


def _set_by(options: Options, values: dict[str, Any]) -> Options:
    return options.replace(values, dict.fromkeys(values, "using"))
