"""Copies that surround an operation: padding, cropping, new strides, another dtype; fill and scale."""
