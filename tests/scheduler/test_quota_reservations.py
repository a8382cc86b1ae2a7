"""What nominated pods keep of quotas: a decision does not charge each of them again, and counts what they keep exactly."""

from dataclasses import replace
from random import Random
from typing import Any
from unittest.mock import patch

import pytest

from policysched.evaluate.plan.quotas import QuotaCharge
from policysched.model.identifiers import NodeName, PodUid
from policysched.model.pod_status import ObservedPod
from policysched.model.pods import Pod
from policysched.scheduler import events as e
from policysched.scheduler.quotas.quota_usage import QuotaUsage
from tests.builders import namespace, node, pending, placed, pod
from tests.scheduler.rig import Rig

NOMINATED_COUNT = 60
QUOTA = """\
policy test version 1
filter node_resources_fit
preemption { victims = any }
quota team by pod.namespace { "a" { cpu = 1000 } others { cpu = 1000 } }
"""
NESTED_QUOTAS = """\
policy test version 1
filter node_resources_fit
preemption { victims = any }
quota org by namespace.labels["org"] else "none" {
  "x" { cpu = 3 borrow any }
  "y" { cpu = 2 borrow any }
  others unlimited
}
quota team by pod.labels["team"] else "none" within org {
  "a" in "x" { cpu = 2 borrow any }
  "b" in "x" { cpu = 1 borrow any }
  others unlimited
}
"""
RANDOM_QUOTAS = """\
policy test version 1
filter node_resources_fit
quota org by namespace.labels["org"] else "none" {
  "x" { cpu = 12 borrow any }
  others { cpu = 8 borrow any }
}
quota team by pod.labels["team"] else "none" within org {
  "a" in "x" { cpu = 6  memory = 4Gi borrow any }
  "b" in "x" { cpu = 5 borrow any }
  others { cpu = 4 borrow any }
}
"""


def nominated(waiting: Pod) -> ObservedPod:
    return replace(pending(waiting), nominated_node=NodeName("full"))


def test_a_decision_does_not_charge_each_pod_that_waits_for_its_victims_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(QUOTA, node("full", cpu=str(NOMINATED_COUNT)), node("n", cpu="1"))
    victim = placed(pod("victim", namespace="b", cpu=str(NOMINATED_COUNT)), "full")
    rig.observe(replace(victim, deleting=True, preempted=True))
    waiting = [pod(f"h{i}", namespace="b", cpu="2", priority=10) for i in range(NOMINATED_COUNT // 2)]
    rig.observe(*[nominated(preemptor) for preemptor in waiting])
    rig.settle()
    rig.observe(pod("first", namespace="a", cpu="100m"))
    rig.settle()
    assert len(rig.scheduler._core.cache.nominated) == len(waiting)

    looks: list[str] = []
    for name in ("add", "is_within_amounts"):
        method = getattr(QuotaUsage, name)

        def count(*arguments: Any, name: str = name, method: Any = method) -> Any:
            looks.append(name)
            return method(*arguments)

        monkeypatch.setattr(QuotaUsage, name, count)
    rig.observe(pod("second", namespace="a", cpu="100m"))
    rig.settle()

    assert "second" in rig.placements()
    assert 0 < len(looks) < 10


def test_pods_are_attempted_again_once_a_nominated_pod_keeps_its_amount_from_borrowers_only() -> None:
    """The pod "small" uses a part of what "owner" was entitled to in its team, so "large" is ahead of it in the quota."""
    rig = Rig(
        NESTED_QUOTAS,
        node("full", cpu="2", memory="8Gi"),
        node("n", cpu="8", memory="1Gi"),
        namespace("x", org="x"),
        namespace("y", org="y"),
    )
    others = placed(pod("others", namespace="y", cpu="2"), "n")
    team_b = placed(pod("b", namespace="x", cpu="750m", labels={"team": "b"}), "n")
    team_a = placed(pod("a", namespace="x", cpu="1", labels={"team": "a"}), "n")
    leaving = replace(placed(pod("leaving", cpu="2"), "full"), deleting=True, preempted=True)
    owner = pod("owner", namespace="x", cpu="1", memory="4Gi", priority=1, labels={"team": "a"})
    rig.observe(others, team_b, team_a, leaving, nominated(owner))
    rig.settle()

    rig.observe(pod("large", namespace="x", cpu="500m", labels={"team": "a"}))
    rig.settle()
    assert "large" not in rig.placements()
    rig.observe(pod("small", namespace="x", cpu="250m", labels={"team": "a"}))
    rig.settle()

    assert {"small", "large"} <= rig.placements().keys()


class Recount:
    """Random nominations and placements, and what nominated pods keep, counted anew from the definition."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.rig = Rig(
            RANDOM_QUOTAS,
            node("n", cpu="200"),
            node("full", cpu="200"),
            *[namespace(f"ns{i}", org="x") for i in range(2)],
        )
        self.core = self.rig.scheduler._core
        self.account = self.core.quotas.accounts["test"]
        self.known: dict[str, Pod] = {}
        self.kept: dict[PodUid, tuple[QuotaCharge, bool]] = {}
        self.refused_count = self.kept_count = 0
        self.take = self.core.quotas.take_released
        self.core.quotas.take_released = self.take_released  # type: ignore[method-assign]

    def handle(self, event: e.Event) -> None:
        """Without the checks of `Rig`: no bind is in flight for what is assumed here."""
        self.rig.scheduler.handle(event, self.rig.now_ns)

    def act(self) -> None:
        random = self.random
        name = f"p{random.randrange(14)}"
        known = self.known.get(name)
        if known is None:
            known = self.known[name] = pod(
                name,
                namespace=f"ns{random.randrange(3)}",
                cpu=str(random.choice([0, 1, 2, 3])),
                memory=random.choice(["0", "1Gi"]),
                priority=random.choice([0, 0, 5]),
                labels={"team": random.choice("abc")},
            )
            self.handle(e.PodUpdated(pending(known)))
            return
        is_placed = self.core.cache.ledger.placement(known.uid) is not None
        match random.choice(["nominate"] * 4 + ["place", "place", "delete", "deleting", "namespace"]):
            case "nominate":
                self.handle(e.PodUpdated(nominated(known)))
            case "place" if not is_placed and random.random() < 0.5:
                self.core.cache.assume(known, NodeName("n"))
            case "place":
                self.handle(e.PodUpdated(placed(known, "n")))
            case "delete":
                del self.known[name]
                self.handle(e.PodDeleted(known.uid))
            case "deleting" if not is_placed:
                self.handle(e.PodUpdated(replace(nominated(known), deleting=True)))
            case "namespace" if random.random() < 0.3:
                labels = {"org": random.choice(["x", "y"])}
                self.handle(e.NamespaceUpdated(namespace(f"ns{random.randrange(3)}", **labels)))

    def waiting(self) -> list[Pod]:
        cache = self.core.cache
        return sorted(
            [
                observed.pod
                for uid, observed in cache.nominated.items()
                if not observed.deleting and cache.ledger.placement(uid) is None
            ],
            key=lambda waiting: (-waiting.priority, waiting.uid),
        )

    def reserve(self, pods: list[Pod]) -> tuple[QuotaUsage, dict[PodUid, QuotaCharge]]:
        usage, charges = self.account.usage.trial(), dict[PodUid, QuotaCharge]()
        for waiting in pods:
            charge = self.account.plan.quota_charge(
                waiting, self.core.cache.namespaces.get(waiting.namespace)
            )
            if usage.is_within_amounts(charge):
                usage.add(charge)
                charges[waiting.uid] = charge
        return usage, charges

    def parts(self, pods: list[Pod], kept: dict[PodUid, QuotaCharge]) -> dict[PodUid, QuotaCharge]:
        """Of the others: the resources to which they are entitled in some quota."""
        usage, parts = self.reserve(pods)[0], dict[PodUid, QuotaCharge]()
        for waiting in pods:
            if waiting.uid in kept:
                continue
            charge = self.account.plan.quota_charge(
                waiting, self.core.cache.namespaces.get(waiting.namespace)
            )
            amounts = tuple(
                requested
                if any(
                    amount is not None and usage.used(entity)[index] + requested <= amount
                    for quota, entity in enumerate(charge.entities)
                    for amount in [self.account.limits.of(quota, entity).amounts[index]]
                )
                else 0
                for index, requested in enumerate(charge.amounts)
            )
            if any(amounts):
                parts[waiting.uid] = QuotaCharge(charge.entities, amounts)
                usage.add(parts[waiting.uid])
        return parts

    def check_trials(self) -> None:
        waiting = self.waiting()
        for judged in [*self.known.values(), pod("stranger", namespace="ns1")]:
            uids = {judged.uid, *(other.uid for other in self.known.values() if self.random.random() < 0.1)}
            own = next((index for index, other in enumerate(waiting) if other.uid in uids), len(waiting))
            expected, _ = self.reserve(waiting[:own])
            trial = self.core.quotas.trial(judged, excluding=uids)
            assert trial is not None
            for entity in {*self.account.usage.nodes, *expected.nodes}:
                assert list(trial.used(entity)) == list(expected.used(entity)), entity
            parts = self.parts(waiting, self.reserve(waiting)[1])
            for other in waiting[:own]:
                if other.uid in parts:
                    expected.add(parts[other.uid])
            for_borrowers = trial.for_borrowers()
            for entity in {*self.account.usage.nodes, *expected.nodes}:
                assert list(for_borrowers.used(entity)) == list(expected.used(entity)), entity

    def take_released(self, *limits: Any) -> list[object]:
        """Who kept something else at the last look is released, and nobody else."""
        _, entitled = self.reserve(self.waiting())
        kept = {uid: (charge, False) for uid, charge in self.parts(self.waiting(), entitled).items()}
        kept |= {uid: (charge, True) for uid, charge in entitled.items()}
        released: list[QuotaCharge] = []
        with patch.object(self.account, "release", released.append):
            opened = self.take(*limits)
        ledger = self.core.cache.ledger
        assert released == [
            before[0]
            for uid, before in self.kept.items()
            if kept.get(uid) != before and ledger.placement(uid) is None
        ]
        self.kept = kept
        self.kept_count += len(entitled)
        self.refused_count += len(self.waiting()) - len(entitled)
        return opened


def test_what_is_kept_is_what_is_counted_anew() -> None:
    kept = refused = 0
    for seed in range(40):
        recount = Recount(seed)
        for _ in range(60):
            recount.act()
            if recount.random.random() < 0.7:
                recount.check_trials()
        kept, refused = kept + recount.kept_count, refused + recount.refused_count

    assert kept > 500
    assert refused > 200
