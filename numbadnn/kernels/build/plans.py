"""The plans that most operations have: one launch, or several that take what the operation takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbadnn.kernels.build.launch import Kernel, Launch
from numbadnn.kernels.build.simulate import SimulatedLaunch
from numbadnn.registry import Executable


def one_launch(
    kernel: Kernel,
    launch: Launch | SimulatedLaunch,
    config: Any,
    arithmetic: str = "ieee",
    determinism: str = "gpu_to_gpu",
) -> Executable:
    """The plan whose launch takes the inputs in their order, then the result."""

    def run(inputs: tuple[int, ...], outputs: tuple[int, ...], workspace: Any, stream: int) -> None:
        launch(stream, *inputs, outputs[0])

    return Executable(run, 0, arithmetic, determinism, {"kernel": kernel.name, "config": config}, launch.direct)


def around(
    direct: Callable[..., None],
    facts: dict[str, Any],
    nbytes: int = 0,
    arithmetic: str = "ieee",
    determinism: str = "gpu_to_gpu",
) -> Executable:
    """The plan of a function (stream, *inputs, *outputs[, workspace of ``nbytes``])."""

    def run(inputs: tuple[int, ...], outputs: tuple[int, ...], workspace: Any, stream: int) -> None:
        direct(stream, *inputs, *outputs, *((workspace,) if nbytes else ()))

    return Executable(run, nbytes, arithmetic, determinism, facts, direct)
