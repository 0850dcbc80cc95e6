"""torch.compile around numbadnn's functions: each call breaks the graph once, and none of our code is traced.

The compiler reads two things. An attribute of a function says that it must not be inlined; a mark on its code says that
neither it nor what it calls is looked at when it runs. The mark needs PyTorch. It is set when PyTorch's compiler is first
imported, which is before it sees any function, so that importing numbadnn imports no PyTorch and the order does not matter.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import CodeType, FunctionType
from typing import Any

_REASON = "numbadnn's functions compute at once and are no part of a graph: numbadnn.torch has those that are"
_COMPILER = "torch._dynamo"
_codes: list[CodeType] = []


def leave_out(what: Iterable[Any]) -> None:
    """Keep torch.compile out of these functions and the methods of these classes; anything else is passed over."""
    for thing in what:
        for function in vars(thing).values() if isinstance(thing, type) else (thing,):
            if isinstance(function, FunctionType) and function.__module__.startswith("numbadnn"):
                function._torchdynamo_disable = True  # type: ignore[attr-defined]
                function._torchdynamo_disable_msg = _REASON  # type: ignore[attr-defined]
                _codes.append(function.__code__)
    if _COMPILER in sys.modules:
        _mark()


def _mark() -> None:
    """Have what runs from these functions run as it is. PyTorch before 2.7 has no such mark: it follows, but breaks too."""
    import torch

    frames = torch._C._dynamo.eval_frame
    if hasattr(frames, "set_code_exec_strategy"):
        as_it_is = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.SKIP)
        for code in _codes:
            frames.set_code_exec_strategy(code, as_it_is)


class _BeforeCompiler:
    """Asked for each module that is not imported yet; it finds none."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name == _COMPILER:
            _mark()


if _COMPILER not in sys.modules:
    sys.meta_path.insert(0, _BeforeCompiler())
