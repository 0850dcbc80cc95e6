"""Convolutions by the project's own kernels: importing this registers every implementation."""

from numbadnn.kernels.conv import direct as direct
from numbadnn.kernels.conv import patches as patches
from numbadnn.kernels.conv import pointwise as pointwise
from numbadnn.kernels.conv.corrmm import corrmm as corrmm
from numbadnn.kernels.conv.depthwise import depthwise as depthwise
from numbadnn.kernels.conv.depthwise import rows as rows
from numbadnn.kernels.conv.grouped import grouped as grouped
from numbadnn.kernels.conv.image import first_layer as first_layer
from numbadnn.kernels.conv.image import to_image as to_image
from numbadnn.kernels.conv.image import to_image_halves as to_image_halves
from numbadnn.kernels.conv.implicit import gemm as gemm
from numbadnn.kernels.conv.line import line as line
from numbadnn.kernels.conv.tiles import tiles as tiles
from numbadnn.kernels.conv.unshared import unshared as unshared

#: who is asked first where no estimate decides: causal and unshared convolutions under batch_invariant and gpu_to_gpu, equal
#: estimates. Those of line and unshared are ordered by their MEMBERS, the fastest first
ORDER = (
    "numba.direct",
    "numba.corrmm*",
    "numba.depthwise",
    "numba.depthwise_rows",
    "numba.first_layer",
    "numba.grouped_halves",
    "numba.implicit_gemm",
    "numba.implicit_tiles",
    "numba.patches",
    "numba.pointwise",
    "numba.line*",
    "numba.to_image",
    "numba.to_image_halves",
    "numba.unshared*",
)
