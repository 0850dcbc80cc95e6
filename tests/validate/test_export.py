"""Cases as one-liners for other libraries: what PyTorch computes from them is what the reference says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import numbadnn
from numbadnn import __main__ as command
from numbadnn.cases import all_cases, parse
from numbadnn.commands.export import export
from numbadnn.validate.oracle import expected

LINES = (
    "conv2d x=float64:2x4x7x6 w=float64:6x2x3x2 pad=1,1,0,0 stride=2,1 dilation=1,2 groups=2",
    "conv2d x=float64:2x3x7x6:nhwc w=float64:4x3x3x3 pad=0,2,1,0",
    "conv2d x=float64:1x2x5x5:100,25,5,1 w=float64:1x2x2x2 flip=0",
    "conv2d_grad_wrt_inputs x=float64:2x4x7x6 w=float64:6x2x3x3 pad=1,1,1,1 stride=2,2 groups=2",
    "conv2d_grad_wrt_weights x=float64:2x3x7x6 w=float64:4x3x3x3 pad=1,1,1,1",
    "conv3d x=float64:1x2x4x5x6 w=float64:3x2x2x3x2 pad=1,1,0,0,1,1",
    "softmax x=float64:3x5x2", "softmax x=float64:3x5x2 algo=log mode=instance", "softmax_grad dy=float64:3x5 algo=log",
    "softmax_grad dy=float64:3x5x2 mode=instance",
    "pool x=float64:2x3x7x6 window=3x2 stride=2x1 pad=1x1 mode=average_exc_pad",
    "pool x=float64:2x3x7x6 window=3x2 stride=2x1 pad=1x1 mode=average_inc_pad",
    "pool x=float64:2x3x7x6x5 window=2x2x2 mode=max", "pool x=float64:1x1x4x4 window=2x2 mode=sum",
)  # fmt: skip


def test_float32_means_what_it_means_here() -> None:
    """PyTorch's own default is TF32."""
    line = "conv2d{} x=float32:2x3x7x6 w=float32:4x3x3x3"
    for direction in ("", "_grad_wrt_inputs", "_grad_wrt_weights"):
        assert "; torch.backends.cudnn.allow_tf32 = False; " in export(parse(line.format(direction)), "torch")
    with numbadnn.using(fp32_precision="tf32"):
        assert "; torch.backends.cudnn.allow_tf32 = True; " in export(parse(line.format("")), "torch")
    assert "allow_tf32" not in export(parse(line.format("").replace("float32", "float16")), "torch")


@pytest.mark.parametrize("line", LINES)
def test_torch_computes_the_same(line: str) -> None:
    torch = pytest.importorskip("torch")
    problem = parse(line)
    text = export(problem, "torch")
    assert text.startswith('python -c "import torch; ') and text.endswith('; torch.cuda.synchronize()"')
    body = text[len('python -c "') : -len('; torch.cuda.synchronize()"')].replace("device='cuda'", "device='cpu'")
    names: dict[str, Any] = {}
    exec(body, names)
    inputs = [names[name] for name in ("x", "w", "dy", "y") if name in names][: len(problem.inputs)]
    if "_grad_wrt" in line:
        inputs = [names[name] for name in problem.input_names]
    for array, spec in zip(inputs, problem.inputs, strict=True):
        assert tuple(array.shape) == spec.shape and tuple(array.stride()) == spec.strides
    result = names["g" if "_grad" in problem.op else "y"]
    (value,) = expected(problem, tuple(a.numpy() for a in inputs))
    assert np.allclose(result.reshape(value.shape).numpy(), value, atol=1e-9) and torch is not None


def test_benchdnn_names_every_size() -> None:
    line = (
        "conv2d_grad_wrt_inputs x=float16:2x8x7x6:nhwc w=float16:6x4x3x2 pad=1,1,0,0 stride=2,1 dilation=1,2 groups=2"
    )
    assert export(parse(line), "benchdnn") == (
        "benchdnn --conv --dir=BWD_D --dt=f16 --stag=acdb --wtag=any --dtag=acdb "
        "g2mb2ic8ih7iw6oc6oh4ow4kh3kw2sh2sw1ph1pw0dh0dw1"
    )
    assert "--dir=BWD_D --sdt=bf16" in export(parse("softmax_grad dy=bfloat16:4x9"), "benchdnn")


@pytest.mark.parametrize(
    ("line", "target", "why"),
    [
        ("conv2d x=float32:2x1x4x4:-16,16,4,1 w=float32:1x1x2x2", "torch", "no negative strides"),
        ("conv2d x=float32:1x1x4x4:unaligned w=float32:1x1x2x2", "torch", "not aligned to 16 bytes"),
        ("conv2d x=float32:1x1x4x4 w=float32:1x1x2x2 alpha=2", "torch", "neither unshared filters nor alpha"),
        ("conv2d x=float32:2x1x4x4:99,16,4,1 w=float32:1x1x2x2", "benchdnn", "tags are packed layouts"),
        ("softmax x=float32:2x3x4 mode=instance", "benchdnn", "normalises one axis"),
        ("pool x=float32:1x1x4x4 window=2x2", "benchdnn", "has no one-liner for pool"),
        ("pool x=float32:1x1x6x6 window=3x3 pad=2x2", "torch", "half a window at most"),
    ],
)
def test_what_cannot_be_said_is_refused(line: str, target: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        export(parse(line), target)


def test_every_layer_of_the_benches_can_be_exported_or_says_why() -> None:
    for case in all_cases().values():
        if "bench" in case.tags:
            for target in ("torch", "benchdnn"):
                try:
                    assert "\n" not in export(case.problem(), target)
                except ValueError as error:
                    assert len(str(error).split()) > 4


def test_the_command_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["explain", "softmax x=float16:8x512", "--export", "benchdnn"]) == 0
    assert capsys.readouterr().out.startswith("benchdnn --softmax --sdt=f16")
    assert command.main(["explain", "pool x=float16:1x1x4x4 window=2x2", "--export", "benchdnn"]) == 2
