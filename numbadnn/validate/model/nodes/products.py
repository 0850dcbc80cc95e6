"""MatMul, Gemm and Einsum: sums of products by NumPy's matrix product."""

from __future__ import annotations

import math

import numpy as np

from numbadnn.measuring.compare import gamma
from numbadnn.validate.model.graph import Node
from numbadnn.validate.model.nodes.kinds import Given, Kind, Outputs


def _matmul(node: Node, given: Given) -> Outputs:
    return (np.matmul(given[0], given[1]),)


def _matmul_errors(node: Node, given: Given, outputs: Outputs, unit: float) -> Outputs:
    a, b = given
    return (gamma(a.shape[-1], unit) * np.matmul(np.abs(a), np.abs(b)),)


def _sides(node: Node, given: Given) -> tuple[np.ndarray, np.ndarray]:
    a, b = given[:2]
    return a.T if node.get("transA", 0) else a, b.T if node.get("transB", 0) else b


def _gemm(node: Node, given: Given) -> Outputs:
    a, b = _sides(node, given)
    result = a @ b
    if (alpha := node.get("alpha", 1.0)) != 1:
        result = result * result.dtype.type(alpha)
    if len(given) > 2 and given[2] is not None:
        result = result + given[2] * given[2].dtype.type(node.get("beta", 1.0))
    return (result,)


def _gemm_errors(node: Node, given: Given, outputs: Outputs, unit: float) -> Outputs:
    a, b = _sides(node, given)
    size = abs(node.get("alpha", 1.0)) * (np.abs(a) @ np.abs(b))
    if len(given) > 2 and given[2] is not None:
        size = size + abs(node.get("beta", 1.0)) * np.abs(given[2])
    return (gamma(a.shape[1] + 3, unit) * size,)


def _matmul_flops(node: Node, given: Given, outputs: Outputs) -> int:
    shared = given[0].shape[0 if node.op == "Gemm" and node.get("transA", 0) else -1]
    return 2 * outputs[0].size * shared


def _einsum(node: Node, given: Given) -> Outputs:
    dtype = given[0].dtype
    wide = (
        [a.astype(np.float32) for a in given] if dtype.name == "bfloat16" else given
    )  # which NumPy's einsum does not know
    return (np.asarray(np.einsum(node.get("equation"), *wide, optimize=True)).astype(dtype, copy=False),)


def _contracted(node: Node, given: Given) -> int:
    """How many products an element of the result sums, at the most."""
    equation = node.get("equation").replace(" ", "")
    terms, _, result = equation.partition("->")
    if "..." in terms or "->" not in equation:
        return math.prod(max(array.shape, default=1) for array in given)
    sizes = {c: n for term, a in zip(terms.split(","), given, strict=True) for c, n in zip(term, a.shape, strict=True)}
    return math.prod(n for letter, n in sizes.items() if letter not in result)


def _einsum_errors(node: Node, given: Given, outputs: Outputs, unit: float) -> Outputs:
    (size,) = _einsum(node, [np.abs(array) for array in given])
    return (gamma(_contracted(node, given) + len(given), unit) * size,)


def _einsum_flops(node: Node, given: Given, outputs: Outputs) -> int:
    return 2 * outputs[0].size * _contracted(node, given)


TABLE = {
    "MatMul": Kind(None, _matmul, _matmul_errors, _matmul_flops),
    "Gemm": Kind(None, _gemm, _gemm_errors, _matmul_flops),
    "Einsum": Kind(None, _einsum, _einsum_errors, _einsum_flops),
}
