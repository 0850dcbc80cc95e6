"""Theano's flags: ``numbadnn.theano.config.dnn.conv.algo_fwd`` and its neighbours, for the operations of this package.

They are read by each call; one that is not set, or was set to None or deleted, is the option in force (``using``,
``NUMBADNN_ALGO_FWD`` ...). Values are Theano's, and an unknown one is a ValueError that lists them; flags that Theano had removed
raise its RuntimeError. One default differs: no algorithm is named ("auto"), so that the dispatcher chooses, where Theano's were
'small' forwards and the non-deterministic 'none' backwards. Source: docs/explanation/semantics.md#theanos-flags.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import types
from collections.abc import Iterator
from typing import Any

from numbadnn.config import current, using
from numbadnn.ops.conv_build import named

ENABLED = ("auto", "True", "False", "no_check")
FLOATS = ("float64", "float32", "float16")


class _Flag:
    """An attribute that takes what ``parse`` admits; ``flag`` is Theano's name of it."""

    def __init__(self, flag: str, option: str) -> None:
        self.flag, self.option = flag, option

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = "_" + name

    def __get__(self, instance: Any, owner: type) -> Any:
        return self if instance is None else getattr(instance, self.name, getattr(current(), self.option))

    def __set__(self, instance: Any, value: Any) -> None:
        named(self.flag, self.option, value)
        if value is None:
            self.__delete__(instance)
        else:
            setattr(instance, self.name, value)

    def __delete__(self, instance: Any) -> None:
        vars(instance).pop(self.name, None)


class _Removed:
    """A flag that Theano had removed: reading gives "", setting anything else raises its RuntimeError."""

    def __init__(self, flag: str, instead: str) -> None:
        self.flag, self.instead = flag, instead

    def __get__(self, instance: Any, owner: type) -> Any:
        return ""

    def __set__(self, instance: Any, value: Any) -> None:
        if value:
            raise RuntimeError(f"The Theano flag `{self.flag}` has been removed. Use the flag {self.instead} instead.")


class _Flags:
    """What holds flags: another name is an AttributeError, as in Theano, and not a flag that sets nothing."""

    _of = ""

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_") and not hasattr(type(self), name):
            known = [n for n in dir(type(self)) if not n.startswith("_")]
            raise AttributeError(f"{self._of}.{name} is not a flag: expected one of {', '.join(known)}")
        super().__setattr__(name, value)


class _Conv(_Flags):
    """``config.dnn.conv``."""

    _of = "dnn.conv"

    def _given(self, flag: str) -> Any:
        """What the flag was set to; None where the option in force is to decide."""
        return getattr(self, "_" + flag, None)

    algo_fwd = _Flag("dnn.conv.algo_fwd", "algo_fwd")
    algo_bwd_data = _Flag("dnn.conv.algo_bwd_data", "algo_bwd_data")
    algo_bwd_filter = _Flag("dnn.conv.algo_bwd_filter", "algo_bwd_filter")
    precision = _Flag("dnn.conv.precision", "precision")
    algo_bwd = _Removed("dnn.conv.algo_bwd", "`dnn.conv.algo_bwd_filter` and `dnn.conv.algo_bwd_data`")
    workmem = _Removed("dnn.conv.workmem", "`dnn.conv.algo_fwd`")
    workmem_bwd = _Removed("dnn.conv.workmem_bwd", "`dnn.conv.algo_bwd_filter` and `dnn.conv.algo_bwd_data`")


class _Dnn(_Flags):
    """``config.dnn``; ``enabled``: auto and no_check (cuDNN where it can), True (an error where it cannot), False (never).

    One document calls it ``enable``.
    """

    _of = "dnn"

    def __init__(self) -> None:
        self._conv = _Conv()
        self._enabled = "auto"

    @property
    def conv(self) -> _Conv:
        return self._conv

    @property
    def enabled(self) -> str:
        return self._enabled

    @enabled.setter
    def enabled(self, value: Any) -> None:
        if str(value) not in ENABLED:
            raise ValueError(f"dnn.enabled: expected one of {', '.join(ENABLED)}, got {value!r}")
        self._enabled = str(value)

    enable = enabled


dnn = _Dnn()
floatX: str  # a property of the module, as openmp is


class _Module(types.ModuleType):
    """This module; a flag that checks its value, or that is not one of its own, has to be a property of a class.

    ``dnn__conv__algo_fwd`` is ``dnn.conv.algo_fwd``, and so on: the later document's spelling.
    """

    _floatX = FLOATS[0]

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("dnn__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return functools.reduce(getattr, name.split("__"), self)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "dnn":
            raise AttributeError(
                f"dnn holds flags, and is none: expected dnn.enabled or one of dnn.conv, got {value!r}"
            )
        if not name.startswith("dnn__"):  # Theano's other flags mean nothing here, and change nothing
            return super().__setattr__(name, value)
        *owner, flag = name.split("__")
        return setattr(functools.reduce(getattr, owner, self), flag, value)

    def __delattr__(self, name: str) -> None:
        if not name.startswith("dnn__"):
            return super().__delattr__(name)
        *owner, flag = name.split("__")
        return delattr(functools.reduce(getattr, owner, self), flag)

    @property
    def floatX(self) -> str:
        """The dtype of arrays that a function makes of no other array: the bilinear kernels. Arrays given keep their own."""
        return self._floatX

    @floatX.setter
    def floatX(self, value: Any) -> None:
        if value not in FLOATS:
            raise ValueError(f"floatX: expected one of {', '.join(FLOATS)}, got {value!r}")
        self._floatX = str(value)

    @property
    def openmp(self) -> bool:
        """Whether the CPU backend uses more than one thread; setting it sets Numba's number of threads."""
        import numba

        from numbadnn.cpu.lang.parallel import start_threads

        start_threads()
        return int(numba.get_num_threads()) > 1

    @openmp.setter
    def openmp(self, value: Any) -> None:
        import numba

        from numbadnn.cpu.lang.parallel import start_threads

        start_threads()
        numba.set_num_threads(numba.config.NUMBA_NUM_THREADS if value else 1)


sys.modules[__name__].__class__ = _Module


@contextlib.contextmanager
def cudnn_first() -> Iterator[None]:
    """The options that the cuDNN operations of this package run under: ``using(backend="cudnn")``, as dnn.enabled says."""
    options: dict[str, Any] = {"backend": "cudnn"}
    if dnn.enabled == "True":
        options["fallback"] = "error"
    elif dnn.enabled == "False":  # not as a list of the others: the second of it would be a fallback, to be warned of
        options = {"backend": "auto", "exclude": (*current().exclude, "cudnn.*")}
    with using(**options):
        yield
