"""The incremental quota usage agrees with the definition (`tests.reference.quota`) after every change, for random
policies and pods, and the comparison catches planted bugs."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from policysched.evaluate import compile as compile_plan
from policysched.lang.ir.program import Program
from policysched.model.namespaces import Namespace
from policysched.model.pods import Pod
from policysched.scheduler.quotas.quota_account import QuotaAccount
from policysched.scheduler.quotas.quota_limits import EntityLimits, QuotaLimits
from policysched.scheduler.quotas.quota_usage import QuotaUsage
from tests.builders import namespace, pod
from tests.reference.quota import PlacedPod, quotas_admit
from tests.scheduler.rig import bundle

ORGS, TEAMS = ("x", "y", "z"), ("a", "b", "c")
SEEDS = range(60)


def random_amounts(random: Random) -> str:
    parts = []
    for name, most in (("cpu", 6), ("pods", 5), ("licences", 9)):
        if random.random() < 0.6:
            borrow = random.choice(["", "", f" borrow {random.randrange(4)}", " borrow any"])
            parts.append(f"{name} = {random.randrange(most)}{borrow}")
    return "{ " + ", ".join(parts) + " }"


def random_program(random: Random) -> Program:
    lines = ["policy test version 1", "include kube_default"]
    lines.append('resource licences { capacity = 9, request = if has pod.labels["l"] then 3 else 0 }')
    lines.append('quota org by namespace.labels["org"] else "none" {')
    lines += [f'  "{org}" {random_amounts(random)}' for org in ORGS[:2] if random.random() < 0.8]
    lines.append(f"  others {random.choice(['unlimited', random_amounts(random)])}")
    lines.append("}")
    lines.append('quota team by pod.labels["team"] else "none" within org {')
    lines += [
        f'  "{team}" in "{org}" {random_amounts(random)}'
        for org in ORGS[:2]
        for team in TEAMS[:2]
        if random.random() < 0.8
    ]
    lines.append(f"  others {random.choice(['unlimited', random_amounts(random)])}")
    lines.append("}")
    if random.random() < 0.5:
        lines.append(f'quota kind by pod.labels["l"] else "0" {{ others {random_amounts(random)} }}')
    text = "\n".join(lines) + "\n"
    source = bundle({"main.policy": text}).sources["main.policy"]
    assert source.program is not None, (text, source.diagnostics)
    return source.program


def random_pod(random: Random, number: int) -> PlacedPod:
    org = random.choice(ORGS)
    labels = {"team": random.choice(TEAMS)} | ({"l": "1"} if random.random() < 0.4 else {})
    space = namespace(f"ns-{org}", org=org)
    return pod(f"p{number}", namespace=space.name, labels=labels, cpu=random.choice(["0", "1", "2"])), space


def compare(seed: int) -> tuple[int, int]:
    """How many pods were admitted and refused; asserts that the definition agrees each time."""
    random = Random(seed)
    program = random_program(random)
    account = QuotaAccount(compile_plan(program))
    placed: dict[str, tuple[Pod, Namespace | None]] = {}
    counts = [0, 0]
    for number in range(30):
        if placed and random.random() < 0.25:
            uid = random.choice(sorted(placed))
            account.remove(placed.pop(uid)[0].uid)
        candidate, space = random_pod(random, number)
        expected = quotas_admit(program, placed.values(), candidate, space)
        trial = QuotaUsage(account.limits, account.usage)
        block = trial.blocked(account.charge_of(candidate, space))
        assert (block is None) == expected, f"seed {seed}: {candidate.name} of {candidate.labels}: {block}"
        counts[block is not None] += 1
        if expected or random.random() < 0.1:  # another scheduler may bind it all the same
            placed[candidate.uid] = candidate, space
            account.add(candidate, space)
        assert account.check() == []
    return counts[0], counts[1]


def test_usage_agrees_with_the_definition() -> None:
    counts = [compare(seed) for seed in SEEDS]

    assert sum(admitted for admitted, _ in counts) > 300
    assert sum(refused for _, refused in counts) > 300


def _without_ceilings(limits: EntityLimits) -> EntityLimits:
    return EntityLimits(limits.amounts, tuple(None for _ in limits.ceilings), limits.limited, limits.listed)


def _total_of_rows(self: QuotaLimits, quota: int, entities: tuple[tuple[str, ...], ...], index: int) -> int:
    totals = self._pool_totals.get(self.pool_of(entities[quota]))
    return 0 if totals is None else totals[index]


BUGS: dict[str, tuple[type, str, Callable[[Callable[..., Any]], Callable[..., Any]]]] = {
    "a removed pod still counts": (
        QuotaUsage,
        "add",
        lambda right: lambda self, charge, sign=1: right(self, charge, max(0, sign)),
    ),
    "borrowing is not limited": (
        QuotaLimits,
        "_entity_limits",
        lambda right: lambda self, limits, listed: _without_ceilings(right(self, limits, listed=listed)),
    ),
    "borrowing needs nobody to lend": (QuotaLimits, "pool_total", lambda _: lambda *_arguments: None),
    "the pool counts beside the parent's limit": (QuotaLimits, "pool_total", lambda _: _total_of_rows),
    "an entity without a row uses the pool with its own amount": (
        EntityLimits,
        "pool_use",
        lambda _: lambda self, index, used: used if self.amounts[index] is not None else 0,
    ),
    "labels of the namespace are not read": (
        QuotaAccount,
        "charge_of",
        lambda right: lambda self, pod, _namespace: right(self, pod, None),
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_the_property_catches(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, plant = BUGS[bug]
    monkeypatch.setattr(owner, name, plant(getattr(owner, name)))

    with pytest.raises((AssertionError, KeyError)):
        for seed in SEEDS:
            compare(seed)
