"""Nominated pods on random clusters, checked by the reference implementation twice per node: with the
pods nominated there, and without them. Nominations to other nodes have no effect."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from policysched import evaluate as plan
from policysched.cluster.cache import ClusterCache
from policysched.evaluate import nominated_rows
from policysched.evaluate.nominated_overlays import NominatedOverlays
from policysched.lang.ir.program import Program
from policysched.lang.ir.verdict import NodeRejection
from policysched.model.identifiers import NodeName, PodUid
from policysched.model.pods import Pod
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.preemption.candidate_search import CandidateSearchResult, find_candidates
from policysched.scheduler.preemption.running_gangs import EvictablePods
from policysched.scheduler.preemption.victim_selection import PreemptionInputs
from tests.builders import node, pending, placed, pod
from tests.evaluate.clusters import Scene, scenes
from tests.inline import run_to_completion
from tests.reference import evaluate
from tests.reference.checked import program
from tests.scheduler.rig import Rig

DEFAULT = program("include kube_default", "preemption { victims = any }")
OF_NODES = program("filter node_ports", "filter node_resources_fit", "preemption { victims = any }")

Scenes = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
HUNT = settings(Scenes, derandomize=True, database=None, max_examples=2500, phases=[Phase.generate])
"""A planted bug is found: the search ends at the first example, without shrinking it."""


@dataclass(frozen=True)
class Case:
    """A pod to decide, and others with the nodes that they are nominated to."""

    scene: Scene
    pod: Pod
    reserved: tuple[tuple[Pod, NodeName], ...]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    scene = draw(scenes(placed_max=8, pods=4))
    names = list(scene.cache.nodes)
    first, *others = scene.pods
    reserved = [(other, draw(st.sampled_from(names))) for other in others] if names else []
    return Case(scene, replace(first, priority=10, preemption_policy="PreemptLowerPriority"), tuple(reserved))


def judged(
    case: Case, by: Program, removed: Iterable[PodUid] = (), added: Iterable[tuple[Pod, NodeName]] = ()
) -> tuple[str | None, Mapping[str, NodeRejection]]:
    """The first refusal of each node, on a cluster without some pods and with others."""
    scene, cache, left_out = case.scene, ClusterCache(), set(removed)
    for space in scene.cache.namespaces.values():
        cache.put_namespace(space)
    for value in scene.cache.nodes.values():
        cache.put_node(value)
    for uid, observed in scene.cache.pods.items():
        if uid not in left_out:
            cache.put_pod(observed)
    for other, on in added:
        cache.put_pod(placed(other, on))
    explanation = evaluate(by, case.pod, cache, now_ns=scene.now_ns, facts=scene.facts, samples=scene.samples)
    return explanation.pod_rejection, {node: rules[0] for node, rules in explanation.rejections.items()}


def rejection_at(case: Case, by: Program, node: str, removed: Iterable[PodUid] = ()) -> NodeRejection | None:
    """What the node says with its own nominated pods, and if nothing, without."""
    removed = list(removed)
    nominated_here = [(other, on) for other, on in case.reserved if on == node]
    refusal = judged(case, by, removed, nominated_here)[1].get(node)
    return refusal or judged(case, by, removed)[1].get(node)


def refusals(case: Case, by: Program) -> dict[str, NodeRejection] | None:
    """Of each node that would not do; None where the pod itself is refused."""
    if judged(case, by)[0] is not None:
        return None
    refused = {node: rejection_at(case, by, node) for node in case.scene.cache.nodes}
    return {node: refusal for node, refusal in refused.items() if refusal is not None}


def check_filters(by: Program, case: Case) -> None:
    expected = refusals(case, by)
    if expected is None:
        return
    scene, evaluator, compiled = case.scene, plan.Evaluator(case.scene.cache), plan.compile(by)

    verdict = evaluator.evaluate(
        compiled,
        case.pod,
        now_ns=scene.now_ns,
        facts=scene.facts,
        samples=scene.samples,
        nominated_pods=case.reserved,
    )

    assert verdict.feasible_count == len(scene.cache.nodes) - len(expected)
    assert verdict.selected not in expected
    assert Counter(verdict.reason_counts()) == Counter(
        group for refusal in expected.values() for group in refusal.event_reasons
    )


def check_preemption(by: Program, case: Case) -> None:
    expected = refusals(case, by)
    if expected is None or len(expected) < len(case.scene.cache.nodes):
        return
    result, allowed = searched(case, by)

    possible = set()
    for name, refusal in expected.items():
        on_it = case.scene.cache.ledger.usage(NodeName(name)).pods.values()
        pods = [victim.uid for victim in on_it if allowed(victim)]
        if refusal.resolvable and pods and rejection_at(case, by, name, pods) is None:
            possible.add(name)
    assert {candidate.node for candidate in result.candidates} == possible
    for candidate in result.candidates:
        removed = [victim.uid for victim in candidate.victims]
        assert rejection_at(case, by, candidate.node, removed) is None, f"{candidate} does not do"


def searched(case: Case, by: Program) -> tuple[CandidateSearchResult, Callable[[Pod], bool]]:
    scene, cache, compiled = case.scene, case.scene.cache, plan.compile(by)
    dry_run = plan.Evaluator(cache).dry_run(
        compiled,
        case.pod,
        now_ns=scene.now_ns,
        facts=scene.facts,
        samples=scene.samples,
        nominated_pods=case.reserved,
    )
    allowed = compiled.may_evict(
        case.pod, cache.namespaces.get(case.pod.namespace), scene.facts, scene.now_ns
    )
    cluster = PreemptionInputs(
        lambda node: cache.ledger.usage(node).pods.values(),
        lambda uid: cache.pods[uid].started_ns,
        (),
        len(cache.nodes),
    )
    return run_to_completion(find_candidates(dry_run, EvictablePods(allowed), cluster)), allowed


@pytest.mark.parametrize("by", [DEFAULT, OF_NODES], ids=["default", "of nodes"])
@given(case=cases())
@Scenes
def test_a_node_must_pass_with_and_without_its_nominated_pods(by: Program, case: Case) -> None:
    check_filters(by, case)


@pytest.mark.parametrize("by", [DEFAULT, OF_NODES], ids=["default", "of nodes"])
@given(case=cases())
@Scenes
def test_preemption_picks_nodes_where_the_pod_fits_beside_nominated_pods(by: Program, case: Case) -> None:
    check_preemption(by, case)


@pytest.mark.parametrize("check", [check_filters, check_preemption])
def test_ignored_nominations_are_detected(
    check: Callable[[Program, Case], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Nothing:
        def __enter__(self) -> None: ...
        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(nominated_rows, "pods_added", lambda *_: Nothing())
    monkeypatch.setattr("policysched.evaluate.dry_run.pods_added", lambda *_: Nothing())
    monkeypatch.setattr(NominatedOverlays, "_with_all", lambda self, _: self._new_overlay())

    @given(case=cases())
    @HUNT
    def search(case: Case) -> None:
        check(DEFAULT, case)

    with pytest.raises(AssertionError):
        search()


def away_from(app: str) -> dict[str, object]:
    term = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": app}}}
    return {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


def two_nodes_of_a_zone_and_one_nominated(policy: str) -> Rig:
    """`db` is nominated to the node `b`."""
    favoured = pod("db", labels={"app": "db"}, priority=100, scheduler="nobody")
    nodes = [node(name, labels={"zone": "z1"}, cpu="4") for name in ("a", "b")]
    return Rig(policy, *nodes, replace(pending(favoured), nominated_node=NodeName("b")))


def test_preemption_ignores_pods_nominated_elsewhere_in_the_zone() -> None:
    rig = two_nodes_of_a_zone_and_one_nominated(
        "policy test version 1\ninclude kube_default\npreemption { victims = any }\n"
    )
    rig.observe(placed(pod("low", cpu="4", scheduler="other"), "a"))

    rig.observe(pod("web", cpu="1", priority=100, spec=away_from("db")))
    rig.settle()

    assert [(eviction.name, eviction.node) for eviction in rig.of(c.Evict)] == [("web", "a")]


def huge_and_nominated(**observed: bool) -> Rig:
    """A pod that no node fits, nominated to a node that is to be created."""
    rig = Rig("policy test version 1\ninclude kube_default\n", node("a", cpu="4"))
    rig.observe(replace(pending(pod("web", cpu="8")), nominated_node=NodeName("soon"), **observed))
    rig.settle()
    return rig


def test_a_nomination_by_another_component_stays_when_no_node_fits() -> None:
    others, own = huge_and_nominated(nominated_by_other=True), huge_and_nominated()

    assert others.of(c.ClearNomination) == []
    assert [command.name for command in own.of(c.ClearNomination)] == ["web"]


def test_a_preemption_takes_over_the_nomination_of_another_component() -> None:
    rig = Rig(
        "policy test version 1\ninclude kube_default\npreemption { victims = any }\n", node("a", cpu="4")
    )
    low = placed(pod("low", cpu="4", scheduler="other"), "a")
    web = replace(
        pending(pod("web", cpu="4", priority=10)), nominated_node=NodeName("soon"), nominated_by_other=True
    )
    rig.observe(low, web)
    rig.settle()

    (eviction,) = rig.of(c.Evict)
    rig.handle(e.EvictionRefused(web.pod.uid, "no", forbidden=False, victims=()))

    assert eviction.node == "a"
    assert [command.name for command in rig.of(c.ClearNomination)] == ["web"]


def test_a_pod_that_another_component_nominates_is_not_kept_from_its_node_by_its_own_nomination() -> None:
    """The node is reserved against the equal pod that represents both. A third one is nominated all the time."""
    third = replace(pending(pod("p0", cpu="4", scheduler="nobody")), nominated_node=NodeName("b"))
    rig = Rig("policy test version 1\ninclude kube_default\n", third)
    rig.observe(pod("p1", cpu="4"), pod("p2", cpu="4"))
    rig.settle()

    rig.observe(replace(pending(pod("p2", cpu="4")), nominated_node=NodeName("a"), nominated_by_other=True))
    rig.observe(node("a", cpu="4"))
    rig.pass_time(60)

    assert rig.placements() == {"p2": "a"}
