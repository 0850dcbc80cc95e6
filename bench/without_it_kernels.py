"""Implementations as they would be if others did not go first, and the files that only one of them needs.

A heuristic may leave a problem to a kernel that is estimated to be faster. What would run without that kernel is seen when
the condition is lifted: a *variant* is an implementation whose heuristic is asked with some of its module's names replaced.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numbadnn
from numbadnn.registry import Impl, implementations

#: too slow to be next best: they take everything
SLOW = ("numba.direct", "numba.corrmm_by_forward", "numba.corrmm_by_grad_inputs", "numba.corrmm_by_grad_weights")
#: the same where products of matrices have one column a group, or a filter a position
SLOW_THERE = {"unshared": ("numba.corrmm",), "line": ("numba.corrmm",), "depthwise": ("numba.corrmm",)}


def _rows(wanted: Callable[[Any], bool]) -> dict[str, Any]:
    """Fewer configurations of ``inputs/rows.py`` to choose from."""

    def candidates(problem: Any) -> list[tuple[float, Any]]:
        from numbadnn.kernels.conv.unshared.inputs import rows_config

        return [(us, c) for us, c in rows_config.candidates.__wrapped__(problem) if wanted(c)]

    return {"candidates": candidates}


#: of a member: implementation, how, module, names of it that are replaced while its heuristic is asked
ASKED: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    ("unshared_inputs_twofold", "first", "inputs.f32x2", {"rank_of_rows": lambda problem, config: float("inf")}),
    ("unshared_inputs_rows", "no prefetching warp", "inputs.rows", _rows(lambda c: not c.prefetched)),
    ("unshared_inputs_rows", "one row at a time", "inputs.rows", _rows(lambda c: c.deep == 1 and not c.prefetched)),
    ("unshared_weights_many", "small filters too", "weights.many", {"ENOUGH_BYTES": 0, "FEWEST_IMAGES": 1}),
)  # fmt: skip


def variants(problem: Any, policy: Any) -> Iterator[Impl]:
    """Those that take the problem in a configuration or by a kernel of their own."""
    taking = {i.name: i for i in implementations(problem.op, ["numba"])}
    for name, how, path, replaced in ASKED:
        impl = taking.get(f"numba.{name}")
        if impl is None or not problem.unshared:
            continue
        module = importlib.import_module(f"numbadnn.kernels.conv.unshared.{path}")
        usual = module.heuristic(problem, policy)
        with patch.multiple(module, **replaced):
            config = module.heuristic(problem, policy)
        if config is not None and config != usual:
            yield _as(impl, how, lambda c=config, m=module: m.plan(problem, policy, c))
    taking = {name: i for name, i in taking.items() if not i.supports(problem, policy)}
    if impl := taking.get("numba.unshared_inputs_rows"):
        yield from _prefetching(impl, problem, policy, "always a prefetching warp", True)
        yield from _prefetching(impl, problem, policy, "never a prefetching warp", False)
    yield from _pools(problem, policy, taking)
    for name in ("numba.spatial_channels", "numba.spatial_staged"):
        if name in taking and problem.op == "spatialtf_sampler_grad":
            yield _as(taking[name], "no stripes", lambda i=taking[name]: _without_stripes(i, problem, policy))


def _prefetching(impl: Impl, problem: Any, policy: Any, how: str, always: bool) -> Iterator[Impl]:
    """``inputs/rows.py`` with a warp that prefetches everywhere, or nowhere, in whatever tiles that takes."""
    from numbadnn.kernels.conv.unshared.inputs import rows, rows_config

    def all_alike() -> Any:
        return patch.object(rows_config.RowsConfig, "prefetched", always)

    def candidates(problem: Any) -> list[tuple[float, Any]]:
        return rows_config.candidates.__wrapped__(problem)

    usual = rows.heuristic(problem, policy)
    with all_alike(), patch.object(rows, "candidates", candidates):
        config = rows.heuristic(problem, policy)
    if config is None or (config == usual and usual.prefetched == always):
        return

    def make() -> Any:
        with all_alike():
            return rows.plan(problem, policy, config)

    yield _as(impl, how, make)


def _as(impl: Impl, how: str, make: Callable[[], Any]) -> Impl:
    return dataclasses.replace(impl, name=f"{impl.name} ({how})", plan=lambda *a: make(), space=None, complete=False)


def _pools(problem: Any, policy: Any, taking: dict[str, Impl]) -> Iterator[Impl]:
    """Maxima of 16-bit numbers one by one where two go together."""
    from numbadnn.kernels.pool import tiles, walk

    if impl := taking.get("numba.pool_argmax"):
        first, *rest = walk.space(problem)
        if first.paired:
            made = walk.config(problem, first.lanes, max(1, first.spread // 2), first.drop, first.ahead)
            config = next((c for c in rest if not c.paired), made)
            yield _as(impl, "one by one", lambda: impl.plan(problem, policy, config))
    if problem.op == "pool" and problem.is_max and problem.x.itemsize == 2 and "numba.pool_tiles" in taking:
        impl = taking["numba.pool_tiles"]
        yield _as(impl, "one by one", lambda: _with(tiles, {"ITEMSIZE": {problem.x.dtype: 4}}, impl, problem, policy))


def _without_stripes(impl: Impl, problem: Any, policy: Any) -> Any:
    """Records of points in bins by several launches where one does it."""
    from numbadnn.kernels.spatial import bins, gradients

    with patch.object(bins, "rows_a_stripe", lambda problem: 0):
        return _with(gradients, {"rows_a_stripe": lambda problem: 0}, impl, problem, policy)


def _with(module: Any, replaced: dict[str, Any], impl: Impl, problem: Any, policy: Any) -> Any:
    with patch.multiple(module, **replaced):
        return impl.plan(problem, policy, None)


# ---- files

PACKAGE = Path(numbadnn.__file__).parent
#: implementation -> the modules that are deleted with it
HOSTS = {
    **{f"unshared_{stem}": (f"conv.unshared.forward.{stem}",) for stem in ("places_stream", "box")},
    "unshared_halves": ("conv.unshared.forward.f16",), "unshared_weights_halves": ("conv.unshared.weights.f16",),
    "unshared_weights_many": ("conv.unshared.weights.many",),
    "unshared_twofold": ("conv.unshared.forward.f32x2",), "unshared_inputs_twofold": ("conv.unshared.inputs.f32x2",),
    "unshared_inputs_rows": ("conv.unshared.inputs.rows",),
    **{f"line_{stem}": (f"conv.line.{stem}",) for stem in (
        "toeplitz", "channels", "boxes", "dense")},
    "line_octets": ("conv.line.vectors",), "line_halves": ("conv.line.f16",), "line_twofold": ("conv.line.f32x2",),
    "depthwise": ("conv.depthwise.depthwise",), "depthwise_rows": ("conv.depthwise.rows",),
    "first_layer": ("conv.image.first_layer",), "to_image": ("conv.image.to_image",),
    "to_image_halves": ("conv.image.to_image_halves",), "grouped_halves": ("conv.grouped.grouped",),
    "implicit_gemm": ("conv.implicit.gemm",), "implicit_tiles": ("conv.tiles.tiles",), "corrmm": ("conv.corrmm.corrmm",),
    "pool_argmax": ("pool.walk",), "pool_tiles": ("pool.tiles",),
    "spatial_staged": ("spatial.device.staged", "spatial.device.gather_staged"),
    "spatial_channels": ("spatial.device.gather_channels",),
    **{f"softmax_{stem}": (f"softmax.{stem}",) for stem in ("rows", "long", "channels", "tiles")},
    **{f"norm_{stem}": (f"norm.{stem}",) for stem in ("planes", "columns")},
    **{f"upsample_{stem}": (f"upsample.device.{stem}",) for stem in ("planes", "channels")},
}  # fmt: skip
#: parts of an implementation -> it, what runs without the part ("": others), the problems, the modules
PARTS: dict[str, tuple[str, str, str, tuple[str, ...]]] = {
    "unshared_inputs_rows, prefetching warp": (
        "unshared_inputs_rows", "no prefetching warp", "", ("conv.unshared.inputs.device.prefetched",)),
    "unshared_inputs_rows, prefetching warp in any tiles": (
        "unshared_inputs_rows", "never a prefetching warp", "", ("conv.unshared.inputs.device.prefetched",)),
    "unshared_inputs_rows, rows at a time": (
        "unshared_inputs_rows", "one row at a time", "", ("conv.unshared.inputs.device.prefetched",)),
    "unshared_inputs_rows, no prefetching warp": (
        "unshared_inputs_rows", "always a prefetching warp", "", ()),
    "unshared_inputs_rows, 32 bits": ("unshared_inputs_rows", "", "float32", ("conv.unshared.inputs.device.rows_single",)),
    "unshared_inputs_rows, 16 bits": ("unshared_inputs_rows", "", "float16", ("conv.unshared.inputs.device.rows_f16",)),
    "grouped_halves, weights": ("grouped_halves", "", "grad_wrt_weights", ("conv.grouped.weights",)),
    "implicit_gemm, weights": ("implicit_gemm", "", "grad_wrt_weights", ("conv.implicit.weights",)),
    "pool_argmax, pairs": (
        "pool_argmax", "one by one", "", tuple(f"pool.device.{m}" for m in ("walk_pairs", "pairs_chain", "pairs_words"))),
    "pool_tiles, pairs": ("pool_tiles", "one by one", "", ("pool.device.pairs",)),
    "spatial, stripes": ("spatial_*", "no stripes", "", ("spatial.device.stripe",)),
}  # fmt: skip


def lines_of(names: Iterable[str]) -> int:
    """Lines of the files that are needed by none of the kernels that are left without these."""
    gone = {f"numbadnn.kernels.{m}" for n in names for m in (PARTS[n][3] if n in PARTS else HOSTS.get(n, ()))}
    graph = _imports()
    lost = _reached(graph, set()) - _reached(graph, gone)
    return sum(len(_files()[name].read_text().splitlines()) for name in lost)


def _reached(graph: dict[str, set[str]], without: set[str]) -> set[str]:
    found: set[str] = set()
    todo = [name for name in graph if re.fullmatch(r"numbadnn\.kernels\.(\w+)\.\1", name)]
    while todo:
        name = todo.pop()
        if name not in found and name not in without:
            found.add(name)
            todo += graph[name]
    return found


@functools.cache
def _files() -> dict[str, Path]:
    every = (PACKAGE / "kernels").rglob("*.py")
    return {
        ".".join(("numbadnn", *p.relative_to(PACKAGE).with_suffix("").parts)): p for p in every if p.stem != "__init__"
    }


@functools.cache
def _imports() -> dict[str, set[str]]:
    """Module of kernels/ -> those it imports, lazily or by a text "device module.function" (``Kernel.of``)."""
    files = _files()
    found: dict[str, set[str]] = {name: set() for name in files}
    for name, path in files.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                found[name] |= {node.module, *(f"{node.module}.{a.name}" for a in node.names)} & files.keys()
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and ".device." in node.value:
                prefix = f"numbadnn.kernels.{node.value.rpartition('.')[0]}"
                found[name] |= {
                    other for other in files if other == prefix or other.startswith(f"numbadnn.kernels.{node.value}")
                }
    return found
