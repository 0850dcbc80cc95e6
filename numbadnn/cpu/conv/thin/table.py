"""What the kernels of ``thin.py`` know of a problem: one table of 64-bit integers, read where they are used by their names.

Loading this module imports Numba.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from llvmlite import ir
from numba import types
from numba.extending import infer_getattr, intrinsic, models, register_model

from numbadnn.cpu.lang.elements import I64, at
from numbadnn.host.numba_names import AttributeTemplate, lower_getattr_generic

#: how channels lie in the buffers: as planes, taken from rows of pixels or turned from rows of channels; or in lanes
LINES, TURNED, LANES = 0, 1, 2


class Geometry(NamedTuple):
    """Lengths and strides in elements; rows of the result are those of a phase."""

    N: int
    G: int
    together: int  # groups of a job
    C: int  # channels of a group in the image that is read, and in the result
    M: int
    a_group: int  # strides of the filters
    a_row: int
    run: int  # so many terms lie together in them
    D: int  # the image that is read
    H: int
    W: int
    src_n: int
    src_c: int
    src_d: int
    src_h: int
    src_w: int
    step_d: int  # slices, rows, columns of it between neighbouring pixels of the result
    step_h: int
    step_w: int
    out_n: int
    out_m: int
    out_d: int
    out_h: int
    out_w: int
    O: int  # most slices and rows of a phase
    P: int
    band: int  # rows of a job, and those summed at a time
    chunk: int
    ahead: int  # rows for which lines are there before they are summed
    reach: int  # so many more lines of a plane than rows of the result are needed
    slices: int  # slices of the image that one of the result needs
    planes: int  # of each channel and slice, by row and column modulo the steps
    pitch: int  # pixels of a line, and accumulators of a plane and a pixel
    plane: int
    unit: int
    buffers: int  # channels, or vectors of them, that have planes
    still: int  # whether the zeros around the image are the same for all jobs
    source: int  # LINES, TURNED or LANES
    result: int
    gradient: int
    phases: int
    terms: int  # of all phases
    a_at: int  # where in a thread's memory the filters, the results, a square begin, and its size, in accumulators
    results_at: int
    square_at: int
    work: int
    row: int  # of a row of results
    phases_at: int  # where lists begin in the table, in bytes: of phases, planes,
    planes_at: int
    offsets_at: int  # of the terms in the planes (bytes), and in the filters
    a_offsets_at: int
    places_at: int  # channel, slice, row and column of the terms
    slices_at: int
    flat_at: int  # vectors of a row of results


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
