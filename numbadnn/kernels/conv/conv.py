"""Convolutions by the project's own kernels: importing this registers every implementation, in the order of the imports."""

from numbadnn.kernels.conv import direct as direct  # isort: skip
from numbadnn.kernels.conv.corrmm import corrmm as corrmm  # isort: skip
from numbadnn.kernels.conv.depthwise import depthwise as depthwise  # isort: skip
from numbadnn.kernels.conv.depthwise import rows as rows  # isort: skip
from numbadnn.kernels.conv.image import first_layer as first_layer  # isort: skip
from numbadnn.kernels.conv.grouped import grouped as grouped  # isort: skip
from numbadnn.kernels.conv.implicit import gemm as gemm  # isort: skip
from numbadnn.kernels.conv.tiles import tiles as tiles  # isort: skip
from numbadnn.kernels.conv import patches as patches  # isort: skip
from numbadnn.kernels.conv import pointwise as pointwise  # isort: skip
from numbadnn.kernels.conv.line import line as line  # isort: skip
from numbadnn.kernels.conv.image import to_image as to_image  # isort: skip
from numbadnn.kernels.conv.image import to_image_halves as to_image_halves  # isort: skip
from numbadnn.kernels.conv.unshared import unshared as unshared  # isort: skip
