"""Streams: what ``stream=`` may be, and ordering one stream after another without stopping the host."""

from __future__ import annotations

import collections
import functools
from typing import Any

from numbadnn.gpu.bindings import check, driver, lasting_streams


def handle(stream: Any) -> int:
    """The raw CUstream of anything that names a stream.

    An int, an object with ``__cuda_stream__``, a CuPy stream (``ptr``), a PyTorch stream (``cuda_stream``) or a Numba
    stream (``handle``). Raises TypeError for anything else.
    """
    if isinstance(stream, int) and not isinstance(stream, bool):
        return stream
    raw = _raw(stream)
    if type(stream).__module__ == "torch.cuda.streams" and type(stream).__name__ == "Stream":
        lasting_streams.add(raw)  # of PyTorch's pool, which gives none back; an ExternalStream is somebody else's
    return raw


def _raw(stream: Any) -> int:
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        return int((protocol() if callable(protocol) else protocol)[1])
    for name in ("cuda_stream", "ptr", "handle"):
        value = getattr(stream, name, None)
        if value is not None:
            return int(getattr(value, "value", value) or 0)
    raise TypeError(
        f"stream: expected None, an int, an object with __cuda_stream__, or a CuPy, PyTorch or Numba stream, "
        f"got {type(stream).__module__}.{type(stream).__qualname__}"
    )


class Raw:
    """A raw handle as an object with ``__cuda_stream__``, for libraries that take one."""

    def __init__(self, stream: int) -> None:
        self._stream = stream

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._stream


#: the default stream's two handles
LEGACY = (0, 1)


def wait(waiting: int, first: int, device: int) -> None:
    """Work enqueued on ``waiting`` from now on runs after the work enqueued on ``first`` until now."""
    if waiting == first or (waiting in LEGACY and first in LEGACY):
        return
    from numbadnn.gpu.context import ensure_context

    d = driver()
    with ensure_context(device):  # events belong to the context they are made in, and so does the default stream
        event = check(d.cuEventCreate(d.CUevent_flags.CU_EVENT_DISABLE_TIMING))
        try:
            check(d.cuEventRecord(event, first))
            check(d.cuStreamWaitEvent(waiting, event, 0))
        finally:
            d.cuEventDestroy(event)  # destroyed once complete: it may still be pending


#: (event, owner) of work that may still read or write what the owner keeps; the oldest first
_held: collections.deque[tuple[Any, Any]] = collections.deque()
#: what CUDA graphs were captured with
_captured: list[Any] = []


def hold(owner: Any, stream: int, device: int) -> None:
    """Keep ``owner`` until the work now on ``stream`` is done.

    Nobody waits for that. It is looked at in the next call of this kind and in ``numbadnn.clear_caches()``, as PyTorch's
    allocator looks at what was recorded when it is asked for memory.
    """
    from numbadnn.gpu.context import ensure_context

    d = driver()
    with ensure_context(device):
        let_go()
        event = check(d.cuEventCreate(d.CUevent_flags.CU_EVENT_DISABLE_TIMING))
        check(d.cuEventRecord(event, stream))
    _held.append((event, owner))


def let_go() -> None:
    """Drop what was held for work that is done. An owner's end may lead back here, and other threads may be here too."""
    while _held:
        try:
            event, owner = _held.popleft()
        except IndexError:
            return
        d = driver()
        if d.cuEventQuery(event)[0] == d.CUresult.CUDA_ERROR_NOT_READY:
            _held.appendleft((event, owner))
            return
        d.cuEventDestroy(event)
        del owner


def keep(owner: Any) -> None:
    """Keep ``owner`` as long as the process lives: a CUDA graph that was captured with it may be replayed at any time."""
    _captured.append(owner)


def is_capturing(stream: int) -> bool:
    """Whether a CUDA graph is being captured on this stream; never on the legacy default one, of which nobody is asked."""
    if stream in LEGACY:
        return False
    d = driver()
    status, state = d.cuStreamIsCapturing(stream)
    return status == 0 and state != d.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE


@functools.cache
def own(device: int) -> int:
    """Our stream on a device, for libraries that say nothing of theirs (JAX)."""
    return lasting(device)


def lasting(device: int) -> int:
    """A new stream that is never destroyed. It is non-blocking: no work on the default stream waits for it, nor it for that."""
    from numbadnn.gpu.context import ensure_context

    d = driver()
    with ensure_context(device):
        stream = int(check(d.cuStreamCreate(d.CUstream_flags.CU_STREAM_NON_BLOCKING)))
    lasting_streams.add(stream)
    return stream
