"""Nominated pods of others cost a decision little, and an overlay that is kept judges like a new one."""

from copy import copy
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from policysched import evaluate as plan
from policysched.builtins.inter_pod_affinity import kernel as affinity_kernel
from policysched.builtins.pod_topology_spread import kernel as spread_kernel
from policysched.cluster.cache import ClusterCache
from policysched.evaluate.columns.overlay import Overlay
from policysched.evaluate.columns.snapshot import Snapshot
from policysched.evaluate.columns.view import View
from policysched.evaluate.nominated_overlays import NominatedOverlays
from policysched.evaluate.vector.pod_totals import OtherRows
from policysched.model.identifiers import NodeName
from policysched.model.pod_status import ObservedPod
from policysched.model.pods import Pod, QueuedPodInfo
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from tests.builders import namespace, node, pending, placed, pod
from tests.reference.checked import program
from tests.scheduler.calls import count_calls
from tests.scheduler.rig import FIT, Rig

FACTS = QueuedPodInfo(0, 0)
PREEMPTING = "policy test version 1\nfilter node_resources_fit\npreemption { victims = any }\n"


def nominated(number: int, on: str, **more: Any) -> ObservedPod:
    asks = pod(f"nominated{number}", priority=10, scheduler="other", **more)
    return replace(pending(asks), nominated_node=NodeName(on))


@pytest.mark.parametrize("policy", [FIT, "policy test version 1\ninclude kube_default\n"])
def test_further_decisions_do_not_add_each_nominated_pod_again(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [node(f"n{number}") for number in range(60)]
    rig = Rig(policy, *nodes, *[nominated(number, f"n{number}", cpu="1") for number in range(60)])

    def decide(numbers: range) -> None:
        for number in numbers:
            rig.observe(pod(f"web{number}", cpu=f"{100 + number}m", labels={"app": f"web{number}"}))
            rig.settle()

    first = count_calls(monkeypatch, Overlay, "add_pod", lambda: decide(range(2)))
    further = count_calls(monkeypatch, Overlay, "add_pod", lambda: decide(range(2, 12)))

    assert (len(rig.placements()), first, further) == (12, 60, 0)


def test_attempts_of_nominated_pods_do_not_add_the_others_again(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [node(f"n{number}", cpu="4") for number in range(60)]
    rig = Rig(
        PREEMPTING, *nodes, *[placed(pod(f"low{number}", cpu="3"), f"n{number}") for number in range(60)]
    )
    rig.observe(*[pod(f"high{number}", cpu="3", priority=10) for number in range(60)])
    rig.settle()
    for evict in rig.of(c.Evict):
        rig.handle(e.Evicted(evict.uid, tuple(victim.uid for victim in evict.victims)))
    rig.settle()

    def attempt_again() -> None:
        rig.observe(node("small", cpu="1"))
        rig.settle()

    attempts = sum(rig.scheduler.counters.attempts.values())
    added = count_calls(monkeypatch, Overlay, "add_pod", attempt_again)
    attempts = sum(rig.scheduler.counters.attempts.values()) - attempts

    rig.check_invariants()
    assert len(rig.scheduler.cache.nominated) == 60 and attempts >= 60
    assert added < 4 * 60, f"{added} pods were added to overlays in {attempts} attempts"


SPREAD = {
    "maxSkew": 1,
    "topologyKey": "topology.kubernetes.io/zone",
    "whenUnsatisfiable": "DoNotSchedule",
    "labelSelector": {"matchLabels": {"app": "web"}},
}
APART = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "web"}}}


def required(kind: str, *terms: dict[str, Any]) -> dict[str, Any]:
    return {"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}}


BESIDE = {**APART, "topologyKey": "topology.kubernetes.io/zone"}
MANY = [{**APART, "labelSelector": {"matchLabels": {"app": f"other{number}"}}} for number in range(40)]


@pytest.mark.parametrize(
    ("spec", "nominated_spec", "app"),
    [
        ({"topologySpreadConstraints": [SPREAD]}, {}, ""),
        ({}, required("podAntiAffinity", APART), ""),
        ({"topologySpreadConstraints": [SPREAD]}, {}, "web"),
        (required("podAffinity", BESIDE), {}, "web"),
        (required("podAffinity", BESIDE), required("podAntiAffinity", APART), ""),
        (required("podAntiAffinity", *MANY), {}, ""),
    ],
    ids=[
        "the pod has terms of its own",
        "nominated pods have terms that select it",
        "its spread constraints count them",
        "its required affinity counts them",
        "it requires affinity and they have terms that select it",
        "it has many terms",
    ],
)
def test_a_decision_does_not_look_at_each_node_with_nominated_pods_alone(
    spec: dict[str, Any], nominated_spec: dict[str, Any], app: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [node(f"n{number}", zone=f"z{number % 3}") for number in range(63)]
    of_app = {"labels": {"app": app}, "spec": nominated_spec}
    waiting = [nominated(number, f"n{number}", cpu="1", **of_app) for number in range(60)]
    rig = Rig("policy test version 1\ninclude kube_default\n", *nodes, *waiting)

    def decide(numbers: range) -> None:
        for number in numbers:
            rig.observe(pod(f"web{number}", cpu=f"{100 + number}m", labels={"app": "web"}, spec=spec))
            rig.settle()

    decide(range(2))
    views = count_calls(monkeypatch, Snapshot, "view", lambda: decide(range(2, 12)))

    assert len(rig.placements()) == 12 and views <= 10 * 12, f"{views} views in 10 decisions"


OF_APP = (
    'filter few require (count(pods in "topology.kubernetes.io/zone" where '
    'other.labels["app"] == pod.labels["app"]) else 0) < 2'
)


def test_a_total_that_counts_no_nominated_pod_does_not_look_at_their_nodes_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = [node(f"n{number}", zone=f"z{number}") for number in range(60)]
    waiting = [nominated(number, f"n{number}", cpu="1", labels={"app": "db"}) for number in range(60)]
    rig = Rig(f"policy test version 1\ninclude kube_default\n{OF_APP}\n", *nodes, *waiting)

    def decide(numbers: range) -> None:
        for number in numbers:
            rig.observe(pod(f"web{number}", cpu=f"{100 + number}m", labels={"app": "web"}))
            rig.settle()

    decide(range(2))
    views = count_calls(monkeypatch, Snapshot, "view", lambda: decide(range(2, 12)))

    assert len(rig.placements()) == 12 and views <= 10 * 12, f"{views} views in 10 decisions"


ACROSS_NODES = [
    "filter pod_topology_spread",
    "filter inter_pod_affinity",
]  # where nothing else rejects most nodes


class RandomCluster:
    """Decisions with an overlay that is kept, beside decisions with a new one."""

    def __init__(self, seed: int) -> None:
        self.random, self.cache, self.number = Random(seed), ClusterCache(), 0
        self.plans = [
            plan.compile(program(*texts)) for texts in (["include kube_default"], ACROSS_NODES, [OF_APP])
        ]
        self.evaluator = plan.Evaluator(self.cache)
        self.nodes: list[str] = []
        self.nominated: list[tuple[Pod, NodeName]] = []
        self.kept = self.rejected = 0
        self.cache.put_namespace(namespace())
        for _ in range(4):
            self.put_node()

    def put_node(self, name: str | None = None) -> None:
        if name is None:
            name = f"n{len(self.nodes)}"
            self.nodes.append(name)
        labels = {"kubernetes.io/hostname": name}
        self.cache.put_node(
            node(name, cpu=self.random.choice("234"), zone=self.random.choice("xyz"), labels=labels)
        )

    def pod(self, priority: int) -> Pod:
        self.number += 1
        keys = ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]

        def term() -> dict[str, Any]:
            labels = {"app": self.random.choice("ab")}
            return {"topologyKey": self.random.choice(keys), "labelSelector": {"matchLabels": labels}}

        ports = [80] if self.random.random() < 0.2 else []
        spec: dict[str, Any] = {}
        if self.random.random() < 0.15:
            others = [] if self.random.random() < 0.5 else MANY
            spec |= required("podAntiAffinity", term(), *others)
        elif self.random.random() < 0.3:
            spec |= required("podAffinity", *[term() for _ in range(self.random.randrange(1, 3))])
        if self.random.random() < 0.3:
            more = {"maxSkew": self.random.choice([1, 2]), "whenUnsatisfiable": "DoNotSchedule"}
            if self.random.random() < 0.3:
                more["minDomains"] = 3
            spec["topologySpreadConstraints"] = [term() | more for _ in range(self.random.randrange(1, 3))]
        return pod(
            f"p{self.number}",
            cpu=self.random.choice("12"),
            priority=priority,
            labels={"app": self.random.choice("abc")},
            host_ports=ports,
            spec=spec or None,
        )

    def change(self) -> None:
        placements = [placement.pod.uid for placement in self.cache.ledger.placements]
        match self.random.randrange(8):
            case 0:
                self.nominated = [
                    (self.pod(10), NodeName(self.random.choice(self.nodes)))
                    for _ in range(self.random.randrange(1, 5))
                ]
            case 1:
                self.put_node(self.random.choice([None, *self.nodes]))
            case 2 | 3 | 4:
                self.cache.put_pod(placed(self.pod(0), self.random.choice(self.nodes)))
            case 5 | 6 if placements:
                self.cache.drop_pod(self.random.choice(placements))
            case _:
                self.cache.put_namespace(namespace(team=self.random.choice("ab")))

    def check(self) -> None:
        asked, own, others = self.pod(0), None, self.nominated
        if self.nominated and self.random.random() < 0.4:
            asked, own = self.random.choice(self.nominated)
            others = [nominated for nominated in self.nominated if nominated[0] is not asked]
        for compiled in self.plans:
            self.check_with(compiled, asked, own, others)
        self.kept += bool(self.evaluator._nominated_overlays._kept)

    def check_with(
        self, by: plan.Plan, asked: Pod, own: NodeName | None, others: list[tuple[Pod, NodeName]]
    ) -> None:
        results = list[object]()
        for overlay in (None, self.evaluator.overlay()):
            inputs: dict[str, Any] = {"now_ns": 0, "facts": FACTS, "samples": {}, "overlay": overlay}
            inputs |= {"nominated_node": own, "nominated_pods": others}
            verdict = self.evaluator.evaluate(by, asked, **inputs)
            rejections = {} if verdict.selected else verdict.reason_counts()
            dry_run = self.evaluator.dry_run(by, asked, **inputs)
            potential = dry_run.potential_nodes
            results.append((verdict.selected, verdict.feasible_count, verdict.score, rejections))
            results.append((potential, dry_run.potential_or_feasible_nodes, dry_run.rejections(potential)))
            self.rejected += not verdict.selected
        assert results[:2] == results[2:], "the overlay that is kept and a new one differ"


def play(seeds: range) -> tuple[int, int]:
    kept = rejected = 0
    for seed in seeds:
        world = RandomCluster(seed)
        for _ in range(80):
            world.change()
            world.check()
        kept, rejected = kept + world.kept, rejected + world.rejected
    return kept, rejected


def test_an_overlay_that_is_kept_judges_like_a_new_one() -> None:
    kept, rejected = play(range(12))

    assert kept > 300 and rejected > 20


@pytest.mark.parametrize(
    "bug", ["does not follow", "other pods", "minimum stays", "affinity of the base", "counts no more"]
)
def test_a_planted_bug_in_the_overlay_that_is_kept_is_found(
    bug: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if bug == "does not follow":
        monkeypatch.setattr(Overlay, "follow", lambda _: True)
    elif bug == "minimum stays":
        counts = spread_kernel._Filter._counts_and_minimum

        def minimum_without_nominated(self: Any, view: View, *of: Any) -> Any:
            plain = copy(self)
            plain._base = None
            return counts(self, view, *of)[0], counts(plain, self._base or view, *of)[1]

        monkeypatch.setattr(spread_kernel._Filter, "_counts_and_minimum", minimum_without_nominated)
    elif bug == "counts no more":
        monkeypatch.setattr(OtherRows, "counts_no_more", lambda *_: True)
    elif bug == "affinity of the base":
        violates = affinity_kernel._Filter._violates_required
        monkeypatch.setattr(
            affinity_kernel._Filter,
            "_violates_affinity",
            lambda self, view: violates(self, self._base or view),
        )
    else:
        with_all = NominatedOverlays._with_all

        def of_the_first(self: Any, pods: Any) -> Overlay | None:
            return with_all(self, self._kept[0][0] if self._kept else pods)

        monkeypatch.setattr(NominatedOverlays, "_with_all", of_the_first)
    with pytest.raises(AssertionError, match="differ"):
        play(range(30))
