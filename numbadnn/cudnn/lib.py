"""The one libcudnn of the process: loaded on first use, with its prototypes, its errors and its handles.

``load()`` gives the ``Library`` or raises BackendUnavailableError with the whole search trail. Handles belong to one
thread and one device (cuDNN's are not to be used by two threads at once) and go back to a pool when the thread ends.
Nothing of cuDNN is ever destroyed at interpreter exit: the CUDA driver may be gone by then.
"""

from __future__ import annotations

import _ctypes
import ctypes
import os
import threading
from dataclasses import dataclass, field
from typing import Any

from numbadnn import config
from numbadnn.cudnn import _find
from numbadnn.cudnn._prototypes import PROTOTYPES
from numbadnn.errors import BackendUnavailableError, CudnnError, is_passing

MAJOR = 9
#: thousands of the statuses that a failed execution has
_EXECUTION_FAILED = 5


@dataclass(slots=True)
class Library:
    """A loaded libcudnn: ``call`` checks, ``address`` is for compiled shims, ``trail`` is how it was found."""

    functions: Any
    path: str
    version: int
    trail: list[tuple[str, str]] = field(default_factory=list)
    addresses: dict[str, int] = field(default_factory=dict)

    def call(self, name: str, *args: Any) -> None:
        """Call a function that returns a status; CudnnError where that is not success."""
        status = getattr(self.functions, name)(*args)
        if status:
            raise self.error(name, status)

    def status(self, name: str, *args: Any) -> int:
        """Call a function and hand its status back, for queries where a refusal is an answer."""
        return int(getattr(self.functions, name)(*args))

    def error(self, what: str, status: int) -> CudnnError:
        """The exception for a status: its name, its number and cuDNN's own last message on this thread.

        What failed to execute may have met the end of the context, which an earlier kernel caused: then that one is named.
        """
        from numbadnn.gpu import driver as _driver

        lost = _driver.lost() if status // 1000 == _EXECUTION_FAILED else ""
        return CudnnError(f"{what}: {self.explain(status)}" + (f"; {lost}" if lost else ""), status)

    def explain(self, status: int) -> str:
        name = self.functions.cudnnGetErrorString(status)
        # reading empties cuDNN's buffer, which keeps every unread message of this thread: the newest comes last
        buffer = ctypes.create_string_buffer(1 << 16)
        self.functions.cudnnGetLastErrorString(buffer, len(buffer))
        text = buffer.value.decode(errors="replace").strip().split("\n\n")[-1][:500]
        return f"{(name or b'?').decode()} ({status})" + (f": {text}" if text else "")

    def address(self, name: str) -> int:
        """The address of a C function."""
        if name not in self.addresses:
            pointer = ctypes.cast(getattr(self.functions, name), ctypes.c_void_p).value
            assert pointer is not None
            self.addresses[name] = pointer
        return self.addresses[name]


_LOCK = threading.RLock()  # a call may come in the middle of another
_LOADED: Library | None = None
#: path, or None for a search -> why there is none, and the libcudnn that were mapped then
_FAILED: dict[str | None, tuple[str, list[str]]] = {}


def new_lock() -> None:
    """In a forked child: another thread may have held the old one."""
    global _LOCK
    _LOCK = threading.RLock()


def _option() -> str | None:
    """The option ``cudnn_library``: that of ``using``, else the variable, whatever others of the environment hold."""
    try:
        options = config.current()
    except ValueError:
        options = None
    if options is not None and options.origin["cudnn_library"] == "using":
        return options.cudnn_library or None
    return os.environ.get("NUMBADNN_CUDNN_LIBRARY") or None


def failed() -> bool:
    """Whether some search of this process found no library."""
    return bool(_FAILED)


def load(explicit: str | None = None) -> Library:
    """The libcudnn of this process; ``explicit`` is the user's path (default: the option ``cudnn_library``).

    Raises BackendUnavailableError where there is none, it is not cuDNN 9, or another one is in use already.
    """
    global _LOADED
    explicit = explicit or _option()
    with _LOCK:
        if _LOADED is not None:
            if explicit and not _same_file(explicit, _LOADED.path):
                raise BackendUnavailableError(
                    f"cuDNN is {_LOADED.path} in this process; {explicit} cannot be loaded too"
                )
            return _LOADED
        mapped = _find.mapped()
        if explicit in _FAILED and _FAILED[explicit][1] == mapped:  # another library may have brought one since
            raise BackendUnavailableError(_FAILED[explicit][0])
        try:
            found = search(explicit)
        except BackendUnavailableError as error:
            if is_passing(OSError(str(error))):
                raise OSError(str(error)) from None
            _FAILED[explicit] = str(error), mapped
            raise
        _LOADED = _LOADED or found
        return _LOADED


def search(explicit: str | None = None) -> Library:
    """Ask the places in turn and open the first libcudnn; the trail tells what each place had."""
    trail: list[tuple[str, str]] = []
    present = _find.mapped()
    for place, path in _find.places(explicit):
        if path is None:
            trail.append((place, "none here"))
            continue
        if explicit and present and not any(_same_file(path, p) for p in present):
            trail.append((place, f"not loaded: this process already uses {present[0]}"))
            break
        library, outcome = open_library(path)
        trail.append((place, outcome))
        if library is not None:
            library.trail = trail
            return library
        if explicit or present:
            break
    lines = "\n".join(f"  {place}: {outcome}" for place, outcome in trail)
    cure = "`pip install nvidia-cudnn-cu12` (or -cu13) brings one"
    raise BackendUnavailableError(f"no usable cuDNN {MAJOR} was found; {cure}\nlooked in\n{lines}")


def open_library(path: str) -> tuple[Library | None, str]:
    """Load one file: (library, "version ... at ...") or (None, why not); a file that is refused is unloaded again."""
    try:
        cdll = ctypes.CDLL(path)
    except OSError as error:
        return None, f"cannot be loaded: {error}"
    version = _version_of(cdll)
    reason = _unusable(cdll, path, version)
    if reason or version is None:
        _ctypes.dlclose(cdll._handle)
        return None, reason
    found = os.path.realpath(path) if os.path.exists(path) else next(iter(_find.mapped()), path)
    return Library(cdll, found, version), f"version {version} at {found}"


def _unusable(cdll: ctypes.CDLL, path: str, version: int | None) -> str:
    """Why a loaded file cannot serve ("" = it can); sets the prototypes on the way."""
    if version is None:
        return f"{path} is not cuDNN: it has no cudnnGetVersion"
    # up to cuDNN 8 a version is major * 1000 + ..., from 9 on major * 10000 + ...
    major = version // 10000 if version >= 10000 else version // 1000
    if major != MAJOR:
        return f"{path} is cuDNN {major} (version {version}), and this binding is for cuDNN {MAJOR}"
    try:
        for name, (result, arguments) in PROTOTYPES.items():
            function = getattr(cdll, name)
            function.restype, function.argtypes = result, arguments
    except AttributeError as error:
        return f"{path} lacks a function of cuDNN {MAJOR}: {error}"
    folders = _find.directories()
    return f"parts of cuDNN come from several folders: {', '.join(folders)}" if len(folders) > 1 else ""


def _version_of(cdll: ctypes.CDLL) -> int | None:
    try:
        function = cdll.cudnnGetVersion
    except AttributeError:
        return None
    function.restype, function.argtypes = ctypes.c_size_t, []
    return int(function())


def _same_file(a: str, b: str) -> bool:
    try:
        return os.path.samefile(a, b)
    except OSError:
        return a == b


def check_single_folder() -> None:
    """Raise where sub-libraries, which cuDNN loads by need, were taken from another folder than libcudnn itself."""
    folders = _find.directories()
    if len(folders) > 1:
        raise BackendUnavailableError(f"parts of cuDNN come from several folders: {', '.join(folders)}")


@dataclass(slots=True)
class Handle:
    """A cuDNN handle, the device it was made on, and the stream it was last given."""

    value: int
    device: int
    stream: int | None = None
    library: Library | None = None

    def set_stream(self, stream: int) -> None:
        """Work issued through this handle goes to ``stream`` (a raw CUDA stream)."""
        if stream != self.stream:
            assert self.library is not None
            self.library.call("cudnnSetStream", self.value, stream)
            self.stream = stream


_POOL: dict[int, list[Handle]] = {}


class _ThreadHandles:
    """The handles of one thread; dying with the thread's locals, it gives them back."""

    def __init__(self) -> None:
        self.by_device: dict[int, Handle] = {}

    def __del__(self) -> None:
        # list.append is atomic; at interpreter exit the pool may already be None, and then handles are just left
        if _POOL is not None:
            for device, held in self.by_device.items():
                held.stream = None  # that stream may be gone, and its number given to another
                _POOL.setdefault(device, []).append(held)


class _Local(threading.local):
    def __init__(self) -> None:
        self.handles = _ThreadHandles()


_LOCAL = _Local()


def handle(library: Library, device: int) -> Handle:
    """This thread's handle for a device whose primary context is current."""
    mine = _LOCAL.handles.by_device
    if device not in mine:
        try:
            mine[device] = _POOL.get(device, []).pop()
        except IndexError:
            out = ctypes.c_void_p()
            library.call("cudnnCreate", ctypes.byref(out))
            assert out.value is not None
            check_single_folder()
            mine[device] = Handle(out.value, device, library=library)
    return mine[device]
