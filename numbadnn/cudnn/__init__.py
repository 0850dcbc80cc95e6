"""cuDNN by our own ctypes binding: present or not, which version, and the operations it computes.

Importing this loads nothing; ``available()`` and ``version()`` look for the library on first use.
"""

from __future__ import annotations

from typing import NamedTuple

from numbadnn.errors import BackendUnavailableError


class Availability(NamedTuple):
    """True or false, with the reason where false."""

    usable: bool
    reason: str = ""

    def __bool__(self) -> bool:
        return self.usable


def available(explicit: str | None = None) -> Availability:
    """Whether a cuDNN 9 library can be loaded here; false carries ``.reason`` with every place that was searched.

    The GPU is not asked. ``explicit`` is a path to use instead of searching (default: the option ``cudnn_library``).

    >>> from numbadnn import cudnn
    >>> bool(cudnn.available("/no/such/libcudnn.so.9"))
    False
    """
    from numbadnn.cudnn import lib

    try:
        lib.load(explicit)
    except BackendUnavailableError as error:
        return Availability(False, str(error))
    return Availability(True)


def version(raises: bool = True, explicit: str | None = None) -> int:
    """The version of the loaded cuDNN, major * 10000 + minor * 100 + patch: 91900 is 9.19.0.

    Absent: -1 with ``raises=False``, else BackendUnavailableError (a RuntimeError). RuntimeError where the
    ``cudnn_version.h`` beside the library states another version than the library itself.

    >>> from numbadnn import cudnn
    >>> cudnn.version(raises=False) == -1 or cudnn.version() >= 90000
    True
    """
    from numbadnn.cudnn import _find, lib

    try:
        library = lib.load(explicit)
    except BackendUnavailableError:
        if raises:
            raise
        return -1
    header = _find.header_version(library.path)
    if header is not None and header != library.version:
        raise RuntimeError(
            f"cuDNN at {library.path} is version {library.version}, but the cudnn_version.h beside it states {header}: "
            "two installations are mixed"
        )
    return library.version
