"""Every operator of ONNX that is judged, family by family; ``TABLE`` has them all.

To add one: a ``Kind`` in the table of its family. What is in no table runs in onnx.reference and is said to be not judged.
"""

from numbadnn.validate.model.nodes import (
    casts,
    convolution,
    elementwise,
    movement,
    normalization,
    pooling,
    products,
    recurrent,
    reductions,
    resizing,
    sequences,
    softmaxes,
)
from numbadnn.validate.model.nodes.kinds import Kind

_FAMILIES = (
    casts, convolution, elementwise, movement, normalization, pooling, products, recurrent, reductions, resizing, sequences,
    softmaxes,
)  # fmt: skip
TABLE: dict[str, Kind] = {op: kind for family in _FAMILIES for op, kind in family.TABLE.items()}
