"""Arrays out of files: ``.npy``, ``.npz`` and ``.safetensors``, each with the operand it is for where file or user say so.

Nothing is unpickled. A file is read whole; two-byte void is bfloat16, as NumPy saves it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from numbadnn.arrays.numpy_ import numpy_dtype

#: in front of a file: the operand that it is
_NAMED = re.compile(r"([A-Za-z_]\w*)=(.+)")
#: the names that numpy.savez gives by itself
_UNNAMED = re.compile(r"arr_\d+")


class Given(NamedTuple):
    """An array, the operand it is said to be ("" = the next in order), and where it came from."""

    name: str
    array: np.ndarray
    source: str


def read(files: list[str]) -> list[Given]:
    """The arrays of these files, ``FILE`` or ``OPERAND=FILE``; ValueError, OSError or MemoryError name the file."""
    return [given for file in files for given in _read(file)]


def _read(word: str) -> Iterator[Given]:
    named = None if Path(word).exists() else _NAMED.fullmatch(word)
    name, file = named.groups() if named else ("", word)
    try:
        found = _tensors(file) if file.endswith(".safetensors") else _numpy(file)
    except OSError as error:
        raise ValueError(f"--data: cannot read {file}: {error.strerror or error}") from None
    except MemoryError as error:
        raise MemoryError(f"--data: {file}: {error}") from None
    except ImportError:
        raise ValueError(f"--data: {file} needs safetensors: pip install 'numbadnn[safetensors]'") from None
    except Exception as error:  # whatever a library makes of a file that is something else
        raise ValueError(f"--data: {file} is not a {_kind(file)} file: {error}") from None
    if name and len(found) != 1:
        raise ValueError(f"--data: {name}: expected a file with one array, got {file} with {len(found)}")
    for key, array in found.items():
        yield Given(name or key, array, f"{file}[{key}]" if key else file)


def _kind(file: str) -> str:
    return Path(file).suffix if Path(file).suffix in (".npz", ".safetensors") else ".npy"


def _numpy(file: str) -> dict[str, np.ndarray]:
    """One array by the name "", or those of an archive by their own names."""
    with open(file, "rb") as data:
        begins = data.read(6)
    if begins and not begins.startswith((b"\x93NUMPY", b"PK")):  # NumPy would advise to unpickle it
        raise ValueError(f"it begins with {begins!r}, not as NumPy's files do")
    loaded = np.load(Path(file), allow_pickle=False)
    if isinstance(loaded, np.ndarray):
        return {"": _bfloat16(loaded)}
    with loaded:
        return {key: _bfloat16(loaded[key]) for key in loaded.files}


def _tensors(file: str) -> dict[str, np.ndarray]:
    from safetensors import safe_open

    with open(file, "rb"), safe_open(file, framework="np") as tensors:
        return {key: tensors.get_tensor(key) for key in sorted(tensors.keys())}


def _bfloat16(array: np.ndarray) -> np.ndarray:
    return array.view(numpy_dtype("bfloat16")) if array.dtype.str == "|V2" else array


def assign(op: str, names: tuple[str, ...], optional: tuple[str, ...], given: list[Given]) -> dict[str, Given]:
    """The operands by name: those named as they are, the others in order; ValueError where they are none of ``op``'s."""
    known = (*names, *optional)
    found: dict[str, Given] = {}
    rest = []
    for item in given:
        if item.name in known:
            if item.name in found:
                raise ValueError(
                    f"--data: {item.name}: expected one array, got {found[item.name].source} and {item.source}"
                )
            found[item.name] = item
        elif item.name and not _UNNAMED.fullmatch(item.name):
            raise ValueError(
                f"--data: {op} has no operand {item.name!r} ({item.source}), its operands are {', '.join(known)}"
            )
        else:
            rest.append(item)
    free = [name for name in known if name not in found]
    found.update(zip(free, rest, strict=False))
    if len(rest) > len(free) or any(name not in found for name in names):
        more = f" and, if wanted, {', '.join(optional)}" if optional else ""
        takes = f"{len(names)} arrays ({', '.join(names)}{more})" if len(known) > 1 else f"1 array ({names[0]})"
        raise ValueError(f"--data: {op} takes {takes}, got {len(given)}")
    return found
