"""``cudnn._call``: each prototype of the C calls gets integers and doubles in their places, pointers replaced per call."""

import ctypes
import random
from typing import Any

import pytest

pytest.importorskip("numba")

from numbadnn.cudnn import _call, _compiled, _shim
from numbadnn.cudnn._call import POINTER
from numbadnn.cudnn._prototypes import PROTOTYPES

CONTEXT = 0x7F00_1234_5678
P, I, D = ctypes.c_void_p, ctypes.c_int, ctypes.c_double
INDEX = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_uint64))

#: every function that is called through ``prepare``
FUNCTIONS = (
    "cudnnSoftmaxForward",
    "cudnnSoftmaxBackward",
    "cudnnPoolingForward",
    "cudnnPoolingBackward",
    "cudnnConvolutionForward",
    "cudnnConvolutionBackwardData",
    "cudnnConvolutionBackwardFilter",
    "cudnnBatchNormalizationForwardTraining",
    "cudnnBatchNormalizationForwardInference",
    "cudnnBatchNormalizationBackward",
    "cudnnSpatialTfGridGeneratorForward",
    "cudnnSpatialTfGridGeneratorBackward",
    "cudnnSpatialTfSamplerForward",
    "cudnnSpatialTfSamplerBackward",
)


def current_context(value: int) -> Any:
    def get(out: Any) -> int:
        out[0] = value
        return 0

    return INDEX(get)


def address(callback: Any) -> int:
    return ctypes.cast(callback, ctypes.c_void_p).value or 0


@pytest.mark.parametrize("name", FUNCTIONS)
def test_arguments_arrive_in_their_places(name: str) -> None:
    kinds, rng, got = PROTOTYPES[name][1], random.Random(name), []
    callback = ctypes.CFUNCTYPE(ctypes.c_int, *kinds)(lambda *given: got.append(given) or 0)
    getter = current_context(CONTEXT)
    values = [rng.random() if k is D else rng.randrange(2**31 if k is I else 2**63) for k in kinds]
    assert all(k in (P, I, D, ctypes.c_size_t) for k in kinds)
    pointers_at = [i for i, k in enumerate(kinds) if k is P and i]
    places = rng.sample(pointers_at, min(4, len(pointers_at)))
    words = [POINTER[places.index(i)] if i in places else v for i, v in enumerate(values) if kinds[i] is not D]
    reals = [v for v, k in zip(values, kinds, strict=True) if k is D]
    table = _call.table_of(address(getter), CONTEXT, address(callback), words, reals)
    for _ in range(2):  # the second call brings other addresses to the same table
        pointers = [rng.randrange(1, 2**63) for _ in places]
        assert _compiled.call_c(ctypes.addressof(table), *pointers, *[0] * (8 - len(pointers))) == 0
        want = [pointers[places.index(i)] if i in places else v for i, v in enumerate(values)]
        assert list(got[-1]) == want
    assert len(got) == 2


def test_a_status_names_the_step_and_another_context_calls_nothing() -> None:
    calls: list[int] = []
    callback = ctypes.CFUNCTYPE(ctypes.c_int, P)(lambda handle: calls.append(handle) or 3000)
    here, elsewhere = current_context(CONTEXT), current_context(CONTEXT + 8)
    table = _call.table_of(address(here), CONTEXT, address(callback), (7,))
    assert _compiled.call_c(ctypes.addressof(table), *[0] * 8) == (_shim.C_CALL << 32) + 3000
    assert calls == [7]
    table = _call.table_of(address(elsewhere), CONTEXT, address(callback), (7,))
    assert _compiled.call_c(ctypes.addressof(table), *[0] * 8) == _shim.WRONG_CONTEXT and calls == [7]


def test_more_than_the_table_holds_is_refused() -> None:
    with pytest.raises(AssertionError):
        _call.table_of(0, 0, 0, range(_call.MOST_WORDS + 1))
    with pytest.raises(AssertionError):
        _call.table_of(0, 0, 0, (POINTER[1],))  # the first address has no place
