"""Matrix products that other kernels stand on: any sizes and strides, batches, a fixed order of sums."""
