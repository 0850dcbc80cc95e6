"""The spatial transformer: the sampling grid of an affine map, bilinear sampling at a grid, and their gradients: the problem.

Four operations, one problem: which operands an operation has stands in ``OPERANDS``. ``spatialtf`` is the grid, then the
sampler. Grid and image may differ in dtype (a float32 grid of a float16 image keeps the positions exact); whatever is
computed from both is computed in float64 if either is float64, else in float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numbadnn.parameters import check_rank
from numbadnn.problem import Spec, operand

#: operation -> names of its inputs and of its outputs
OPERANDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "spatialtf_grid": (("theta",), ("grid",)),
    "spatialtf_grid_grad": (("dgrid",), ("dtheta",)),
    "spatialtf_sampler": (("img", "grid"), ("y",)),
    "spatialtf_sampler_grad": (("img", "grid", "dy"), ("dimg", "dgrid")),
}


@dataclass(frozen=True, slots=True)
class SpatialProblem:
    """One of the operations of ``OPERANDS``; the operands it does not have are None.

    theta, dtheta (N, 2, 3); grid, dgrid (N, H', W', 2); img, dimg (N, C, H, W); y, dy (N, C, H', W').
    """

    op: str
    theta: Spec | None = None
    img: Spec | None = None
    grid: Spec | None = None
    y: Spec | None = None
    dy: Spec | None = None
    dtheta: Spec | None = None
    dimg: Spec | None = None
    dgrid: Spec | None = None

    @property
    def inputs(self) -> tuple[Spec, ...]:
        return tuple(getattr(self, name) for name in OPERANDS[self.op][0])

    @property
    def outputs(self) -> tuple[Spec, ...]:
        return tuple(getattr(self, name) for name in OPERANDS[self.op][1])

    @property
    def output(self) -> Spec:
        return self.outputs[0]

    @property
    def accumulator(self) -> str:
        """What sums are kept in on every backend."""
        return "float64" if any(s.dtype == "float64" for s in self.inputs) else "float32"

    @property
    def keywords(self) -> dict[str, Any]:
        if self.op != "spatialtf_grid":
            return {}
        n, h, w, _ = self.output.shape
        return {"out_dims": (n, 1, h, w)}

    @property
    def flops(self) -> int:
        per_point = {
            "spatialtf_grid": 8,
            "spatialtf_grid_grad": 12,
            "spatialtf_sampler": 8,
            "spatialtf_sampler_grad": 24,
        }
        return per_point[self.op] * max(s.size for s in (*self.inputs, *self.outputs))

    @property
    def bytes(self) -> int:
        return sum(s.size * s.itemsize for s in (*self.inputs, *self.outputs))

    def __str__(self) -> str:
        names = (*OPERANDS[self.op][0], *OPERANDS[self.op][1])
        return " ".join([self.op, *(f"{name}={getattr(self, name)}" for name in names)])

    @staticmethod
    def parse(text: str) -> SpatialProblem:
        """The inverse of ``str``; gradients may be left out of a line: they are packed like what they are gradients of.

        >>> str(SpatialProblem.parse("spatialtf_grid_grad dgrid=float32:1x4x5x2"))
        'spatialtf_grid_grad dgrid=float32:1x4x5x2 dtheta=float32:1x2x3'
        """
        op, *words = text.split()
        fields = dict(word.split("=", 1) for word in words if "=" in word)
        if op not in OPERANDS or len(fields) != len(words):
            raise ValueError(f"expected one of {', '.join(OPERANDS)} and its operands as name=SPEC, got {text!r}")
        inputs, outputs = OPERANDS[op]
        specs = {name: operand(value, result=name in outputs) for name, value in fields.items()}
        if not set(specs) <= {*inputs, *outputs} or not {*inputs} <= set(specs):
            raise ValueError(f"expected {op} with {', '.join(inputs)} (and {', '.join(outputs)}), got {text!r}")
        if op == "spatialtf_grid" and "grid" not in specs:
            raise ValueError(f"expected {op} with grid=SPEC, which says how many points, got {text!r}")
        shapes = shapes_of(op, {name: spec.shape for name, spec in specs.items()})
        for name in outputs:
            like = specs[LIKE.get(name, inputs[0])]
            packed = Spec.of(like.dtype, shapes[name], like.layout if name in ("y", "dimg") else "")
            specs.setdefault(name, packed)
        for name, spec in specs.items():
            if spec.shape != shapes[name]:
                raise ValueError(f"{name}: expected shape {shapes[name]}, got {spec.shape}")
        if op == "spatialtf_sampler_grad":
            check_dy(specs["img"].dtype, specs["dy"].dtype)
        return SpatialProblem(op, **specs)


PROBLEM = SpatialProblem

#: output -> the input whose dtype it has
LIKE = {"grid": "theta", "dtheta": "dgrid", "y": "img", "dimg": "img", "dgrid": "grid"}


def check_grid(name: str, shape: tuple[int, ...]) -> None:
    check_rank(name, shape, 4, "(N, H', W', 2)", of="")
    if shape[3] != 2:
        raise ValueError(f"{name}: expected a last axis of 2 (x, y), got shape {shape}")
    if 0 in shape[1:]:
        raise ValueError(f"{name}: expected at least one point an image, got shape {shape}")


def shapes_of(op: str, known: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """The shapes of all operands from those of the inputs (and of the grid where it is made), checked."""
    if op == "spatialtf_grid":
        check_grid("grid", known["grid"])
        n = known["grid"][0]
        if known["theta"] != (n, 2, 3):
            one = "; theta[None] is one map" if known["theta"] == (2, 3) else ""
            raise ValueError(f"theta: expected shape ({n}, 2, 3), got {known['theta']}{one}")
        return {"theta": known["theta"], "grid": known["grid"]}
    if op == "spatialtf_grid_grad":
        check_grid("dgrid", known["dgrid"])
        return {"dgrid": known["dgrid"], "dtheta": (known["dgrid"][0], 2, 3)}
    img, grid = known["img"], known["grid"]
    check_rank("img", img, 4, "(N, C, H, W)")
    if 0 in img[1:]:
        raise ValueError(f"img: expected at least one channel and one pixel, got shape {img}")
    check_grid("grid", grid)
    if grid[0] != img[0]:
        raise ValueError(f"grid: expected {img[0]} images, as img has, got shape {grid}")
    y = (*img[:2], *grid[1:3])
    if op == "spatialtf_sampler":
        return {"img": img, "grid": grid, "y": y}
    if known["dy"] != y:
        raise ValueError(f"dy: expected shape {y}, got {known['dy']}")
    return {"img": img, "grid": grid, "dy": y, "dimg": img, "dgrid": grid}


def check_dy(img: str, dy: str) -> None:
    """TypeError where ``dy`` has not the image's dtype, as which it is read."""
    if dy != img:
        raise TypeError(f"dy: expected img's dtype {img}, got {dy}")
