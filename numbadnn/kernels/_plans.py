"""The plan that most operations have: one launch."""

from __future__ import annotations

from typing import Any

from numbadnn.kernels._launch import Kernel, Launch
from numbadnn.kernels.simulate import SimulatedLaunch
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
