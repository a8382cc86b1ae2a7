"""Parked groups that their quotas admit: a placement finds those that it refuses, and looks at few others."""

from random import Random
from typing import Any
from unittest.mock import patch

import pytest

from policysched.evaluate.plan.quotas import QuotaCharge
from policysched.scheduler.queue.movable_heap import MovableHeap
from policysched.scheduler.quotas.quota_admitted import QuotaAdmitted
from policysched.scheduler.quotas.quota_usage import QuotaUsage
from tests.builders import namespace, node, pod
from tests.scheduler.calls import count_calls
from tests.scheduler.rig import Rig
from tests.scheduler.test_quota_waiters import NESTED

BY_LABEL = """\
policy test version 1
filter node_resources_fit
quota org by pod.namespace { "busy" { cpu = 100 borrow any } "hog" { cpu = 5000 } others { cpu = 0 } }
quota team by pod.labels["team"] else "none" within org { others { cpu = 40 borrow any } }
"""
BORROWED_BY_OTHERS = NESTED.replace(
    "cpu = 2, memory = 1Gi }", "cpu = 2 borrow any, memory = 1Gi borrow any }"
)


def looks_of_a_placement(monkeypatch: pytest.MonkeyPatch, entities: int) -> int:
    """Beside a tenant with a waiting pod in each of so many entities of its own."""
    rig = Rig(BY_LABEL, node("n", cpu="4"), *[namespace(name) for name in ("busy", "hog")])
    rig.observe(
        *[pod(f"p{at}", namespace="hog", cpu="20", labels={"team": f"t{at}"}) for at in range(entities)]
    )
    rig.settle()
    assert rig.counts() == {"unschedulable": entities}

    def place() -> None:
        rig.observe(pod("friend", namespace="busy", cpu="1"))
        rig.settle()

    count = count_calls(monkeypatch, QuotaUsage, "used", place)
    assert rig.placements().keys() == {"friend"}
    return count


def test_a_placement_does_not_look_at_each_entity_of_which_pods_wait_for_a_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert looks_of_a_placement(monkeypatch, 60) == looks_of_a_placement(monkeypatch, 3)


class RandomAdmitted:
    """Groups that wait for a node in a random account, beside the definition: each is looked at after each placement."""

    def __init__(self, seed: int) -> None:
        self.random, self.number = Random(seed), 0
        self.quotas = Rig(BORROWED_BY_OTHERS).scheduler.core.quotas
        self.account = self.quotas.accounts["test"]
        self.admitted = QuotaAdmitted(self.account.limits)
        self.waiting: dict[int, QuotaCharge] = {}
        self.placed: list[QuotaCharge] = []
        self.taken = self.refused = self.kept = 0

    def charge(self) -> QuotaCharge:
        labels = {"org": self.random.choice("xyzuv"), "team": self.random.choice("abc")}
        cpu, memory = self.random.choice([0, 1, 2, 3, 5]), self.random.choice([0, 1, 2, 4])
        self.number += 1
        return self.quotas.charge_of(
            pod(f"p{self.number}", cpu=str(cpu), memory=f"{memory}Gi", labels=labels)
        )

    def step(self) -> None:
        charge, usage = self.charge(), self.account.usage
        is_admitted = usage.blocked(charge) is None
        match self.random.randrange(8):
            case 0 | 1 | 2:
                if is_admitted or not self.random.randrange(4):  # others are bound by somebody else
                    self.place(charge)
            case 3 | 4 | 5:
                if is_admitted:
                    self.admitted.add(self.number, charge, usage)
                    self.waiting[self.number] = charge
            case 6:
                if self.placed:
                    usage.add(self.placed.pop(self.random.randrange(len(self.placed))), -1)
            case _:
                if self.waiting:
                    gone = self.random.choice([*self.waiting])
                    del self.waiting[gone]
                    self.admitted.discard(gone)

    def place(self, charge: QuotaCharge) -> None:
        usage, limits = self.account.usage, self.account.limits
        usage.add(charge)
        self.placed.append(charge)
        risen = {*charge.entities, *map(limits.pool_of, charge.entities)}
        taken = self.admitted.take_refused(risen, usage)
        blocks = {key: usage.blocked(waiting) for key, waiting in self.waiting.items()}
        refused = {key: block for key, block in blocks.items() if block is not None}
        entitled = {key for key, block in refused.items() if block.claims}
        assert set(taken) == entitled, f"taken {taken}, may take back: {entitled}"
        for key in refused:
            del self.waiting[key]
        missed = self.admitted._charges.keys() - self.waiting.keys()
        assert not missed, f"refused and still waiting for a node: {missed}"
        self.taken += len(taken)
        self.refused += len(refused)
        self.kept += len(self.waiting)

    def clear(self) -> None:
        for key in self.waiting:
            self.admitted.discard(key)
        left = self.admitted._charges, self.admitted._groups, self.admitted._pools
        assert left == ({}, {}, {})


def play_random_admitted(seeds: range) -> tuple[int, int, int]:
    worlds = [RandomAdmitted(seed) for seed in seeds]
    for world in worlds:
        for _ in range(150):
            world.step()
        world.clear()
    return (
        sum(world.taken for world in worlds),
        sum(world.refused - world.taken for world in worlds),
        sum(world.kept for world in worlds),
    )


def test_every_group_that_a_placement_entitles_to_take_back_is_taken_and_no_other() -> None:
    assert min(play_random_admitted(range(30))) > 100


@pytest.mark.parametrize("bug", ["entities keep their rank", "the smallest request is first", "no ceilings"])
def test_a_planted_bug_in_the_ranks_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    refused_at_ceiling, put = QuotaAdmitted._refused_at_ceiling, MovableHeap.put

    def keeps_ranks(self: QuotaAdmitted, *of: Any) -> object:
        with patch.object(QuotaAdmitted, "_rank", lambda *_: 0):
            return refused_at_ceiling(self, *of)

    def only_ranks(self: QuotaAdmitted, *of: Any) -> None:
        refused_at_ceiling(self, *of)

    def puts_smallest_first(heap: MovableHeap[Any], item: object, key: int) -> None:
        put(heap, item, -key if isinstance(item, int) else key)

    match bug:
        case "entities keep their rank":
            monkeypatch.setattr(QuotaAdmitted, "_refused_at_ceiling", keeps_ranks)
        case "no ceilings":
            monkeypatch.setattr(QuotaAdmitted, "_refused_at_ceiling", only_ranks)
        case _:
            monkeypatch.setattr(MovableHeap, "put", puts_smallest_first)
    with pytest.raises(AssertionError, match=r"may take back|still waiting for a node"):
        play_random_admitted(range(40))
