"""Cases of recurrent networks: a contract of tiny ones in every mode, and networks in use, each forward and
backward."""

from __future__ import annotations

from collections.abc import Iterator

from numbadnn.cases import Case
from numbadnn.cases.layouts import operand, table
from numbadnn.problem import Spec
from numbadnn.problems.rnn import INPUTS, make
from numbadnn.problems.rnn_network import GATES, Network


def cases() -> Iterator[Case]:
    """The contract, then networks in use."""
    yield from _contract()
    yield from _in_use()


#: sizes, what differs from a one-layer, one-directional network; grads: what comes back (all of them by default)
_CONTRACT = """
plain          T=4 N=3 in=5 hidden=6 dtypes=*
layers3        T=4 N=2 in=3 hidden=4 layers=3
bidirectional  T=4 N=3 in=5 hidden=3 layers=2 both dtypes=*
skip           T=3 N=2 in=5 hidden=5 layers=2 skip
skip-both      T=3 N=2 in=4 hidden=4 layers=2 skip both
one-step       T=1 N=3 in=4 hidden=5
one-sequence   T=5 N=1 in=3 hidden=8 both
one-unit       T=3 N=2 in=1 hidden=1
lengths        T=5 N=4 in=3 hidden=4 layers=2 both lengths=3,5,1,4
wide           T=3 N=5 in=40 hidden=33
many           T=2 N=70 in=3 hidden=4
tiny           T=2 N=2 in=2 hidden=3
tiny-both      T=2 N=2 in=2 hidden=2 both lengths=1,2
tiny-skip      T=1 N=2 in=2 hidden=2 skip
all-steps      T=2 N=3 in=4 hidden=32
many-steps     T=6 N=20 in=64 hidden=128 layers=2 both lengths=6,5,4,3,2,1,6,6,6,6,1,1,2,3,4,5,6,6,3,1 dtypes=*
small-states   T=3 N=8 in=128 hidden=128 dtypes=*
small-both     T=3 N=8 in=128 hidden=128 both dtypes=*
state-only     T=3 N=2 in=3 hidden=4 layers=2 grads=dhy
zero-cell      T=3 N=2 in=3 hidden=4 grads=dy,dcy cells=no
strided        T=3 N=4 in=6 hidden=4 layout=reversed
unaligned      T=3 N=4 in=8 hidden=8 layout=unaligned dtypes=*
"""

#: two modes are enough of these
HALVED = ("one-step", "one-sequence", "one-unit", "wide", "many", "strided", "state-only")

#: cases that the CUDA simulator runs too, and in which mode: the slowest thing there is the number of steps and layers
SIMULATED = {
    "tiny": ("lstm", "gru", "rnn_relu", "rnn_tanh"),
    "tiny-both": ("gru",),
    "tiny-skip": ("lstm",),
    "all-steps": ("lstm",),
}


def _problem(op: str, dtype: str, mode: str, flags: list[str], f: dict[str, str]) -> str:
    T, N, width, hidden = (int(f[name]) for name in ("T", "N", "in", "hidden"))
    network = Network(
        hidden, int(f.get("layers", "1")), mode, "skip" if "skip" in flags else "linear",
        "bidirectional" if "both" in flags else "unidirectional",
    )  # fmt: skip
    state, output = (network.num_layers * network.directions, N, hidden), (T, N, hidden * network.directions)
    shapes = {
        "w": (network.blocks(width)[1],), "x": (T, N, width), "hx": state, "cx": state, "dy": output, "dhy": state,
        "dcy": state,
    }  # fmt: skip
    grads = f.get("grads", "dy,dhy,dcy").split(",")
    cells = ({"cx"} if f.get("cells") != "no" else set()) | {"dcy"} if network.has_cell else set()
    names = [n for n in INPUTS[op] if n in shapes and (n in ("w", "x", "hx") or n in grads or n == "cx")]
    names = [n for n in names if n not in ("cx", "dcy") or n in cells]
    layout = f.get("layout", "")
    specs: dict[str, Spec] = {n: operand(dtype, shapes[n], layout) for n in names}
    lengths = tuple(int(n) for n in f["lengths"].split(",")) if "lengths" in f else None
    return str(make(op, network, specs, lengths))


def _modes(name: str, number: int) -> tuple[str, ...]:
    """The modes of a case of the contract: all, two in turn, or those that show something."""
    if name == "zero-cell":
        return ("lstm",)
    if name in HALVED:
        return tuple(GATES)[1 - number % 2 :: 2]
    return SIMULATED[name] if name in ("tiny-both", "tiny-skip", "all-steps") else tuple(GATES)


def _contract() -> Iterator[Case]:
    for number, (name, flags, fields) in enumerate(table(_CONTRACT)):
        for op in INPUTS:
            for k, mode in enumerate(GATES):
                if mode not in _modes(name, number):
                    continue
                third = ("float16", "float64")[(number + k) % 2]
                dtypes: tuple[str, ...] = (
                    ("float16", "float32", "float64") if fields.get("dtypes") == "*" else ("float32",)
                )
                if len(dtypes) == 3 and name != "plain":
                    dtypes = ("float32", "float16" if name == "many-steps" else third)
                for dtype in dtypes:
                    tags = {"contract"} | ({"simulate"} if mode in SIMULATED.get(name, ()) else set())
                    text = _problem(op, dtype, mode, flags, fields)
                    yield Case(f"{op}/{name}/{mode}/{dtype}", text, frozenset(tags))


#: networks in use: full size, and what the smaller copy changes
_IN_USE = """
speech/lstm2    lstm     T=400 N=32 in=80  hidden=512 layers=2       small=T=20,N=4,hidden=64
speech/lstm512  lstm     T=100 N=64 in=512 hidden=512 layers=2       small=T=10,N=4,in=64,hidden=64
tagger/gru-both gru      T=64  N=64 in=300 hidden=256 layers=1 both  small=T=12,N=6,hidden=48
characters/gru  gru      T=1000 N=8 in=128 hidden=128 layers=1       small=T=40,N=4
elman/tanh      rnn_tanh T=200 N=64 in=256 hidden=256 layers=1       small=T=20,N=8,hidden=64
"""

#: several layers, whose launches follow one another: steps of a launch each, and all steps in one
_STACKED = """
stacked/lstm3-both  lstm     T=20 N=16 in=40 hidden=100 layers=3 both  small=T=5,N=3,hidden=10
stacked/gru2-step   gru      T=1  N=1  in=2  hidden=1   layers=2       small=T=1
stacked/gru4        gru      T=30 N=8  in=17 hidden=33  layers=4       small=T=4,N=2,hidden=9
stacked/lstm2-256   lstm     T=25 N=64 in=64 hidden=256 layers=2 both  small=T=4,N=4,hidden=32
stacked/tanh3       rnn_tanh T=50 N=2  in=8  hidden=17  layers=3 both  small=T=6
"""


def _in_use() -> Iterator[Case]:
    """Networks, and stacks of layers, which are not timed: what they show is that launches follow one another."""
    yield from _networks(_IN_USE, frozenset({"validate", "bench"}), ("float32", "float16"))
    yield from _networks(_STACKED, frozenset({"validate"}), ("float32", "float64"))


def _networks(lines: str, tags: frozenset[str], dtypes: tuple[str, ...]) -> Iterator[Case]:
    for name, words, fields in table(lines):
        mode, flags = words[0], words[1:]
        changes = [word.partition("=") for word in fields.pop("small").split(",")]
        small = {**fields, **{key: value for key, _, value in changes}}
        for op, short in (("rnn_forward", "forward"), ("rnn_backward", "backward")):
            for dtype in dtypes:
                full, less = (_problem(op, dtype, mode, flags, {**f, "grads": "dy"}) for f in (fields, small))
                yield Case(f"{name}/{short}/{dtype}", full, tags, less)
