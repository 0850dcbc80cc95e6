"""Which problems are run under compute-sanitizer: as few as launch every kernel of ours, in every type that it is made for.

What a problem launches is asked without a GPU (``recorded_cuda``). ``needed()`` goes through the contract's cases, the
configurations of ``simulated_unshared`` and some problems more, from the least work to the most, and keeps what launches
something new. A kernel is known by the words its name begins with, and its first type.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import simulated_unshared
from recorded_cuda import DEVICES, installed

from numbadnn import cases
from numbadnn.kernels import all_kernels
from numbadnn.kernels.build.launch import Kernel
from numbadnn.kernels.copies import copy as copies
from numbadnn.problem import ITEMSIZE, Policy
from numbadnn.registry import implementations

#: problems whose kernels no case of the contract launches
MORE = (
    "batch_normalization_test x=bfloat16:32x8x7x7 mode=spatial epsilon=0.0001",
    "batch_normalization_train x=float32:64x256x14x14 mode=spatial epsilon=0.0001",
    "causal_conv1d x=float16:1x2x1x12 w=float16:5x2x1x5 pad=0,0,12,0 dilation=1,3 flip=0",
    "conv2d_grad_wrt_weights x=float16:5x1x7x1 w=float16:2x1x1x1 y=float16:5x2x7x1:nhwc stride=1,2 dilation=1,2 flip=0",
    "conv2d_grad_wrt_weights x=float32:65537x1x3x3 w=float32:2x1x2x2 pad=1,1,1,1",
    "pool_grad x=float32:1x1x16x16 window=11x11 stride=4x4 mode=max",
    "spatialtf_grid_grad dgrid=float16:32x112x112x2",
    "spatialtf_grid_grad dgrid=float32:32x112x112x2",
    "spatialtf_sampler_grad img=float32:1x1x56x56 grid=float32:1x224x224x2 dy=float32:1x1x224x224",
)
_NUMBER = re.compile(r"-?\d|True|False|i32|i64")


class Candidate(NamedTuple):
    """A problem, who is to compute it, and in which configuration (None: its own choice, if it takes the problem)."""

    line: str
    impl: str
    config: Any = None

    @property
    def problem(self) -> Any:
        return cases.parse(self.line)


def candidates() -> Iterator[Candidate]:
    """All there are, in an order that is always the same."""
    single, transposed, several = (simulated_unshared.SINGLE, simulated_unshared.TRANSPOSED, simulated_unshared.SEVERAL)
    listed = [(c, "float32") for c in (*single, *transposed)] + [
        (c, t) for c in several for t in ("float16", "bfloat16")
    ]
    for (op, text, config), dtype in listed:
        if config is not None:
            line = str(cases.parse(f"{op} {text.format(t=dtype)}"))
            yield Candidate(line, simulated_unshared.name_of(config), config)
    for line in (*MORE, *(case.text for case in cases.find(["contract"]))):
        for impl in implementations(line.split()[0]):
            if impl.backend == "numba":
                yield Candidate(line, impl.name)


def known(name: str) -> str:
    """What a kernel's name says of which one it is: its first words, and the first type.

    >>> known("unshared box forward float32 8 4 4"), known("gemm_tiles float16 float32 64 64")
    ('unshared box forward float32', 'gemm_tiles float16')
    """
    words: list[str] = []
    for word in name.split():
        if _NUMBER.match(word):
            break
        words.append(word)
        if word in ITEMSIZE:
            break
    return " ".join(words)


def launched(candidate: Candidate, policy: Policy) -> set[str]:
    """The kernels that a candidate's plan loads, where ``needed`` looks on; none where it is refused."""
    (impl,) = (i for i in implementations(candidate.line.split()[0]) if i.name == candidate.impl)
    problem = candidate.problem
    if candidate.config is None and impl.supports(problem, policy):
        return set()
    _loaded.clear()
    impl.plan(problem, policy, candidate.config)
    return set(_loaded)


_loaded: set[str] = set()


def needed() -> tuple[list[int], list[str]]:
    """The numbers of the candidates to run, the least work first, and the kernels that none of them launches.

    Copies and scaling, which go with any problem, are run by themselves (``sanitize.run_copies``).
    """
    policy, real = Policy(device=next(iter(DEVICES))), Kernel.load

    def load(kernel: Kernel, device: int) -> int:
        _loaded.add(known(kernel.name))
        return real(kernel, device)

    listed = list(candidates())
    work = [_work(c.problem) for c in listed]
    chosen, seen = (
        [],
        {known(kernel.name) for kernel in copies.kernels() if kernel.name.startswith(("copy", "scale", "fill"))},
    )
    with installed(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Kernel, "load", load)
        for number in sorted(range(len(listed)), key=work.__getitem__):
            found = launched(listed[number], policy)
            if found - seen:
                chosen.append(number)
                seen |= found
    return chosen, sorted({known(kernel.name) for kernel in all_kernels()} - seen)


def _work(problem: Any) -> int:
    return int(max(problem.flops, *(s.size for s in (*problem.inputs, *problem.outputs))))
