"""The plans that most operations have: one launch, or several that take what the operation takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbadnn.kernels.build.launch import Kernel, Launch
from numbadnn.kernels.build.simulate import SimulatedLaunch
from numbadnn.registry import BLOCKED, Executable, Summation


def one_launch(
    kernel: Kernel,
    launch: Launch | SimulatedLaunch,
    config: Any,
    arithmetic: str = "ieee",
    determinism: str = "gpu_to_gpu",
    summation: Summation = BLOCKED,
) -> Executable:
    """The plan whose launch takes the inputs in their order, then the result."""

    def run(inputs: tuple[int, ...], outputs: tuple[int, ...], workspace: Any, stream: int) -> None:
        launch(stream, *inputs, outputs[0])

    return Executable(
        run, 0, arithmetic, determinism, {"kernel": kernel.name, "config": config}, launch.direct, summation
    )


def around(
    direct: Callable[..., None],
    facts: dict[str, Any],
    nbytes: int = 0,
    arithmetic: str = "ieee",
    determinism: str = "gpu_to_gpu",
    summation: Summation = BLOCKED,
) -> Executable:
    """The plan of a function (stream, *inputs, *outputs[, workspace of ``nbytes``])."""

    def run(inputs: tuple[int, ...], outputs: tuple[int, ...], workspace: Any, stream: int) -> None:
        direct(stream, *inputs, *outputs, *((workspace,) if nbytes else ()))

    return Executable(run, nbytes, arithmetic, determinism, facts, direct, summation)


def in_turn(terms: int, shares: int = 1) -> Summation:
    """A sum of ``terms`` in ``shares``, each added one term after the other, and then one share after the other.

    Shares are equal but for a step of the product, which is of 64 terms at most.
    """
    return Summation((-(-terms // shares) + (64 if shares > 1 else 1),), "sequence")
