"""PyTorch's own samples and bad arguments of its functions, given to numbadnn.torch's: run as a program, prints what differs."""

from __future__ import annotations

import itertools
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch

warnings.simplefilter("ignore")

from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402

import numbadnn.torch as nt  # noqa: E402
from numbadnn import NotSupportedError  # noqa: E402

AXES = ("1d", "2d", "3d")
NAMES = [
    *(f"{kind}{axes}" for kind in ("conv", "conv_transpose", "max_pool", "avg_pool") for axes in AXES),
    *("batch_norm", "grid_sample", "softmax", "log_softmax"),
]
#: of so many samples one is taken
EVERY = {"max_pool1d": 17, "max_pool2d": 29, "max_pool3d": 17}
#: samples that ask for what numbadnn has not: each is refused by the argument's name
REFUSED = (
    "dilation:", "return_indices:", "mode:", "padding_mode:", "input.ndim:", "momentum:", "input: expected at least 2 dimensions",
)  # fmt: skip
#: what an error may name
ARGUMENTS = (
    "input", "weight", "bias", "stride", "padding", "dilation", "groups", "output_padding", "kernel_size", "divisor_override",
    "dim", "dtype", *(name.rstrip(":") for name in REFUSED),
)  # fmt: skip


def entries() -> Iterator[tuple[str, Any]]:
    for entry in op_db:
        name = entry.name.removeprefix("nn.functional.")
        if name in NAMES and entry.variant_test_name in ("", "with_dtype"):
            yield name, entry


def named(error: Exception) -> bool:
    return str(error).split(":")[0].split(" ")[0] in ARGUMENTS


def samples(name: str, entry: Any) -> tuple[int, int, list[str]]:
    """Equal ones, refused ones, and what else happened."""
    equal, refused, wrong = 0, 0, []
    given = entry.sample_inputs("cpu", torch.float64, requires_grad=False)
    for sample in itertools.islice(given, 0, None, EVERY.get(name, 1)):
        said = f"{name} {tuple(sample.input.shape)} {[getattr(a, 'shape', a) for a in sample.args]} {sample.kwargs}"
        wanted = entry.op(sample.input.clone(), *(clone(a) for a in sample.args), **sample.kwargs)
        try:
            found = getattr(nt, name)(sample.input, *sample.args, **sample.kwargs)
            torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)
            equal += 1
        except (NotSupportedError, ValueError) as error:
            refused += 1
            if not str(error).startswith(REFUSED):
                wrong.append(f"{said}: {error}")
        except Exception as error:
            wrong.append(f"{said}: {type(error).__name__}: {error}")
    return equal, refused, wrong


def clone(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def errors(name: str, entry: Any) -> tuple[int, list[str]]:
    """Bad arguments that are errors with an argument's name, and the others."""
    count, wrong = 0, []
    for bad in entry.error_inputs("cpu") if entry.error_inputs_func else ():
        sample = bad.sample_input
        said = (
            f"{name} {getattr(sample.input, 'shape', sample.input)} {sample.args} {sample.kwargs} ({bad.error_regex})"
        )
        try:
            getattr(nt, name)(sample.input, *sample.args, **sample.kwargs)
            wrong.append(f"{said}: no error")
        except (ValueError, TypeError, NotSupportedError, IndexError) as error:
            count += 1
            if not named(error):
                wrong.append(f"{said}: {type(error).__name__}: {error}")
    return count, wrong


def main() -> int:
    wrong: list[str] = []
    for name, entry in entries():
        equal, refused, differing = samples(name, entry)
        raised, silent = errors(name, entry)
        print(f"{name}: {equal} equal, {refused} refused by name, {raised} errors by name")
        wrong += differing + silent
    print("\n".join(wrong))
    return len(wrong)


if __name__ == "__main__":
    sys.exit(min(main(), 99))
