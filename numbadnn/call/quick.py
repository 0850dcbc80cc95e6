"""The warm call of a plan in the common case: a closure in which everything is looked up beforehand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def quick(plan: Any, last: list[Any]) -> Callable[..., Any] | None:
    """``launch`` for the common case, everything looked up beforehand: new outputs on the GPU, the current stream.

    Takes the addresses of the inputs, then the operation's words. ``last``: where the thread keeps its last plan.
    """
    executable, library, device = plan.executable, plan._library, plan.device
    direct = executable.direct
    watched = plan._verbose not in ("none", "quiet") or plan._ranged
    if device < 0 or watched or library.finish or direct is None or plan._allocate is None:
        return None
    makes, address_of, stream = plan._allocate, library.address_on_gpu or library.address, library.current_stream
    make, nbytes, scratch, shared = makes[0], executable.workspace_bytes, library.scratch, plan.shared

    def one(a: int) -> Any:
        result = make()
        direct(stream(device), a, address_of(result))
        last[0] = plan
        return result

    def two(a: int, b: int) -> Any:
        result = make()
        direct(stream(device), a, b, address_of(result))
        last[0] = plan
        return result

    # an own kernel: the same with its compiled function called from here
    shim: Any
    recover: Any
    shim, record, recover = getattr(direct, "parts", (None, 0, None))

    def kernel_of_one(a: int) -> Any:
        result = make()
        raw, out = stream(device), address_of(result)
        status = shim(record, raw, a, out, 0)
        if status:
            recover(status, record, raw, a, out, 0)
        last[0] = plan
        return result

    def kernel_of_two(a: int, b: int) -> Any:
        result = make()
        raw, out = stream(device), address_of(result)
        status = shim(record, raw, a, b, out)
        if status:
            recover(status, record, raw, a, b, out)
        last[0] = plan
        return result

    def with_workspace(*arguments: int) -> Any:
        result, raw = make(), stream(device)
        try:
            space, workspace = scratch(nbytes, device, raw)
        except Exception as error:
            del result
            return plan.smaller(error)._again(arguments)
        direct(raw, *arguments, address_of(result), workspace)
        last[0] = plan
        return result

    def several(*arguments: int) -> Any:
        results, raw = tuple([make() for make in makes]), stream(device)
        try:
            space, workspace = scratch(nbytes, device, raw) if nbytes else (None, 0)
        except Exception as error:
            del results
            return plan.smaller(error)._again(arguments)
        addresses = [address_of(r) for r in results]
        for number in shared:
            addresses.append(arguments[number])
        if nbytes:
            addresses.append(workspace)
        direct(raw, *arguments, *addresses)
        last[0] = plan
        return results if len(results) > 1 else results[0]

    if len(makes) > 1:
        return several
    if nbytes:
        return with_workspace
    if hasattr(plan.problem, "words"):
        return several
    plain = {1: kernel_of_one, 2: kernel_of_two} if shim else {1: one, 2: two}
    return plain.get(len(plan.problem.inputs), several)
