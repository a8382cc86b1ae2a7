"""What `explain` proposes is applied to a new cluster, where the scheduler and the reference implementation decide: the pod
gets a node with the change, and none with a step less of it.

`POLICYSCHED_PROPOSALS=1000` is how many proposals are judged.
"""

import os
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from policysched.cluster.cache import ClusterCache
from policysched.evaluate import Evaluator
from policysched.evaluate import compile as compile_plan
from policysched.explanations import proposals as module
from policysched.explanations.proposals import Proposal, Situation, proposals, request_step, with_requests
from policysched.lang.check import check_text
from policysched.lang.ir.program import Program
from policysched.model.identifiers import NodeName
from policysched.model.nodes import Node
from policysched.model.pods import Pod, QueuedPodInfo
from tests.builders import namespace, node, pending, placed, pod
from tests.reference.evaluate import evaluate as evaluate_by_reference
from tests.scheduler.calls import count_calls
from tests.scheduler.rig import Rig

PROPOSALS = int(os.environ.get("POLICYSCHED_PROPOSALS", "120"))
CLUSTERS = 150
"""In which each planted bug is found."""


def program(text: str) -> Program:
    checked = check_text(text).program
    assert checked is not None
    return checked


NOW_NS = 1_767_225_600 * 10**9
FACTS = QueuedPodInfo(NOW_NS, 0)
POLICY = """\
policy test version 1
include kube_default
filter quiet reject (node.labels["noisy"] else "") == "yes"
"""
SPREAD = {
    "topologySpreadConstraints": [
        {
            "maxSkew": 1,
            "topologyKey": "topology.kubernetes.io/zone",
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"app": "web"}},
        }
    ]
}


class Scene:
    """A small, nearly full cluster, and a pod that may fit nowhere."""

    def __init__(self, seed: int, policy: Program) -> None:
        rng = random.Random(seed)
        self.program, self.plan = policy, compile_plan(policy)
        self.nodes = [self._node(rng, index) for index in range(rng.randint(1, 5))]
        self.placed: list[tuple[Pod, NodeName]] = []
        for place in self.nodes:
            left = place.allocatable["cpu"]
            while left > 300 and rng.random() < 0.8:
                cpu = rng.randrange(100, min(left, 2000) + 1, 50)
                left -= cpu
                number = len(self.placed)
                member = pod(
                    f"old-{number}", cpu=f"{cpu}m", memory="100Mi", labels={"app": rng.choice(("web", "db"))}
                )
                if rng.random() < 0.2:
                    member = replace(member, owner_kind="DaemonSet")
                self.placed.append((member, place.name))
        self.pod = pod(
            "new",
            cpu=f"{rng.choice((200, 700, 1500, 3000, 5000))}m",
            memory=rng.choice(("50Mi", "1Gi", "3000Mi")),
            labels={"app": "web"},
            node_selector={"disk": "ssd"} if rng.random() < 0.2 else {},
            spec=SPREAD if rng.random() < 0.2 else None,
        )

    @staticmethod
    def _node(rng: random.Random, index: int) -> Node:
        labels = {"disk": rng.choice(("ssd", "hdd"))}
        if rng.random() < 0.1:
            labels["noisy"] = "yes"
        return node(
            f"n{index}",
            cpu=rng.choice(("1", "2", "4")),
            memory=rng.choice(("1Gi", "2Gi", "4Gi")),
            pods=rng.choice(("2", "10")),
            zone=rng.choice(("a", "b")),
            labels=labels,
            taints=rng.choice(((), (), ("team=ml:NoSchedule",), ("gone:NoExecute", "team=ml:NoSchedule"))),
            unschedulable=rng.random() < 0.1,
        )

    def cache(self) -> ClusterCache:
        cache = ClusterCache()
        cache.put_namespace(namespace())
        for each in self.nodes:
            cache.put_node(each)
        for member, place in self.placed:
            cache.put_pod(placed(member, place))
        return cache

    def found(self) -> list[Proposal]:
        return [proposal for proposal in self.steps(self.cache()) if proposal is not None]

    def steps(self, cache: ClusterCache) -> Iterator[Proposal | None]:
        evaluator = Evaluator(cache)
        explanation = evaluator.explain(self.plan, self.pod, now_ns=NOW_NS, facts=FACTS, samples={})
        if explanation.selected is not None:
            return
        situation = Situation(
            cache, evaluator, self.plan, self.pod, FACTS, {}, NOW_NS, explanation, lambda _: (self.plan, {})
        )
        yield from proposals(situation)

    def node_for(self, asked: Pod, cache: ClusterCache) -> str | None:
        return evaluate_by_reference(self.program, asked, cache, now_ns=NOW_NS, facts=FACTS).selected

    def scheduled_on(self, asked: Pod, cache: ClusterCache) -> str | None:
        """The node that the scheduler binds the pod to."""
        rig = Rig({"test.policy": POLICY}, namespace(), *cache.nodes.values(), *cache.pods.values())
        rig.observe(pending(replace(asked, scheduler="test")))
        rig.settle()
        return rig.placements().get(asked.name)

    def applied(self, proposal: Proposal) -> tuple[Pod, ClusterCache]:
        """The pod and the cluster after somebody did what the proposal says."""
        cache, asked = self.cache(), self.pod
        if proposal.kind == "uncordon":
            assert proposal.node is not None
            old = cache.nodes[proposal.node]
            taints = tuple(taint for taint in old.taints if taint.key != "node.kubernetes.io/unschedulable")
            cache.put_node(replace(old, unschedulable=False, taints=taints))
        elif proposal.pod is not None:
            asked = proposal.pod
        elif proposal.moved is not None:
            member, target = proposal.moved
            cache.drop_pod(member.uid)
            cache.put_pod(placed(member, target))
        else:
            assert proposal.like is not None
            like = cache.nodes[proposal.like]
            labels = {**like.labels, "kubernetes.io/hostname": "added"}
            cache.put_node(replace(like, name=NodeName("added"), uid="added", labels=labels))
        return asked, cache

    def one_step_less(self, proposal: Proposal) -> Iterator[Pod]:
        """The pods that a step less would leave: for other proposals than a lower request, the pod as it is."""
        if proposal.kind != "request":
            yield self.pod
            return
        assert proposal.pod is not None
        lowered = {
            name: amount for name, amount in proposal.pod.requests.items() if amount < self.pod.requests[name]
        }
        for name, amount in lowered.items():
            raised = min(amount + request_step(name), self.pod.requests[name])
            yield with_requests(self.pod, {**lowered, name: raised})


def broken(scene: Scene) -> Iterator[str]:
    """Each proposal that does not place the pod, or of which a step less would do."""
    for proposal in scene.found():
        asked, cache = scene.applied(proposal)
        if scene.node_for(asked, cache) is None:
            yield f"{proposal.text}: the pod still fits nowhere"
        if scene.scheduled_on(asked, cache) is None:
            yield f"{proposal.text}: the scheduler binds the pod to no node"
        if proposal.kind == "move":
            assert proposal.moved is not None
            member, target = proposal.moved
            cache = scene.cache()
            cache.drop_pod(member.uid)
            allowed = evaluate_by_reference(scene.program, member, cache, now_ns=NOW_NS, facts=FACTS).feasible
            if target not in allowed:
                yield f"{proposal.text}: {target} does not take it"
        for less in scene.one_step_less(proposal):
            if scene.node_for(less, scene.cache()) or scene.scheduled_on(less, scene.cache()):
                yield f"{proposal.text}: a step less is enough"


def test_every_proposal_places_the_pod_and_a_step_less_does_not() -> None:
    policy, kinds, seed = program(POLICY), Counter[str](), 0

    while kinds.total() < PROPOSALS:
        scene = Scene(seed, policy)
        assert list(broken(scene)) == [], f"seed {seed}"
        kinds.update(proposal.kind for proposal in scene.found())
        seed += 1

    print(f"{kinds.total()} proposals in {seed} clusters: {dict(kinds)}")
    assert set(kinds) == {"request", "toleration", "uncordon", "node selector", "move", "node"}


def test_a_step_of_the_search_has_few_evaluations(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of a kind were one piece of the main loop."""
    policy, evaluations = program(POLICY), 0
    evaluate = Evaluator.evaluate

    def counting(*of: Any, **more: Any) -> Any:
        nonlocal evaluations
        evaluations += 1
        return evaluate(*of, **more)

    monkeypatch.setattr(Evaluator, "evaluate", counting)
    most = total = 0
    for seed in range(30):
        scene = Scene(seed, policy)
        evaluations = 0
        for _ in scene.steps(scene.cache()):
            most, total, evaluations = max(most, evaluations), total + evaluations, 0
        most, total = max(most, evaluations), total + evaluations

    assert most <= 2, "where another pod moves, and where this one goes then"
    assert total > 30


def test_of_thousands_of_node_selectors_few_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is an evaluation that compares all of them: 1,000 at 200 nodes were a piece of 75 s."""
    scene = Scene(0, program(POLICY))
    scene.pod = pod("new", node_selector={f"key-{number:04}": "x" for number in range(1_000)})

    evaluated = count_calls(monkeypatch, Situation, "selected", scene.found)

    assert 0 < evaluated <= 2 * module._NODE_SELECTORS_TRIED_MAX


def test_nodes_and_pods_that_go_between_two_steps_are_not_proposed() -> None:
    policy = program(POLICY)
    for seed in range(60):
        scene, random_of = Scene(seed, policy), random.Random(seed)
        cache = scene.cache()
        for _ in scene.steps(cache):
            if cache.nodes and random_of.random() < 0.3:
                cache.drop_node(random_of.choice(sorted(cache.nodes)))
            if cache.pods and random_of.random() < 0.3:
                cache.drop_pod(random_of.choice(sorted(cache.pods)))


def _lowers_too_far(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_round_down", lambda _, amount: amount // 2)
    monkeypatch.setattr(module, "_higher_request", lambda *_: iter(()))


def _forgets_a_taint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Situation, "selected", lambda *_: NodeName("n0"))


def _moves_without_a_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_target_of_move", lambda *_: NodeName("n0"))


def _adds_any_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Situation, "fits_on", lambda *_: True)


@pytest.mark.parametrize("bug", [_lowers_too_far, _forgets_a_taint, _moves_without_a_target, _adds_any_node])
def test_planted_bugs_are_found(bug: object, monkeypatch: pytest.MonkeyPatch) -> None:
    assert callable(bug)
    bug(monkeypatch)
    policy = program(POLICY)

    assert any(problem for seed in range(CLUSTERS) for problem in broken(Scene(seed, policy)))
