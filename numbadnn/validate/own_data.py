"""The user's own arrays, from files, as the operands of any operation, with any parameters of its problem line."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from numbadnn import cases, shapes
from numbadnn.arrays import view_of
from numbadnn.arrays.numpy_ import numpy_dtype
from numbadnn.problem import Spec, integers
from numbadnn.problems import conv, norm, rnn, spatial
from numbadnn.problems.rnn_network import GATES
from numbadnn.registry import FAMILY
from numbadnn.validate import report
from numbadnn.validate.check import Row, Subject, check_all
from numbadnn.validate.data_files import Given, assign, read
from numbadnn.validate.oracle import Trial

#: operation -> its inputs as its problem line calls them, in the order of a call
OPERANDS: dict[str, tuple[str, ...]] = {
    **{op: described.inputs for op, described in conv.OPERATIONS.items()},
    "softmax": ("x",),
    "softmax_grad": ("dy", "y"),
    "pool": ("x",),
    "pool_grad": ("x", "y", "dy"),
    **{op: inputs for op, (inputs, _) in norm.OPERANDS.items()},
    norm.TRAIN: norm.OPERANDS[norm.TRAIN][0][:3],
    **{op: inputs for op, (inputs, _) in spatial.OPERANDS.items()},
    "bilinear_upsampling": ("x",),
    "bilinear_upsampling_grad": ("y",),
    "dropout": ("x",),
    "dropout_grad": ("dy",),
    "rnn_forward": ("w", "x", "hx"),
    "rnn_backward": ("w", "x", "hx"),
}
#: those that may be left out
OPTIONAL = {
    norm.TRAIN: norm.OPERANDS[norm.TRAIN][0][3:],
    "rnn_forward": rnn.INPUTS["rnn_forward"][3:],
    "rnn_backward": rnn.INPUTS["rnn_backward"][3:7],
}
#: of networks without a cell
_CELL = ("cx", "dcy")


def operation(names: list[str], files: list[str]) -> str:
    """The one operation that is named, with its parameters; ValueError otherwise, which says where it is to stand."""
    if len(names) != 1 or names[0].split()[0] not in OPERANDS:
        beside = f"; put {files[-1]} before --data" if not names and files[-1].split()[0] in OPERANDS else ""
        raise ValueError(
            f"--data: expected exactly one operation of {', '.join(FAMILY)}, got {names or 'none'}{beside}"
        )
    return names[0]


def trial(line: str, files: list[str]) -> Trial:
    """The problem that an operation with its parameters and these arrays pose; ValueError and TypeError are the user's to see."""
    op, *words = line.split()
    fields = dict(word.split("=", 1) for word in words if "=" in word)
    if len(fields) != len(words):
        raise ValueError(f"--data: expected {op} and parameters as NAME=VALUE, got {line!r}")
    names, optional = OPERANDS[op], OPTIONAL.get(op, ())
    if FAMILY[op] == "rnn" and fields.get("mode") in GATES and fields["mode"] != "lstm":
        optional = tuple(name for name in optional if name not in _CELL)
    old_of: tuple[str, ...] = (
        (conv.OPERATIONS[op].output,) if FAMILY[op] == "conv" and float(fields.get("beta", "0")) else ()
    )
    arrays = [item for item in read(files) if item.array.ndim]  # numbers stand beside arrays in many archives
    given = assign(op, (*names, *old_of), optional, arrays)
    if FAMILY[op] == "conv":
        given = _alike(given)
    order: list[str] = [name for name in (*names, *optional) if name in given]
    for name in order:
        fields[name] = _spec(op, name, given[name], fields.get(name))
    if FAMILY[op] == "conv":
        _complete(op, fields, {name: given[name].array.shape for name in names})
    problem = cases.parse(" ".join([op, *(f"{name}={value}" for name, value in fields.items())]))
    old = given[old_of[0]].array if old_of else None
    if old is not None and old.shape != problem.output.shape:
        raise ValueError(f"{old_of[0]}: expected shape {problem.output.shape}, got {old.shape}")
    return Trial(problem, tuple(given[name].array for name in order), old)


def _spec(op: str, name: str, given: Given, said: str | None) -> str:
    """The array as the problem's line has it; ``said``: what the line says of it, which must be so."""
    try:
        spec = view_of(given.array, name).spec()
    except TypeError as error:
        raise TypeError(f"--data: {error}, in {given.source}") from None
    if FAMILY[op] == "conv" and conv.OPERATIONS[op].arrangement:
        spec = conv.ours(op, spec)
    if said is None:
        return str(replace(spec, aligned=True))
    wanted = Spec.parse(said)
    if (wanted.dtype, wanted.shape) != (spec.dtype, spec.shape):
        raise ValueError(
            f"{name}: expected {wanted.dtype} {wanted.shape} as the line says, got {spec} in {given.source}"
        )
    return said


def _alike(given: dict[str, Given]) -> dict[str, Given]:
    """Arrays of different types as a convolution takes them: in the wider one; float16 with bfloat16 in float32."""
    types = {item.array.dtype for item in given.values()}
    if len(types) == 1 or any(t.name not in ("float16", "bfloat16", "float32", "float64") for t in types):
        return given
    widest = max(types, key=lambda t: t.itemsize)
    common = np.dtype("float32") if widest.itemsize == 2 else numpy_dtype(widest.name)
    return {name: item._replace(array=item.array.astype(common)) for name, item in given.items()}


def _complete(op: str, fields: dict[str, str], known: dict[str, tuple[int, ...]]) -> None:
    """What the line of a convolution leaves out and its arrays decide: a line's padding, the size of a gradient."""
    described = conv.OPERATIONS[op]
    if described.arrangement == "line":
        taps = known["w"][-1]
        fields.setdefault("pad", f"0,0,{(taps - 1) * integers('dilation', fields.get('dilation', '1,1'))[-1]},0")
    if described.direction == "forward" or described.output in fields:
        return
    axes, (first, second) = described.axes, (known[name] for name in described.inputs)
    stride = integers("stride", fields["stride"]) if "stride" in fields else (1,) * axes
    if any(n != 1 for n in stride):
        raise ValueError(
            f"{described.output}: expected {described.output}=DTYPE:AxBx.. in the line, as a stride of {stride} leaves it open"
        )
    if len(first) != axes + 2 or len(second) != axes + 2:
        return  # the line's own checks say so
    pad = integers("pad", fields["pad"]) if "pad" in fields else (0,) * (2 * axes)
    dilation = integers("dilation", fields["dilation"]) if "dilation" in fields else (1,) * axes
    groups = int(fields.get("groups", "1"))
    more = (tuple(zip(pad[::2], pad[1::2], strict=True)), stride, dilation, groups)
    if described.direction == "grad_inputs":
        shape = shapes.get_conv_gradinputs_shape(second, first, *more)
    else:
        shape = shapes.get_conv_gradweights_shape(first, second, *more)
    fields[described.output] = f"{fields[described.inputs[0]].split(':')[0]}:{'x'.join(map(str, shape))}"


def rows(line: str, files: list[str], backend: str | None) -> list[Row]:
    """A row an implementation; interrupted, those there are and one that says so."""
    name, found = f"data {line.split()[0]}", []
    own: Any = trial(line, files)
    try:
        for row in check_all(Subject(name, own.problem, own, integers=True), backend):
            found.append(row)
    except KeyboardInterrupt:
        found.append(Row(name, "all", "", report.NOT_RUN, report.BY_CTRL_C))
    return found
