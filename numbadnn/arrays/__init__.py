"""Foreign arrays in, arrays of the same library out: one file a library, one ``Library`` record each.

``probe`` is the hot path: from an array to its address and a cheap tuple that identifies everything a plan depends on.
``view`` is the cold path: the canonical description (``View``) that a Problem is built from. Nothing here copies array
data. A library's file is imported only when an array of it is first seen, and imports the library, which by then
is loaded. CPU arrays have a NumPy array of the same memory as their "address".

One package instead of one file: five libraries and the memory and stream rules they share would not fit a screen.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

from numbadnn.problem import Spec, normalised_strides


class View(NamedTuple):
    """What an array is, without its library: ``device`` is the CUDA ordinal, -1 on the CPU; strides in elements."""

    library: Library
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    device: int
    address: Any
    readonly: bool = False

    @property
    def pointer(self) -> int:
        """Where the first element is, on the CPU too."""
        return int(self.address) if isinstance(self.address, int) else int(self.address.ctypes.data)

    def spec(self) -> Spec:
        return Spec(self.dtype, self.shape, normalised_strides(self.shape, self.strides), self.pointer % 16 == 0)


class Borrowed(int):
    """An address and what its memory lives by: an exported capsule may own a copy that nobody else knows of.

    ``stream`` is the one on which its owner works, None where it does not say.
    """

    owner: Any
    stream: int | None

    def __new__(cls, address: int, owner: Any, stream: int | None = None) -> Borrowed:
        found = super().__new__(cls, address)
        found.owner, found.stream = owner, stream
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Library:
    """The functions by which numbadnn handles the arrays of one library.

    probe(array) -> (address, signature); view(array) -> View; address(array) -> address, for arrays made here.
    address_on_gpu: the same, faster, for those on a GPU.
    allocator(spec, device) -> make, where make() gives a new array of that spec.
    current_stream(device) -> raw handle of the stream the library would use now.
    allocating_on(stream, device): context manager under which allocations belong to that stream.
    record(pairs, stream, device): the memory of these arrays, (array, address) each, must not be reused before the work now
    on that stream is done. Called where that is not the library's current stream, and after each launch if ``outside``:
    the owners of its arrays work elsewhere and know nothing of our streams.
    scratch(nbytes, device, stream) -> (owner, address): workspace ordered on that stream.
    check(array) raises where an array with a known signature may still not be taken as it is (None: never); called for
    arrays that are not packed.
    written(array): the library is told that a destination of the user's is being written (None: it does not ask).
    finish(results, arrays) turns what ``allocator`` made for a call with these arrays into what the user gets (JAX); None
    where they are the same.
    """

    name: str
    probe: Callable[[Any], tuple[Any, tuple[Any, ...]]]
    view: Callable[[Any], View]
    address: Callable[[Any], Any]
    allocator: Callable[[Spec, int], Callable[[], Any]]
    current_stream: Callable[[int], int]
    allocating_on: Callable[[int, int], AbstractContextManager[Any]]
    record: Callable[[list[tuple[Any, Any]], int, int], None]
    scratch: Callable[[int, int, int], tuple[Any, int]]
    finish: Callable[[tuple[Any, ...], tuple[Any, ...]], tuple[Any, ...]] | None = None
    outside: bool = False
    address_on_gpu: Callable[[Any], int] | None = None
    takes_out: bool = True
    check: Callable[[Any], None] | None = None
    written: Callable[[Any], None] | None = None


#: exact array type -> its Library, and its ``probe`` for the hot path; filled as types are first seen
LIBRARIES: dict[type, Library] = {}
PROBES: dict[type, Callable[[Any], tuple[Any, tuple[Any, ...]]]] = {}

_MODULES = {"numpy": "numpy_", "torch": "torch_", "cupy": "cupy_", "numba": "numba_", "jax": "jax_", "jaxlib": "jax_"}


def library_of(array: Any, argument: str = "input") -> Library:
    """The Library for an array, or a TypeError naming the argument when it is not an array we can use."""
    kind = type(array)
    if kind in LIBRARIES:
        return LIBRARIES[kind]
    for base in kind.__mro__:
        module = _MODULES.get(base.__module__.split(".")[0])
        if module:
            return _remember(
                kind, importlib.import_module(f"numbadnn.arrays.{module}").library_for(kind, array, argument)
            )
    if hasattr(array, "__cuda_array_interface__") or hasattr(array, "__dlpack__"):
        return _remember(kind, importlib.import_module("numbadnn.arrays.foreign").LIBRARY)
    raise TypeError(
        f"{argument}: expected an array (NumPy, Numba CUDA, CuPy, PyTorch, JAX, or an object with "
        f"__cuda_array_interface__ or __dlpack__), got {kind.__module__}.{kind.__qualname__}"
        + "; numpy.asarray makes an array of it" * isinstance(array, (list, tuple, float, int))
        + "; numbadnn.dask has the operations for Dask's arrays" * kind.__module__.startswith("dask.")
    )


def _remember(kind: type, library: Library) -> Library:
    PROBES[kind], LIBRARIES[kind] = library.probe, library
    return library


def view_of(array: Any, argument: str) -> View:
    """The canonical description of an array; TypeError for a dtype that is not floating point."""
    view = library_of(array, argument).view(array)
    if view.dtype not in ("float16", "bfloat16", "float32", "float64"):
        raise TypeError(
            f"{argument}: expected dtype float16, bfloat16, float32 or float64, got {view.dtype}; cast it "
            "before the call"
        )
    return view


def element_strides(byte_strides: tuple[int, ...], itemsize: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides in elements; ValueError where an array's strides are not a whole number of elements."""
    if any(s % itemsize for s, n in zip(byte_strides, shape, strict=True) if n > 1):
        raise ValueError(f"expected strides that are multiples of the {itemsize}-byte item, got {byte_strides} bytes")
    return tuple(s // itemsize for s in byte_strides)
