"""Records of arguments: values by name come in the order in which the kernel's function takes them."""

import importlib
import inspect
import pkgutil
from collections.abc import Iterator

import pytest

from numbadnn import kernels
from numbadnn.kernels.build.arguments import Arguments
from numbadnn.kernels.build.launch import Kernel

#: a kernel of more values than these has a record of them
MOST_UNNAMED = 12
RECORD = Arguments("map:2", "ptr", "i32 count groups", "i64*2 strides", "f32 alpha")


def known_kernels() -> Iterator[Kernel]:
    """The representative ones, and those that sm_90 alone can run."""
    yield from kernels.all_kernels()
    for info in pkgutil.walk_packages(kernels.__path__, "numbadnn.kernels."):
        yield from getattr(importlib.import_module(info.name), "hopper_kernels", tuple)()


def test_every_kernel_of_many_arguments_has_a_record_with_the_names_of_its_function() -> None:
    pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")
    found = 0
    for kernel in known_kernels():
        types = kernel.parameters.split()
        values = len(types) - sum(word in ("ptr", "map") for word in types)
        if not isinstance(kernel.parameters, Arguments):
            assert values <= MOST_UNNAMED, f"{kernel.name} has {values} values and no record of their names"
            continue
        names = tuple(inspect.signature(kernel.build()).parameters)
        assert names[len(types) - values :] == kernel.parameters.names, kernel.name
        found += 1
    assert found > 60


def test_a_record_is_the_text_of_the_parameters() -> None:
    assert RECORD == "map map ptr i32 i32 i64*2 f32"
    assert RECORD.names == ("count", "groups", "strides", "alpha")


def test_values_are_given_by_name_or_looked_up() -> None:
    assert RECORD({"groups": 4, "alpha": 2.0, "beta": 0.0}, strides=(1, 2), count=3, alpha=1.0) == (3, 4, (1, 2), 1.0)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"count": 1, "groups": 2, "strides": (1, 2)}, r"missing \['alpha'\], not among them \[\]"),
        ({"count": 1, "groups": 2, "strides": (1, 2), "alpha": 1.0, "beta": 0.0}, r"not among them \['beta'\]"),
    ],
)
def test_a_missing_or_strange_name_is_an_error(given: dict[str, object], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        RECORD(**given)


@pytest.mark.parametrize("part", ["ptr x", "i32", "i32:2 a b"])
def test_a_part_that_is_neither_addresses_nor_names_is_an_error(part: str) -> None:
    with pytest.raises(ValueError, match="expected addresses without names and other types with names, got"):
        Arguments(part)
