"""How near what runs untuned comes to the fastest: by tables learned from all cases, and by tables that never saw a network.

A network that is left out takes all its layers with it, in every dtype and direction, also those that another network has too
and was measured under its name; a stricter line leaves them out at any number of images. A case counts once, by tables
without all networks that have its layer. "Chosen" is what ``select`` takes: the first by ``ranks.estimate_by`` that ran when
it was measured, and that is not refused today where the measured architecture is at hand to be asked.
"""

from __future__ import annotations

import collections
import functools
import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from learn_rank import Case, Tables, fastest_us, foretold, taken_us, timed

from numbadnn import config
from numbadnn.call import select
from numbadnn.cases.networks import NETWORKS, layers
from numbadnn.kept import ranks
from numbadnn.problem import Policy
from numbadnn.registry import FAMILY, Impl, implementations

NEAR = 1.1
Learn = Callable[[list[Case]], Tables]


# ---- networks --------------------------------------------------------------------------------------------------------


@functools.cache
def _networks() -> dict[tuple[Any, ...], frozenset[str]]:
    """A layer, with its number of images and without (None) -> the networks that have it."""
    found: dict[tuple[Any, ...], set[str]] = collections.defaultdict(set)
    for name in NETWORKS:
        for layer in layers(name):
            for images in (layer.images, None):
                found[images, layer.image, layer.filters, layer.stride, layer.pad, layer.groups].add(name)
    return {layer: frozenset(names) for layer, names in found.items()}


def networks_of(case: Case, any_images: bool = False) -> frozenset[str]:
    """The networks that have the layer of a case; its name's first word where none has."""
    p = case["parsed"]
    named = frozenset({case["case"].split("/")[0]})
    if FAMILY[p.op] != "conv" or len({*p.stride}) > 1 or len({side for pair in p.padding for side in pair}) > 1:
        return named
    images, *image = p.x.shape
    layer = (tuple(image), p.w.shape, p.stride[0], p.padding[0][0], p.groups)
    return _networks().get((None if any_images else images, *layer), frozenset()) | named


# ---- what is chosen --------------------------------------------------------------------------------------------------


class Choice(NamedTuple):
    """What is chosen untuned for a case, how many times the fastest it takes; ``least``: the least an untuned choice takes.

    ``ahead``: implementations that would come first and have no time here; whether they would be refused is not known.
    """

    case: Case
    impl: str
    times: float
    best: str
    least: float
    ahead: tuple[str, ...]


def _refused(impl: Impl, case: Case) -> bool:
    """Whether it refuses the problem today, where that can be asked."""
    device = -1 if case["architecture"] == "cpu" else 0
    if ranks.architecture(device) != case["architecture"]:
        return False
    return bool(select.refusal(impl, case["parsed"], Policy(device=device), config.current()))


def estimated(case: Case, rows: ranks.Rows, impl: Impl) -> float:
    """What ``ranks.estimate`` says of a measured case; what cuDNN was asked then, it would say today."""
    told = foretold(case, impl.name)
    return ranks.estimate_by(rows, impl, case["parsed"]) if told is None else told


def chosen(case: Case, tables: Tables) -> Choice | None:
    """None where nothing that was measured would run."""
    problem, best = case["parsed"], min(timed(case), key=lambda c: c["time_us"])
    rows = tables.get(case["architecture"], {}).get("operations", {}).get(FAMILY[problem.op], {})
    order = sorted(implementations(problem.op), key=lambda impl: estimated(case, rows, impl))
    asked = {c["impl"] for c in case["candidates"]}
    ahead: list[str] = []
    times = {impl.name: t for impl in order if (t := taken_us(case, impl.name, tables)) is not None}
    for impl in order:
        if impl.name in times and not _refused(impl, case):
            fastest = fastest_us(case)
            least = min(times.values()) / fastest
            return Choice(case, impl.name, times[impl.name] / fastest, best["impl"], least, tuple(ahead))
        if impl.name not in asked:
            ahead.append(impl.name)
    return None


def left_out(cases: list[Case], learn: Learn, names: Iterable[str], any_images: bool = False) -> list[Choice]:
    """The choice in each case of these networks by tables that saw none of the networks that have its layer."""
    belongs = [networks_of(case, any_images) for case in cases]
    known: dict[frozenset[str], Tables] = {}
    found = []
    for case, names_of in zip(cases, belongs, strict=True):
        if names_of & {*names}:
            if names_of not in known:
                known[names_of] = learn([c for c, other in zip(cases, belongs, strict=True) if not other & names_of])
            found.append(chosen(case, known[names_of]))
    return [choice for choice in found if choice]


# ---- what is printed -------------------------------------------------------------------------------------------------


def share(choices: list[Choice]) -> float:
    return sum(choice.times <= NEAR for choice in choices) / len(choices)


def summary(name: str, choices: list[Choice]) -> str:
    """A line: cases, how many are near the fastest, the geometric mean."""
    if not choices:
        return f"{name}: no cases"
    mean = math.exp(sum(math.log(choice.times) for choice in choices) / len(choices))
    near = sum(choice.times <= NEAR for choice in choices)
    return f"{name}: {near} of {len(choices)} within 10 % of the fastest ({share(choices):.1%}), {mean:.3f} times it"


def setting_of(choice: Choice) -> str:
    """Dtype and direction, or the operation."""
    p = choice.case["parsed"]
    return f"{p.inputs[0].dtype} {getattr(p, 'direction', p.op)}"


def misses(choices: list[Choice]) -> list[str]:
    """A line for each that is not near, the worst first: where the least is not near either, no order would help."""
    return [
        f"  {c.times:.2f} {c.impl}, fastest {c.best}, least untuned {c.least:.2f}: {c.case['case']}"
        for c in sorted(choices, key=lambda c: -c.times)
        if c.times > NEAR
    ]


def report(cases: list[Case], learn: Learn, names: list[str] | None = None) -> None:
    """Print it all; ``names``: the networks to leave out, all by default."""
    tables = learn(cases)
    learned = [c for case in cases if (c := chosen(case, tables))]
    networks = names or sorted({name for case in cases for name in networks_of(case)})
    out = left_out(cases, learn, networks)
    print(summary("the least that an untuned choice takes", [c._replace(times=c.least) for c in out]))
    print(summary("without any table", [c for case in cases if (c := chosen(case, {}))]))
    print(summary("learned from the cases themselves", learned))
    print(summary("networks left out", out))
    strict = left_out(cases, learn, networks, any_images=True)
    print(summary("networks left out, their layers at any number of images too", strict))
    alone = [c for c in out if len(networks_of(c.case)) == 1]
    print(summary("networks left out, layers of one network alone", alone))
    for name in networks:
        print(summary(f"  {name}", [c for c in out if name in networks_of(c.case)]))
    for setting in sorted({setting_of(c) for c in out}):
        print(summary(f"  {setting}, left out", [c for c in out if setting_of(c) == setting]))
        print(summary(f"  {setting}, learned", [c for c in learned if setting_of(c) == setting]))
    print("left out and missed:", *misses(out), sep="\n")
    unknown = [c for c in out if c.ahead]
    if unknown:
        ahead = ", ".join(sorted({name for c in unknown for name in c.ahead}))
        print(f"without a time and ahead in {len(unknown)} cases, where they must refuse: {ahead}")
