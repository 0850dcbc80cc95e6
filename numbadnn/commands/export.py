"""A case as a one-liner for somebody else's library: ``numbadnn explain CASE --export torch`` or ``benchdnn``.

``torch`` is a line of Python that makes operands of the same dtype, shape and strides and computes the same thing; ``benchdnn`` a
command of oneDNN's driver. What the other side cannot say is a ValueError with the reason, never something near it.
"""

from __future__ import annotations

from typing import Any

from numbadnn import config
from numbadnn.problem import Spec


def export(problem: Any, target: str) -> str:
    """The one-liner of a problem; ValueError where ``target`` has no words for it.

    >>> from numbadnn.cases import parse
    >>> print(export(parse("softmax x=float16:8x512"), "benchdnn"))
    benchdnn --softmax --sdt=f16 --ddt=f16 --stag=ab --dtag=ab --alg=SOFTMAX --axis=1 8x512
    """
    makers = {"torch": _TORCH, "benchdnn": _BENCHDNN}
    if target not in makers:
        raise ValueError(f"export: expected one of {', '.join(makers)}, got {target!r}")
    maker = makers[target].get(problem.op)
    if maker is None:
        raise ValueError(f"{target} has no one-liner for {problem.op}; it has {', '.join(makers[target])}")
    return maker(problem)


# ---- torch -----------------------------------------------------------------------------------------------------------


def _tensor(name: str, spec: Spec) -> str:
    """``name = ...`` of the same dtype, shape and strides, on the GPU."""
    if min(spec.strides, default=0) < 0:
        raise ValueError(f"torch has no negative strides, {name} has {spec.strides}")
    where = f"dtype=torch.{spec.dtype}, device='cuda'"
    if not spec.aligned:
        raise ValueError(f"{name} is not aligned to 16 bytes, a new tensor always is")
    if spec.is_contiguous:
        return f"{name} = torch.randn({spec.shape}, {where})"
    return f"{name} = torch.empty_strided({spec.shape}, {spec.strides}, {where}).normal_()"


def _python(*statements: str) -> str:
    return 'python -c "' + "; ".join(["import torch", *statements, "torch.cuda.synchronize()"]) + '"'


def _arithmetic(p: Any) -> list[str]:
    """What float32 means, as the option in force has it: PyTorch's own default is TF32."""
    tf32 = config.current().fp32_precision == "tf32"
    return [f"torch.backends.cudnn.allow_tf32 = {tf32}"] if p.x.dtype == "float32" else []


def _torch_conv(p: Any) -> str:
    """A correlation; true convolution turns the filters, uneven padding pads first."""
    if p.unshared or p.beta or p.alpha != 1:
        raise ValueError("torch's convolutions have neither unshared filters nor alpha and beta")
    dims = list(range(2, 2 + p.axes))
    w = f"w.flip({dims})" if p.flip and any(n > 1 for n in p.taps) else "w"
    make = [*_arithmetic(p), *(_tensor(name, getattr(p, name)) for name in p.input_names)]
    low = [pair[0] for pair in p.padding]
    fixed = f"{list(p.stride)}, {low}, {list(p.dilation)}"
    if not p.symmetric and p.direction != "forward":
        raise ValueError("torch's convolution gradients have one padding for both sides of an axis")
    if p.direction == "forward":
        x = "x"
        if not p.symmetric:
            sides = [n for pair in reversed(p.padding) for n in pair]
            x, fixed = f"torch.nn.functional.pad(x, {sides})", f"{list(p.stride)}, 0, {list(p.dilation)}"
        return _python(*make, f"y = torch.nn.functional.conv{p.axes}d({x}, {w}, None, {fixed}, {p.groups})")
    which = p.direction == "grad_inputs"
    missing = _tensor("x", p.x) if which else _tensor("w", p.w)
    backward = f"torch.ops.aten.convolution_backward(y, x, {w}, None, {fixed}, False, {[0] * p.axes}, {p.groups}"
    picked = f"{backward}, [{which}, {not which}, False])[{0 if which else 1}]"
    if not which and w != "w":
        picked += f".flip({dims})"
    return _python(*make, missing, f"g = {picked}")


def _torch_softmax(p: Any) -> str:
    rows = "x" if p.mode == "channel" else "x.flatten(1)"
    name = "log_softmax" if p.algo == "log" else "softmax"
    if p.op == "softmax":
        return _python(_tensor("x", p.x), f"y = torch.nn.functional.{name}({rows}, 1)")
    make = [_tensor("dy", p.dy), _tensor("y", p.y)]
    dy, y = ("dy", "y") if p.mode == "channel" else ("dy.flatten(1)", "y.flatten(1)")
    return _python(*make, f"g = torch.ops.aten._{name}_backward_data({dy}, {y}, 1, dy.dtype)")


def _torch_pool(p: Any) -> str:
    axes = len(p.window)
    window, stride, pad = list(p.window), list(p.stride), list(p.pad)
    if any(2 * n > w for n, w in zip(pad, window, strict=True)):
        raise ValueError("torch's pooling pads by half a window at most")
    if p.mode.startswith("max"):
        call = f"torch.nn.functional.max_pool{axes}d(x, {window}, {stride}, {pad})"
    else:
        include = p.mode != "average_exc_pad"
        call = f"torch.nn.functional.avg_pool{axes}d(x, {window}, {stride}, {pad}, count_include_pad={include}"
        call += ", divisor_override=1)" if p.mode == "sum" else ")"
    return _python(_tensor("x", p.x), f"y = {call}")


_TORCH = {
    **dict.fromkeys(
        (f"conv{n}d{d}" for n in (2, 3) for d in ("", "_grad_wrt_inputs", "_grad_wrt_weights")), _torch_conv
    ),
    "softmax": _torch_softmax,
    "softmax_grad": _torch_softmax,
    "pool": _torch_pool,
}

# ---- benchdnn --------------------------------------------------------------------------------------------------------

_DT = {"float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64"}


def _tag(name: str, spec: Spec) -> str:
    """oneDNN's name of a layout: abcd, or acdb for channels last."""
    letters = "abcdefgh"[: len(spec.shape)]
    if spec.is_contiguous:
        return letters
    if spec.is_channels_last:
        return "a" + letters[2:] + "b"
    raise ValueError(f"benchdnn's tags are packed layouts, {name} has strides {spec.strides}")


def _benchdnn_conv(p: Any) -> str:
    """oneDNN correlates: a true convolution of more than one tap has other filters, which do not change the time."""
    if p.unshared or p.beta or p.alpha != 1:
        raise ValueError("benchdnn --conv has neither unshared filters nor alpha and beta")
    direction = {"forward": "FWD_D", "grad_inputs": "BWD_D", "grad_weights": "BWD_W"}[p.direction]
    letters = "dhw"[-p.axes :]

    def per_axis(what: str, values: Any) -> str:
        return "".join(f"{what}{letter}{value}" for letter, value in zip(letters, values, strict=True))

    groups, (n, channels), filters = p.groups, p.x.shape[:2], p.w.shape[0]
    text = (f"g{groups}" if groups > 1 else "") + f"mb{n}ic{channels}{per_axis('i', p.x.shape[2:])}"
    text += f"oc{filters}{per_axis('o', p.y.shape[2:])}{per_axis('k', p.taps)}{per_axis('s', p.stride)}"
    text += per_axis("p", [low for low, _ in p.padding]) + per_axis("d", [n - 1 for n in p.dilation])
    dt = _DT[p.x.dtype]
    return (
        f"benchdnn --conv --dir={direction} --dt={dt} --stag={_tag('x', p.x)} --wtag=any --dtag={_tag('y', p.y)} {text}"
    )


def _benchdnn_softmax(p: Any) -> str:
    if p.mode != "channel":
        raise ValueError("benchdnn --softmax normalises one axis, mode=instance several")
    alg, shape, dt = "LOGSOFTMAX" if p.algo == "log" else "SOFTMAX", "x".join(map(str, p.y.shape)), _DT[p.y.dtype]
    first = p.x if p.op == "softmax" else p.dy
    direction = "" if p.op == "softmax" else " --dir=BWD_D"
    tags = f"--stag={_tag('x', first)} --dtag={_tag('y', p.output)}"
    return f"benchdnn --softmax{direction} --sdt={dt} --ddt={dt} {tags} --alg={alg} --axis=1 {shape}"


_BENCHDNN = {
    **dict.fromkeys(
        (f"conv{n}d{d}" for n in (2, 3) for d in ("", "_grad_wrt_inputs", "_grad_wrt_weights")), _benchdnn_conv
    ),
    "softmax": _benchdnn_softmax,
    "softmax_grad": _benchdnn_softmax,
}
