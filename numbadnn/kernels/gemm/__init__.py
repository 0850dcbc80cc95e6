"""Matrix products for other kernels: any sizes, strides and batches, sums in a fixed order. ``gemm.py`` plans them."""
