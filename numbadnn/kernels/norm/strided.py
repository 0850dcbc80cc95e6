"""``numba.norm_strided``: batch normalization over any strides, dtypes and sizes. The host side of ``device/strided.py``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from numbadnn.kernels.build.arguments import Arguments
from numbadnn.kernels.build.frozen import dataclass
from numbadnn.kernels.build.launch import Kernel, blocks
from numbadnn.kernels.build.support import LEAF, LIMIT32
from numbadnn.kernels.norm.layout import Axis, accumulator, layout_of
from numbadnn.problems.norm import TEST, TRAIN, NormProblem


@dataclass(frozen=True, slots=True)
class StridedConfig:
    """``lanes`` channels a block, ``parts`` threads each; ranks of the kept and the reduced axes; 64-bit indices or not.

    ``long``, which follows from the problem: a thread adds more than LEAF terms, with account of what it rounds off.
    """

    kept: int
    reduced: int
    wide: bool
    lanes: int
    parts: int
    long: bool = False


def heuristic(problem: NormProblem) -> StridedConfig:
    """256 threads a block, more to a channel the longer it is."""
    layout = layout_of(problem)
    reach = max(layout.channels, layout.averaged, *(abs(end) for s in layout.data for end in s.span))
    parts = 1
    while parts < 256 and parts * 4 <= layout.averaged:
        parts *= 2
    return StridedConfig(len(layout.kept), max(len(layout.reduced), 1), reach >= LIMIT32, 256 // parts, parts)


def prepare(problem: NormProblem, config: StridedConfig) -> tuple[Any, ...]:
    """(kernel, grid, threads, scalars)."""
    layout, acc = layout_of(problem), accumulator(problem)
    config = replace(config, long=layout.averaged > LEAF * config.parts)
    count = len(layout.data)
    reduced = layout.reduced or (Axis(1, tuple(0 for _ in layout.data)),)
    data = [tuple(a.strides[i] for a in axes) for i in range(count) for axes in (layout.kept, reduced)]
    # parameters in one flat tuple; of a training pass without running averages those stay 0
    parameters = [tuple(a.strides[count + i] for a in layout.kept) for i in range(len(layout.parameters))]
    dtypes = [s.dtype for s in (*problem.inputs, *problem.outputs)]
    if problem.op == TRAIN and not problem.running:
        nothing = tuple(0 for _ in layout.kept)
        parameters = [*parameters[:2], nothing, nothing, *parameters[2:], nothing, nothing]
        dtypes = [*dtypes[:3], *[dtypes[1]] * 2, *dtypes[3:], *[dtypes[1]] * 2]
    flat = tuple(s for strides in parameters for s in strides)
    m, f = layout.averaged, problem.factor
    unbiased = m / (m - 1) if m > 1 else 1.0
    chosen = kernel(problem.op, tuple(dtypes), acc, problem.running, config)
    facts = {
        "averaged": float(m),
        "epsilon": problem.epsilon,
        "kept_share": 1 - f,
        "mean_share": f,
        "var_share": f * unbiased,
        **dict(zip(_walked(problem.op), data, strict=True)),
    }
    scalars = chosen.values(
        facts,
        channels=layout.channels,
        length=m,
        kept_n=tuple(a.n for a in layout.kept),
        reduced_n=tuple(a.n for a in reduced),
        strides=flat,
    )
    return chosen, blocks(layout.channels, config.lanes), config.lanes * config.parts, scalars


def _walked(op: str) -> list[str]:
    """The strides of each operand that is as large as x, along the axes that are kept and those that are reduced."""
    large = ("x", "dy", "dx") if op.endswith("_grad") else ("x", "y")
    return [f"{name}_{axes}" for name in large for axes in ("kept", "reduced")]


def kernel(op: str, dtypes: tuple[str, ...], acc: str, running: bool, config: StridedConfig) -> Kernel:
    """The kernel of one configuration; ``dtypes`` of every operand, in order."""
    kept, reduced = config.kept, config.reduced
    i, real = "i64" if config.wide else "i32", "f64" if acc == "float64" else "f32"
    walked = _walked(op)
    reals = {TRAIN: "averaged epsilon kept_share mean_share var_share", TEST: "epsilon"}.get(op, "averaged epsilon")
    parameters = Arguments(
        *(
            f"ptr:{len(dtypes)}",
            f"{real} {reals}",
            f"{i} channels length",
            f"{i}*{kept} kept_n",
            f"{i}*{reduced} reduced_n",
        ),
        *(f"i64*{kept if name.endswith('_kept') else reduced} {name}" for name in walked),
        f"i64*{(len(dtypes) - len(walked) // 2) * kept} strides",
    )
    name = op.removeprefix("batch_normalization_").replace("test", "infer")
    arguments = (dtypes, acc, running, config)
    return Kernel.of(f"norm_{name}_strided", f"norm.device.strided.{name}", arguments, parameters, 256)
