"""What pods ask of other pods, through everything that keeps results: states, overlays, counts."""

from typing import Any

import pytest

from policysched.cluster.cache import ClusterCache
from policysched.evaluate import Evaluator, Overlay, Plan, Verdict
from policysched.evaluate import compile as compile_program
from policysched.evaluate.columns import placed_pods
from policysched.evaluate.columns.placed_pods import PlacedPods, PodMatcher
from policysched.evaluate.compile.lower import Variant
from policysched.evaluate.kernel import ClusterContext
from policysched.evaluate.snapshots import SnapshotBuilder
from policysched.model.cluster_events import ClusterEvent
from policysched.model.identifiers import NodeName
from policysched.model.namespaces import Namespace
from policysched.model.pods import Pod, QueuedPodInfo
from tests.builders import node, placed, pod, service, world
from tests.reference.checked import program

HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
WEB = {"app": "web"}


def term(key: str, **more: Any) -> dict[str, Any]:
    return {"topologyKey": key, "labelSelector": {"matchLabels": WEB}, **more}


def apart(key: str, **more: Any) -> dict[str, Any]:
    return {"affinity": {"podAntiAffinity": {REQUIRED: [term(key, **more)]}}}


def together(key: str) -> dict[str, Any]:
    return {"affinity": {"podAffinity": {REQUIRED: [term(key)]}}}


def spread(key: str) -> dict[str, Any]:
    constraint = {**term(key), "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
    return {"topologySpreadConstraints": [constraint]}


class Asking:
    def __init__(self, cache: ClusterCache, more: str = "") -> None:
        self.plan: Plan = compile_program(program(f"include kube_default\n{more}"))
        self.evaluator = Evaluator(cache)

    def verdict(self, name: str, **more: Any) -> Verdict:
        facts = QueuedPodInfo(0, 0)
        return self.evaluator.evaluate(self.plan, pod(name, **more), now_ns=0, facts=facts, samples={})

    def where(self, name: str, overlay: Overlay | None = None, **more: Any) -> NodeName | None:
        facts = QueuedPodInfo(0, 0)
        one = pod(name, **more)
        verdict = self.evaluator.evaluate(self.plan, one, now_ns=0, facts=facts, samples={}, overlay=overlay)
        if overlay is not None and verdict.selected is not None:
            overlay.add_pod(one, verdict.selected)
        return verdict.selected


def three_zones() -> list[Any]:
    return [node(f"n{index}", zone=f"z{index % 3}") for index in range(6)]


def test_a_gang_that_keeps_apart_is_tried_on_as_many_hosts_as_it_has_members() -> None:
    asking = Asking(world(three_zones()))
    overlay = asking.evaluator.overlay()

    found = [asking.where(f"w{index}", overlay, labels=WEB, spec=apart(HOST)) for index in range(7)]

    assert sorted(str(name) for name in found[:6]) == [f"n{index}" for index in range(6)]
    assert found[6] is None
    assert asking.where("w", labels=WEB, spec=apart(HOST)) is not None, "nothing of it was real"


def test_a_gang_that_spreads_is_tried_evenly_over_zones() -> None:
    asking = Asking(world(three_zones()))
    overlay = asking.evaluator.overlay()

    found = [asking.where(f"w{index}", overlay, labels=WEB, spec=spread(ZONE)) for index in range(6)]

    zones = [int(str(name)[1:]) % 3 for name in found]
    assert sorted(zones[:3]) == sorted(zones[3:]) == [0, 1, 2]


def test_the_first_of_its_kind_goes_anywhere_and_the_next_follow_it() -> None:
    cache = world(three_zones())
    asking = Asking(cache)
    first = asking.where("w0", labels=WEB, spec=together(ZONE))
    assert first is not None

    cache.assume(pod("w0", labels=WEB, spec=together(ZONE)), first)
    next_ones = {asking.where(f"w{index}", labels=WEB, spec=together(ZONE)) for index in range(1, 9)}
    cache.withdraw(pod("w0").uid)
    stranger = asking.where("x", labels={"app": "x"}, spec=together(ZONE))

    assert {int(str(name)[1:]) % 3 for name in next_ones} == {int(first[1:]) % 3}
    assert stranger is None


def test_pods_that_a_placed_pods_term_tells_apart_do_not_share_an_evaluation() -> None:
    guard, peer = placed(pod("guard", spec=apart(HOST)), "a"), placed(pod("peer"), "b")
    cache = world([node("a"), node("b")], [guard, peer])
    asking = Asking(cache)

    unlabelled = {asking.where(f"p{index}", labels={"index": str(index)}) for index in range(8)}
    labelled = {asking.where(f"w{index}", labels={**WEB, "index": str(index)}) for index in range(8)}

    assert unlabelled == {"a", "b"}
    assert labelled == {"b"}
    assert len(asking.evaluator._evaluations._evaluations) == 2, (
        "labels that no term asks about make no difference"
    )


def test_pods_taken_for_alike_whatever_their_labels_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PlacedPods, "selected_label_values", lambda *_: ())

    with pytest.raises(AssertionError):
        test_pods_that_a_placed_pods_term_tells_apart_do_not_share_an_evaluation()


def test_what_terms_of_the_past_asked_about_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placed_pods, "_EMPTY_CLASSES_MAX", 2)
    monkeypatch.setattr(placed_pods, "_CACHE_ENTRIES_MAX", 4)
    cache = world([node("a"), node("b")], [placed(pod("guard", spec=apart(HOST)), "a")])
    asking = Asking(cache)
    asking.where("first")

    for number in range(50):
        about = {"matchLabels": {f"run-{number}": "yes"}}
        spaces = {"matchLabels": {"team": str(number)}}
        wanted = {"topologyKey": HOST, "labelSelector": about, "namespaceSelector": spaces}
        one = pod(f"run-{number}", spec={"affinity": {"podAntiAffinity": {REQUIRED: [wanted]}}})
        cache.assume(one, NodeName("b"))
        asking.where("w0", labels=WEB)
        cache.withdraw(one.uid)
    chosen = asking.where("w1", labels=WEB)

    assert chosen == "b", "the guard still wants to be alone"
    assert len(asking.evaluator._columns.placed_pods.selected_keys) < 10
    assert len(asking.evaluator._columns.placed_pods._resolved_scopes) <= 4


def test_a_namespace_that_gets_another_label_is_meant_from_then_on() -> None:
    guard = pod("guard", spec=apart(HOST, namespaceSelector={"matchLabels": {"team": "red"}}))
    cache = world([node("a")], [placed(guard, "a")], [Namespace("default", {}, {})])
    asking = Asking(cache)

    before = asking.where("w0", labels=WEB)
    cache.put_namespace(Namespace("default", {"team": "red"}, {}))
    afterwards = asking.where("w1", labels=WEB)

    assert (before, afterwards) == ("a", None)


def test_pods_of_a_service_keep_apart_without_saying_so() -> None:
    cache = world(three_zones(), [placed(pod("w0", labels=WEB), "n0")], pod_sets=[service("web", app="web")])
    asking = Asking(cache)

    with_service = {asking.where(f"a{index}", labels=WEB) for index in range(24)}
    cache.drop_pod_set("Service", "default", "web")
    without = {asking.where(f"b{index}", labels=WEB) for index in range(24)}

    assert with_service == {"n1", "n2", "n4", "n5"}
    assert without == {"n1", "n2", "n3", "n4", "n5"}, "n0 is fuller than the others"


def test_pods_with_other_siblings_do_not_share_an_evaluation() -> None:
    on_nodes = [placed(pod("w0", labels=WEB), "a"), placed(pod("d0", labels={"app": "db"}), "b")]
    sets = [service("web", app="web"), service("db", app="db")]
    asking = Asking(world([node("a"), node("b")], on_nodes, pod_sets=sets))

    found = [asking.where(f"p{index}", labels={"app": app}) for index, app in enumerate(("web", "db"))]

    assert found == ["b", "a"]


def test_pods_taken_for_alike_whatever_their_siblings_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    around = SnapshotBuilder.cluster_context
    first: list[ClusterContext] = []

    def of_the_first(worlds: SnapshotBuilder, plan: Plan, variant: Variant, one: Pod) -> ClusterContext:
        first.append(around(worlds, plan, variant, one))
        return first[0]

    monkeypatch.setattr(SnapshotBuilder, "cluster_context", of_the_first)

    with pytest.raises(AssertionError):
        test_pods_with_other_siblings_do_not_share_an_evaluation()


def test_hard_constraints_by_default_refuse_and_a_service_that_goes_lets_the_pod_in() -> None:
    on_node = placed(pod("w0", labels=WEB), "a")
    cache = world([node("a"), node("b", cpu="0")], [on_node], pod_sets=[service("web", app="web")])
    constraints = f'{{ default_constraints = {{"{HOST}" = 1}} }}'
    asking = Asking(cache, f"replace filter pod_topology_spread {constraints}")

    refused = asking.verdict("w1", labels=WEB, cpu="1")
    cache.drop_pod_set("Service", "default", "web")
    found = asking.where("w1", labels=WEB, cpu="1")

    assert refused.reason_counts() == {
        "Insufficient cpu": 1,
        "node(s) didn't match pod topology spread constraints": 1,
    }
    assert ClusterEvent.POD_SELECTOR_UPDATE in refused.requeue_events()
    assert found == "a"


def test_a_node_that_moves_to_another_zone_takes_its_pods_along() -> None:
    others = [placed(pod(f"other-{index}"), f"n{index}") for index in range(1, 6)]
    cache = world(three_zones(), [placed(pod("w0", labels=WEB), "n0"), *others])
    asking = Asking(cache)
    before = {asking.where(f"a{index}", spec=together(ZONE)) for index in range(8)}

    cache.put_node(node("n0", zone="z1"))
    afterwards = {asking.where(f"b{index}", spec=together(ZONE)) for index in range(24)}

    assert before == {"n0", "n3"}
    assert afterwards == {"n0", "n1", "n4"}


def test_counts_follow_pods_and_forget_kinds_that_are_gone() -> None:
    counted = PlacedPods({}, 4)
    everybody = counted.tally(PodMatcher(()))
    pods = [pod(f"p{index}", labels={"index": str(index)}, spec=apart(HOST)) for index in range(600)]

    for index, one in enumerate(pods):
        counted.adjust(index % 4, one, 1)
    full = dict(everybody.row_counts.rows)
    for index, one in enumerate(pods):
        counted.adjust(index % 4, one, -1)
    counted.evict_unused()

    assert full == {0: 150, 1: 150, 2: 150, 3: 150}
    assert everybody.row_counts.rows == {}
    assert counted.terms_selecting("default", WEB) == ()
    assert not counted._pod_classes
