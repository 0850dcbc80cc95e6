"""Every enum value and every prototype of the binding against the headers of the installed cuDNN wheel."""

from __future__ import annotations

import copy
import ctypes
import re
from enum import IntEnum
from pathlib import Path

import pytest

from numbadnn.cudnn import _find
from numbadnn.cudnn._enums import PREFIX, Attr
from numbadnn.cudnn._prototypes import PROTOTYPES

FOLDERS = [Path(f) / "include" for f in _find.wheel_folders() if (Path(f) / "include" / "cudnn.h").is_file()]
pytestmark = pytest.mark.skipif(not FOLDERS, reason="no cuDNN wheel with headers is installed")

#: C type -> what ctypes must make of it (pointers are found by their star)
CLASSES = {
    "size_t": "u64", "int64_t": "i64", "int": "i32", "void": "none",
    "cudnnHandle_t": "pointer", "cudaStream_t": "pointer", "cudnnBackendDescriptor_t": "pointer",
    "cudnnTensorDescriptor_t": "pointer", "cudnnFilterDescriptor_t": "pointer", "cudnnConvolutionDescriptor_t": "pointer",
    "cudnnRNNDescriptor_t": "pointer", "cudnnRNNDataDescriptor_t": "pointer",
    "cudnnSpatialTransformerDescriptor_t": "pointer",
    "int32_t": "i32", "uint32_t": "u32", "cudnnDropoutDescriptor_t": "pointer", "float": "f32", "double": "f64",
    "unsigned": "u64", "cudnnPoolingDescriptor_t": "pointer",
}  # fmt: skip
CTYPES = {
    ctypes.c_void_p: "pointer", ctypes.c_char_p: "pointer", ctypes.c_int: "i32", ctypes.c_int64: "i64",
    ctypes.c_size_t: "u64", None: "none", ctypes.c_uint: "u32", ctypes.c_float: "f32", ctypes.c_double: "f64",
}  # fmt: skip


@pytest.fixture(scope="module")
def text():
    """All headers without comments and deprecation marks."""
    joined = "\n".join(p.read_text(errors="replace") for p in sorted(FOLDERS[0].glob("*.h")) if "_v9" not in p.name)
    joined = re.sub(r"/\*.*?\*/", " ", joined, flags=re.S)
    return re.sub(r"//[^\n]*|CUDNN_DEPRECATED_ENUM|CUDNN_DEPRECATED|CUDNNWINAPI", " ", joined)


@pytest.fixture(scope="module")
def enums(text):
    """Every enumerator of the headers: name -> value."""
    values: dict[str, int] = {}
    for body in re.findall(r"enum\s*\w*\s*\{(.*?)\}", text, flags=re.S):
        last = -1
        for entry in filter(None, (e.strip() for e in re.sub(r"#[^\n]*", "", body).split(","))):
            name, _, value = (part.strip() for part in entry.partition("="))
            last = last + 1 if not value else values[value] if value in values else int(value.rstrip("uUlL"), 0)
            values[name] = last
    return values


@pytest.fixture(scope="module")
def functions(text):
    """Every function of the headers: name -> (class of the result, classes of the arguments)."""
    names = set(re.findall(r"typedef\s+enum\s*\w*\s*\{[^}]*\}\s*(\w+)", text))
    found = {}
    for result, name, arguments in re.findall(r"([\w\s]+?[\s*]+)(cudnn\w+)\s*\(([^()]*)\)\s*;", text):
        parts = [a.strip() for a in arguments.split(",")]
        parts = [] if parts in (["void"], [""]) else parts
        found[name] = (kind(result, names), [kind(a, names) for a in parts])
    return found


def kind(declaration, enum_names):
    if "*" in declaration or "[" in declaration:
        return "pointer"
    words = [w for w in declaration.split() if w not in ("const", "extern")]
    return "i32" if words[0] in enum_names else CLASSES[words[0]] if words[0] in CLASSES else words[0]


def wrong_members(table, enums):
    wrong = []
    for cls, (start, end) in table.items():
        for member in cls:
            name = f"{start}{member.name}{end}"
            if enums.get(name) != member.value:
                wrong.append((name, member.value, enums.get(name)))
    return wrong


def wrong_prototypes(table, functions):
    wrong = []
    for name, (result, arguments) in table.items():
        ours = (CTYPES[result], [CTYPES[a] for a in arguments])
        if functions.get(name) != ours:
            wrong.append((name, ours, functions.get(name)))
    return wrong


def test_the_parser_reads_the_headers(enums, functions):
    assert len(enums) > 500 and len(functions) > 150
    assert enums["CUDNN_STATUS_BAD_PARAM"] == 2000
    assert enums["CUDNN_STATUS_ALLOC_FAILED"] == enums["CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED"] == 4003
    assert functions["cudnnGetStream"] == ("i32", ["pointer", "pointer"])


def test_every_enum_value(enums):
    assert wrong_members(PREFIX, enums) == []


def test_every_prototype(functions):
    assert wrong_prototypes(PROTOTYPES, functions) == []


def test_every_enum_class_is_compared():
    from numbadnn.cudnn import _enums

    classes = {v for v in vars(_enums).values() if isinstance(v, type) and issubclass(v, IntEnum) and v is not IntEnum}
    assert classes == set(PREFIX)


def test_false_tables_are_caught(enums, functions):
    members = {m.name: m.value for m in Attr}
    moved = IntEnum("Attr", {**members, "TENSOR_STRIDES": members["TENSOR_STRIDES"] + 1})
    assert len(wrong_members({moved: PREFIX[Attr]}, enums)) == 1
    unknown = IntEnum("Attr", {**members, "TENSOR_COLOUR": 1})
    assert [w[0] for w in wrong_members({unknown: PREFIX[Attr]}, enums)] == ["CUDNN_ATTR_TENSOR_COLOUR"]
    for name, change in {
        "cudnnBackendFinalize": lambda r, a: (r, [*a, ctypes.c_int]),
        "cudnnBackendSetAttribute": lambda r, a: (r, [*a[:3], ctypes.c_int, a[4]]),
        "cudnnGetVersion": lambda r, a: (ctypes.c_int, a),
        "cudnnSoftmaxForward": lambda r, a: (r, [a[1], a[0], *a[2:]]),
    }.items():
        false = copy.deepcopy(PROTOTYPES)
        false[name] = change(*false[name])
        assert [w[0] for w in wrong_prototypes(false, functions)] == [name]
