"""cuda.bindings' driver API, imported when first asked for, with errors for what it returns; streams that last."""

from __future__ import annotations

import functools
from typing import Any

from numbadnn.errors import BackendUnavailableError, NumbaDNNError


@functools.cache
def driver() -> Any:
    """The module cuda.bindings.driver, initialised."""
    try:
        from cuda.bindings import driver as module

        status = module.cuInit(0)
    except Exception as error:  # no cuda-bindings, or no driver that it can find
        raise BackendUnavailableError(f"arrays on a GPU need CUDA's driver and cuda-bindings: {error}") from error
    check(status)
    return module


def check(result: tuple[Any, ...]) -> Any:
    """The value of a driver call, or NumbaDNNError with the driver's name for what went wrong."""
    status, *values = result
    if status != 0:
        from numbadnn.gpu import driver as _driver

        raise NumbaDNNError(f"CUDA driver: {status.name} ({int(status)}){_driver.aftermath(int(status))}")
    return values[0] if len(values) == 1 else tuple(values)


#: streams that live as long as the process: what was freed on one may be given out again there without the driver
lasting_streams = {0}
