"""`numbadnn validate "OP parameters" --data FILES` and `@FILE`: arrays and cases of one's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import numbadnn
from numbadnn import cases
from numbadnn.__main__ import main
from numbadnn.commands import lines
from numbadnn.gpu import devices
from numbadnn.measuring.data import make_arrays
from numbadnn.registry import FAMILY
from numbadnn.validate import own_data, run

RNG = np.random.default_rng(5)
needs_cpu_only = pytest.mark.skipif(bool(devices.gpus()), reason="with a GPU its implementations run too")


def normal(*shape: int, dtype: Any = "float32") -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., list[str]]:
    def to_files(*arrays: np.ndarray) -> list[str]:
        files = [str(tmp_path / f"{i}.npy") for i in range(len(arrays))]
        for file, array in zip(files, arrays, strict=True):
            np.save(file, array)
        return files

    return to_files


def problem_of(line: str, files: list[str]) -> str:
    """The problem line, once every implementation that takes it agrees."""
    found = own_data.rows(line, files, "cpu")
    ran = [row for row in found if row.status != "refused"]
    assert ran and all(row.status == "ok" and row.worst is not None and row.same_bits for row in ran), found
    return ran[0].problem


@pytest.mark.parametrize(
    ("line", "arrays", "says"),
    (
        ("conv2d", (normal(2, 3, 8, 7), normal(4, 3, 3, 2)), "y=float32:2x4x6x6 pad=0,0,0,0"),
        ("conv2d", (normal(2, 3, 8, 7, dtype="float16"), normal(4, 3, 3, 2)), "x=float32:2x3x8x7"),
        ("conv2d pad=1,1,1,0 stride=2,1", (normal(2, 3, 8, 7), normal(4, 3, 3, 2)), "y=float32:2x4x4x7 pad=1,1,1,0"),
        ("conv2d", (normal(1, 2, 6, 6, dtype=ml_dtypes.bfloat16), normal(2, 2, 3, 3, dtype=ml_dtypes.bfloat16)), "bfloat16"),
        ("conv2d flip=0 groups=2", (normal(1, 4, 6, 6), normal(2, 2, 3, 3)), "flip=0 groups=2"),
        ("conv2d_grad_wrt_inputs", (normal(2, 4, 6, 6), normal(4, 3, 3, 2)), "x=float32:2x3x8x7"),
        ("conv2d_grad_wrt_inputs stride=2,2 x=float32:2x3x8x8", (normal(2, 4, 3, 3), normal(4, 3, 3, 3)), "x=float32:2x3x8x8"),
        ("conv2d_grad_wrt_weights", (normal(2, 3, 8, 7, dtype="float64"), normal(2, 4, 6, 6, dtype="float64")), "w=float64:4x3"),
        ("causal_conv1d dilation=1,2", (normal(2, 3, 9), normal(4, 3, 3)), "pad=0,0,4,0"),
        ("softmax algo=log", (normal(5, 33),), "algo=log"),
        ("softmax_grad", (normal(5, 33), np.full((5, 33), 1 / 33, "float32")), "softmax_grad"),
        ("pool window=3x3 stride=2x2 pad=1x1 mode=average_exc_pad", (normal(2, 3, 8, 8),), "average_exc_pad"),
        ("rnn_backward mode=gru hidden=3 layers=1", (normal(60), normal(4, 2, 2), normal(1, 2, 3), normal(4, 2, 3)), "dy="),
    ),
    ids=lambda v: v if isinstance(v, str) else None,
)  # fmt: skip
def test_lines_with_parameters(line: str, arrays: Any, says: str, save: Callable[..., list[str]]) -> None:
    if line.startswith("rnn"):
        arrays = (normal(numbadnn.RNNBlock("float32", 3, 1, "gru").get_param_size([2, 2])), *arrays[1:])
    assert says in problem_of(line, save(*arrays))


@pytest.mark.parametrize("op", FAMILY)
def test_the_line_of_every_operation_takes_its_arrays_by_name(op: str, tmp_path: Path) -> None:
    known = [c for c in cases.find(["contract"]) if c.op == op and "float32" in c.text and "unaligned" not in c.text]
    case = min(known, key=lambda case: len(case.text))
    inputs, old = make_arrays(case.problem(), 3)
    names = (*own_data.OPERANDS[op], *own_data.OPTIONAL.get(op, ()))
    words = {word.split("=")[0] for word in str(case.problem()).split()[1:]}
    order = [name for name in names if name in words]
    np.savez(tmp_path / "all.npz", **dict(zip(order, inputs, strict=True)), step=3)
    trial = own_data.trial(str(case.problem()), [str(tmp_path / "all.npz")])
    assert str(trial.problem) == str(case.problem())
    assert all(np.array_equal(a, b) for a, b in zip(trial.inputs, inputs, strict=True))


def test_old_contents_enter_with_beta(save: Callable[..., list[str]]) -> None:
    x, w, y = save(normal(1, 2, 5, 5), normal(3, 2, 3, 3), normal(1, 3, 3, 3))
    assert "beta=2" in problem_of("conv2d beta=2", [x, w, f"y={y}"])
    with pytest.raises(ValueError, match=r"takes 3 arrays \(x, w, y\), got 2"):
        own_data.trial("conv2d beta=2", [x, w])


def test_safetensors(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    from safetensors.numpy import save_file

    file = str(tmp_path / "a.safetensors")
    save_file({"w": normal(4, 3, 3, 3), "x": normal(1, 3, 6, 6)}, file)
    assert "x=float32:1x3x6x6 w=float32:4x3x3x3" in problem_of("conv2d", [file])
    (tmp_path / "b.safetensors").write_bytes(b"none of it" * 9)
    with pytest.raises(ValueError, match=r"b\.safetensors is not a \.safetensors file"):
        own_data.trial("conv2d", [str(tmp_path / "b.safetensors")])


def test_arrays_that_hold_nan_agree_where_it_spreads(save: Callable[..., list[str]]) -> None:
    x = normal(1, 2, 8, 8)
    x[0, 0, 3, 3] = np.nan
    problem_of("conv2d", save(x, normal(3, 2, 3, 3)))


@needs_cpu_only
def test_every_backend_counts_what_is_absent(save: Callable[..., list[str]]) -> None:
    rows = own_data.rows("softmax", save(normal(2, 4)), None)
    assert {r.status for r in rows if not r.impl.startswith("cpu")} == {"refused"}


class Unpickled:
    """Makes the file of its name where it is unpickled."""

    def __reduce__(self) -> Any:
        return (open, ("unpickled", "w"))


def test_nothing_is_unpickled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.array([Unpickled()], dtype=object), allow_pickle=True)
    np.savez("x.npz", x=np.array([Unpickled()], dtype=object))
    for file in ("x.npy", "x.npz"):
        assert main(["validate", "softmax", "--data", file]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    assert not Path("unpickled").exists()


def test_arrays_of_the_wrong_number_kind_or_name(save: Callable[..., list[str]], tmp_path: Path) -> None:
    def refused(line: str, files: list[str], message: str) -> None:
        with pytest.raises((ValueError, TypeError), match=message):
            own_data.trial(line, files)

    refused("conv2d", save(normal(2, 2)), r"conv2d takes 2 arrays \(x, w\), got 1")
    refused("batch_normalization_train", save(normal(2, 2)), "gamma, beta and, if wanted, running_mean, running_var")
    (tmp_path / "text.npy").write_text("not an array")
    refused("softmax", [str(tmp_path / "text.npy")], r"is not a \.npy file")
    x, w = save(normal(2, 3), normal(4, 3, 3, 2))
    refused("conv2d", [x, w], "x: expected 4 axes")
    refused("conv2d", [f"q={x}", w], "conv2d has no operand 'q'")
    refused("conv2d", [f"w={x}", f"w={w}"], "w: expected one array, got")
    refused("conv2d pad", [x, w], "expected conv2d and parameters as NAME=VALUE")
    refused("softmax x=float32:3x2", [x], "x: expected float32 .3, 2. as the line says, got float32:2x3 in ")
    refused("softmax", save(normal(2, 2, dtype="int32")), r"x: expected dtype float16.* got int32.*, in .*0\.npy")
    image, top = save(normal(1, 2, 9, 9), normal(1, 3, 4, 4))
    refused("conv2d_grad_wrt_weights stride=2,2", [image, top], "w: expected w=DTYPE:AxBx.. in the line")
    with pytest.raises(ValueError, match="expected exactly one operation"):
        run.validate([], data=["x.npy"])


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ("cudnn", "numba"))
def test_arrays_on_a_gpu(backend: str, save: Callable[..., list[str]]) -> None:
    rows = own_data.rows("conv2d", save(normal(2, 3, 8, 7), normal(4, 3, 3, 2)), backend)
    assert "ok" in {row.status for row in rows} <= {"ok", "refused"}


# ---- files of cases -------------------------------------------------------------------------------------------------------


def test_a_log_is_validated_as_it_was_pasted(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    block = numbadnn.RNNBlock("float32", 3, 1, "gru")
    w, x, state = normal(block.get_param_size([2, 2])), normal(4, 2, 2), normal(1, 2, 3)
    with numbadnn.using(verbose="all"):
        for _ in range(2):
            numbadnn.softmax(normal(3, 4))
        outputs, reserve = block.forward(w, x, state)
        block.backward(reserve, outputs[0])
    log = tmp_path / "log.txt"
    log.write_text("# of today\n\n" + capfd.readouterr().err + "pool x=float32:1x1x4x4 window=2x2\n")
    names = lines.expanded([f"@{log}"])
    assert [name.split()[0] for name in names] == ["softmax", "rnn_forward", "rnn_backward", "pool"]
    assert main(["validate", f"@{log}", "--backend", "cpu"]) == 0
    assert "4 agree" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("text", "message"),
    (
        (None, "cannot read it: No such file"),
        ("# nothing\n", "expected a case a line, got a file without any"),
        ("numbadnn exec impl=cpu.loops case='softmax\n", "expected a whole line of NUMBADNN_VERBOSE=exec in line 1"),
        ("sofmax x=float32:2x3\n", "got 'sofmax x=float32:2x3'"),
    ),
)
def test_files_of_no_cases(text: str | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "cases.txt"
    if text is not None:
        file.write_text(text)
    assert main(["validate", f"@{file}", "--backend", "cpu"]) == 2
    assert message in capsys.readouterr().err
