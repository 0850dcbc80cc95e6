"""On a GPU: configurations of an implementation, each against the reference."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from numbadnn.problem import Policy
from numbadnn.registry import implementations


def check_configurations(name: str, asked: Any, kind: str, configs: Iterable[Any]) -> None:
    """The implementation agrees with the reference in every configuration, on data of a kind: random, or small integers."""
    from numbadnn.validate.check import Row, Subject, judge
    from numbadnn.validate.oracle import Trial

    policy = Policy(device=0)
    (impl,) = (i for i in implementations(asked.op) if i.name == name)
    subject = Subject("", asked, Trial.of(asked, kind=kind))
    for config in configs:
        fixed = replace(impl, plan=lambda p, policy, _, config=config: impl.plan(p, policy, config))
        row = judge(Row("", name, str(asked), "ok"), fixed, subject, policy, timed=False)
        assert row.status == "ok", f"{config}: {row.reason}"
