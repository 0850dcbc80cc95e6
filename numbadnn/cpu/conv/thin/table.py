"""What the kernels of ``thin.py`` know of a problem: one table of 64-bit integers, read where they are used by their names.

Loading this module imports Numba.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from llvmlite import ir
from numba import types
from numba.extending import infer_getattr, intrinsic, models, register_model

from numbadnn.cpu.conv.thin.geometry import Geometry
from numbadnn.cpu.lang.elements import I64, at
from numbadnn.host.numba_names import AttributeTemplate, lower_getattr_generic

#: how channels lie in the buffers: as planes, taken from rows of pixels or turned from rows of channels; or in lanes
LINES, TURNED, LANES = 0, 1, 2


class Phase(NamedTuple):
    """One phase of the result."""

    O: int
    P: int
    Q: int
    out: int  # offset of its first pixel
    first: int  # of its terms, and their number
    terms: int
    a: int  # where its filters begin in their buffer
    where: int  # in the table: the vectors of a chunk's rows, for tiles that store to the result; or 0
    row_vectors: int  # of a row


class Plane(NamedTuple):
    """Rows and columns of the image of one residue."""

    first: int  # pixel of a line that has the first column, and how many there are
    columns: int
    begin: int  # lines that have rows of the image
    end: int
    at: int  # offset in the image of what the first pixel of line 0 would have


class Record(types.Type):
    """The address of a named tuple's integers, which are its attributes in a kernel."""

    def __init__(self, record: Any) -> None:
        self.fields = record._fields
        super().__init__(name=f"Record({record.__name__})")


@register_model(Record)
class _RecordModel(models.PrimitiveModel):
    def __init__(self, dmm, fe_type) -> None:  # type: ignore[no-untyped-def]
        super().__init__(dmm, fe_type, I64)


@infer_getattr
class _Fields(AttributeTemplate):
    key = Record

    def generic_resolve(self, value, attr):
        return types.int64 if attr in value.fields else None


@lower_getattr_generic(Record)
def _field(context, b, typ, value, attr):
    return b.load(at(b, value, I64, ir.Constant(I64, typ.fields.index(attr))))


def _record(record: Any) -> Any:
    def of(typingctx, address):
        return Record(record)(types.int64), lambda cx, b, sig, args: args[0]

    return intrinsic(of)


#: an address as that of such integers
geometry, phase_at, plane_at = _record(Geometry), _record(Phase), _record(Plane)
