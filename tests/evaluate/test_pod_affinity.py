"""Affinity and spreading between pods, through everything that caches results: evaluations, overlays, counts."""

from importlib import import_module
from typing import Any

import pytest

from policysched.cluster.cache import ClusterCache
from policysched.evaluate import Evaluator, Overlay, Plan, Verdict
from policysched.evaluate import compile as compile_program
from policysched.evaluate.columns import placed_pods, tallies
from policysched.evaluate.columns.placed_pods import PlacedPods
from policysched.evaluate.columns.pod_changes import PodChanges
from policysched.evaluate.columns.pod_classes import PodMatcher
from policysched.evaluate.kernel import ClusterContext
from policysched.evaluate.plan.lowering import Variant
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
kernel = import_module("policysched.builtins.inter_pod_affinity.kernel")  # after `evaluate`, which it imports


def term(key: str, **more: Any) -> dict[str, Any]:
    return {"topologyKey": key, "labelSelector": {"matchLabels": WEB}, **more}


def apart(key: str, **more: Any) -> dict[str, Any]:
    return {"affinity": {"podAntiAffinity": {REQUIRED: [term(key, **more)]}}}


def together(key: str) -> dict[str, Any]:
    return {"affinity": {"podAffinity": {REQUIRED: [term(key)]}}}


def spread(key: str) -> dict[str, Any]:
    constraint = {**term(key), "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
    return {"topologySpreadConstraints": [constraint]}


class Harness:
    def __init__(self, cache: ClusterCache, more: str = "") -> None:
        self.plan: Plan = compile_program(program(f"include kube_default\n{more}"))
        self.evaluator = Evaluator(cache)

    def verdict(self, name: str, **more: Any) -> Verdict:
        facts = QueuedPodInfo(0, 0)
        return self.evaluator.evaluate(self.plan, pod(name, **more), now_ns=0, facts=facts, samples={})

    def selected(self, name: str, overlay: Overlay | None = None, **more: Any) -> NodeName | None:
        facts = QueuedPodInfo(0, 0)
        new_pod = pod(name, **more)
        verdict = self.evaluator.evaluate(
            self.plan, new_pod, now_ns=0, facts=facts, samples={}, overlay=overlay
        )
        if overlay is not None and verdict.selected is not None:
            overlay.add_pod(new_pod, verdict.selected)
        return verdict.selected


def three_zones() -> list[Any]:
    return [node(f"n{index}", zone=f"z{index % 3}") for index in range(6)]


def test_a_gang_with_anti_affinity_is_placed_on_as_many_hosts_as_it_has_members() -> None:
    harness = Harness(world(three_zones()))
    overlay = harness.evaluator.overlay()

    nodes = [harness.selected(f"w{index}", overlay, labels=WEB, spec=apart(HOST)) for index in range(7)]

    assert sorted(str(name) for name in nodes[:6]) == [f"n{index}" for index in range(6)]
    assert nodes[6] is None
    assert harness.selected("w", labels=WEB, spec=apart(HOST)) is not None, (
        "the overlay must not change the cluster"
    )


def test_a_gang_with_spread_constraints_is_placed_evenly_over_zones() -> None:
    harness = Harness(world(three_zones()))
    overlay = harness.evaluator.overlay()

    nodes = [harness.selected(f"w{index}", overlay, labels=WEB, spec=spread(ZONE)) for index in range(6)]

    zones = [int(str(name)[1:]) % 3 for name in nodes]
    assert sorted(zones[:3]) == sorted(zones[3:]) == [0, 1, 2]


def test_the_first_pod_of_an_affinity_group_goes_anywhere_and_the_next_follow() -> None:
    cache = world(three_zones())
    harness = Harness(cache)
    first = harness.selected("w0", labels=WEB, spec=together(ZONE))
    assert first is not None

    cache.assume(pod("w0", labels=WEB, spec=together(ZONE)), first)
    next_ones = {harness.selected(f"w{index}", labels=WEB, spec=together(ZONE)) for index in range(1, 9)}
    cache.withdraw(pod("w0").uid)
    stranger = harness.selected("x", labels={"app": "x"}, spec=together(ZONE))

    assert {int(str(name)[1:]) % 3 for name in next_ones} == {int(first[1:]) % 3}
    assert stranger is None


def test_pods_that_a_placed_pods_term_distinguishes_do_not_share_an_evaluation() -> None:
    guard, peer = placed(pod("guard", spec=apart(HOST)), "a"), placed(pod("peer"), "b")
    cache = world([node("a"), node("b")], [guard, peer])
    harness = Harness(cache)

    unlabelled = {harness.selected(f"p{index}", labels={"index": str(index)}) for index in range(8)}
    labelled = {harness.selected(f"w{index}", labels={**WEB, "index": str(index)}) for index in range(8)}

    assert unlabelled == {"a", "b"}
    assert labelled == {"b"}
    assert len(harness.evaluator._evaluations._evaluations) == 2, (
        "labels that no term selects by make no difference"
    )


def guard_of_indexes(name: str, key: str = "index", **more: Any) -> Pod:
    """It wants no pod with this label beside it, of its own namespace if no other is named."""
    about = {"matchExpressions": [{"key": key, "operator": "Exists"}]}
    repelled = {"topologyKey": HOST, "labelSelector": about, **more}
    return pod(name, namespace="tenant", spec={"affinity": {"podAntiAffinity": {REQUIRED: [repelled]}}})


def test_terms_about_other_namespaces_distinguish_no_pods() -> None:
    """A tenant whose pods select by the index that each replica has made each pod of others a class of its own."""
    cache = world([node("a"), node("b")], [placed(guard_of_indexes("guard"), "a")])
    harness = Harness(cache)
    for index in range(8):
        harness.selected(f"w{index}", labels={"index": str(index)})

    cache.put_pod(placed(guard_of_indexes("another", key="app"), "a"))
    harness.selected("w8", labels={"index": "8", **WEB})

    assert len(harness.evaluator._evaluations._evaluations) == 1


@pytest.mark.parametrize(
    "of",
    [
        {"namespaces": ["default"]},
        {"namespaces": [*(f"other-{number}" for number in range(16)), "default"]},
        {"namespaceSelector": {}},
    ],
    ids=["named", "one of many that are named", "selected"],
)
def test_pods_that_terms_of_another_namespace_select_share_no_evaluation_with_others(of: Any) -> None:
    cache = world([node("a"), node("b")], [placed(guard_of_indexes("guard", **of), "a")])
    harness = Harness(cache)

    def feasible(name: str, **more: Any) -> set[int]:
        return {harness.verdict(f"{name}{index}", **more).feasible_count for index in range(2)}

    labelled, unlabelled = feasible("w", labels={"index": "0"}), feasible("p")
    cache.drop_pod(guard_of_indexes("guard").uid)

    assert (labelled, unlabelled, feasible("v", labels={"index": "0"})) == ({1}, {2}, {2})


def test_ignoring_selected_labels_in_the_cache_key_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PlacedPods, "selected_label_values", lambda *_: ())

    with pytest.raises(AssertionError):
        test_pods_that_a_placed_pods_term_distinguishes_do_not_share_an_evaluation()


def test_labels_that_only_past_terms_selected_by_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placed_pods, "_EMPTY_SIZE_MAX", 4)
    monkeypatch.setattr(placed_pods, "_CACHE_ENTRIES_MAX", 4)
    cache = world([node("a"), node("b")], [placed(pod("guard", spec=apart(HOST)), "a")])
    harness = Harness(cache)
    harness.selected("first")

    for number in range(50):
        about = {"matchLabels": {f"run-{number}": "yes"}}
        spaces = {"matchLabels": {"team": str(number)}}
        wanted = {"topologyKey": HOST, "labelSelector": about, "namespaceSelector": spaces}
        guard = pod(f"run-{number}", spec={"affinity": {"podAntiAffinity": {REQUIRED: [wanted]}}})
        cache.assume(guard, NodeName("b"))
        harness.selected("w0", labels=WEB)
        cache.withdraw(guard.uid)
    chosen = harness.selected("w1", labels=WEB)

    assert chosen == "b", "the guard still wants to be alone"
    assert sum(map(len, harness.evaluator._columns.placed_pods.terms.selected_keys.values())) < 20
    assert len(harness.evaluator._columns.placed_pods._resolved_scopes) <= 4


def test_a_namespace_selector_follows_label_changes() -> None:
    guard = pod("guard", spec=apart(HOST, namespaceSelector={"matchLabels": {"team": "red"}}))
    cache = world([node("a")], [placed(guard, "a")], [Namespace("default", {}, {})])
    harness = Harness(cache)

    before = harness.selected("w0", labels=WEB)
    cache.put_namespace(Namespace("default", {"team": "red"}, {}))
    afterwards = harness.selected("w1", labels=WEB)

    assert (before, afterwards) == ("a", None)


def test_pods_of_a_service_spread_by_default() -> None:
    cache = world(
        three_zones(), [placed(pod("w0", labels=WEB), "n0")], selector_owners=[service("web", app="web")]
    )
    harness = Harness(cache)

    with_service = {harness.selected(f"a{index}", labels=WEB) for index in range(24)}
    cache.drop_selector_owner("Service", "default", "web")
    without = {harness.selected(f"b{index}", labels=WEB) for index in range(24)}

    assert with_service == {"n1", "n2", "n4", "n5"}
    assert without == {"n1", "n2", "n3", "n4", "n5"}, "n0 is fuller than the others"


def test_pods_of_different_selector_groups_do_not_share_an_evaluation() -> None:
    on_nodes = [placed(pod("w0", labels=WEB), "a"), placed(pod("d0", labels={"app": "db"}), "b")]
    sets = [service("web", app="web"), service("db", app="db")]
    harness = Harness(world([node("a"), node("b")], on_nodes, selector_owners=sets))

    nodes = [harness.selected(f"p{index}", labels={"app": app}) for index, app in enumerate(("web", "db"))]

    assert nodes == ["b", "a"]


def test_ignoring_selector_groups_in_the_cache_key_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster_context = SnapshotBuilder.cluster_context
    first: list[ClusterContext] = []

    def of_the_first(builder: SnapshotBuilder, plan: Plan, variant: Variant, new_pod: Pod) -> ClusterContext:
        first.append(cluster_context(builder, plan, variant, new_pod))
        return first[0]

    monkeypatch.setattr(SnapshotBuilder, "cluster_context", of_the_first)

    with pytest.raises(AssertionError):
        test_pods_of_different_selector_groups_do_not_share_an_evaluation()


def test_hard_default_constraints_refuse_until_the_service_is_deleted() -> None:
    on_node = placed(pod("w0", labels=WEB), "a")
    cache = world([node("a"), node("b", cpu="0")], [on_node], selector_owners=[service("web", app="web")])
    constraints = f'{{ default_constraints = {{"{HOST}" = 1}} }}'
    harness = Harness(cache, f"replace filter pod_topology_spread {constraints}")

    refused = harness.verdict("w1", labels=WEB, cpu="1")
    cache.drop_selector_owner("Service", "default", "web")
    node_name = harness.selected("w1", labels=WEB, cpu="1")

    assert refused.reason_counts() == {
        "Insufficient cpu": 1,
        "node(s) didn't match pod topology spread constraints": 1,
    }
    assert ClusterEvent.SELECTOR_OWNER_UPDATE in refused.requeue_events()
    assert node_name == "a"


def test_a_node_that_moves_to_another_zone_moves_its_pods() -> None:
    others = [placed(pod(f"other-{index}"), f"n{index}") for index in range(1, 6)]
    cache = world(three_zones(), [placed(pod("w0", labels=WEB), "n0"), *others])
    harness = Harness(cache)
    before = {harness.selected(f"a{index}", spec=together(ZONE)) for index in range(8)}

    cache.put_node(node("n0", zone="z1"))
    afterwards = {harness.selected(f"b{index}", spec=together(ZONE)) for index in range(24)}

    assert before == {"n0", "n3"}
    assert afterwards == {"n0", "n1", "n4"}


def searches_for_tallies(monkeypatch: pytest.MonkeyPatch) -> int:
    """Of a decision about a pod with required affinity, where other pods are nominated to each of six nodes."""
    searches: list[object] = []
    find = kernel._tally

    def counted(*args: Any) -> Any:
        searches.append(args)
        return find(*args)

    monkeypatch.setattr(kernel, "_tally", counted)
    harness = Harness(world(three_zones(), [placed(pod("w0", labels=WEB), "n0")]))
    verdict = harness.evaluator.evaluate(
        harness.plan,
        pod("w1", labels=WEB, spec=together(ZONE)),
        now_ns=0,
        facts=QueuedPodInfo(0, 0),
        samples={},
        nominated_pods=[(pod(f"nominated-{index}"), NodeName(f"n{index}")) for index in range(6)],
    )
    assert verdict.selected in ("n0", "n3")
    return len(searches)


def test_the_tally_of_required_affinity_is_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert searches_for_tallies(monkeypatch) == 1


def test_a_tally_that_is_found_for_each_node_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        kernel._Filter,
        "_tally_of_required",
        lambda self, view: kernel._tally(view, self._affinity.required),
    )

    assert searches_for_tallies(monkeypatch) > 2


def selected_after_tallies_are_dropped(monkeypatch: pytest.MonkeyPatch) -> set[NodeName | None]:
    """For pods that follow one of zone 0, and then one of zone 1."""
    monkeypatch.setattr(tallies, "_TALLIES_MAX", 1)
    cache = world(three_zones(), [placed(pod("w0", labels=WEB), "n0")])
    harness = Harness(cache)
    harness.selected("a", spec=together(ZONE))
    for number in range(8):
        other = {"topologyKey": ZONE, "labelSelector": {"matchLabels": {"app": f"other-{number}"}}}
        harness.verdict(f"b{number}", spec={"affinity": {"podAffinity": {REQUIRED: [other]}}})
    cache.put_pod(placed(pod("x"), "n5"))
    harness.selected("c")  # drops tallies
    cache.put_pod(placed(pod("w1", labels=WEB), "n1"))
    return {harness.selected(f"d{index}", spec=together(ZONE)) for index in range(40)}


def test_a_tally_that_was_dropped_stays_right(monkeypatch: pytest.MonkeyPatch) -> None:
    assert selected_after_tallies_are_dropped(monkeypatch) >= {"n3", "n4"}


def test_a_dropped_tally_that_misses_changes_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PodChanges, "since", lambda self, _: self._from(len(self._numbers)))

    assert not selected_after_tallies_are_dropped(monkeypatch) >= {"n3", "n4"}


def test_counts_follow_pods_and_drop_empty_classes() -> None:
    counted = PlacedPods({}, 4, {HOST})
    all_pods = counted.tally(PodMatcher(()))
    pods = [pod(f"p{index}", labels={"index": str(index)}, spec=apart(HOST)) for index in range(600)]

    for index, counted_pod in enumerate(pods):
        counted.adjust(index % 4, counted_pod, 1)
    full = all_pods.row_counts.array(4).tolist()
    for index, counted_pod in enumerate(pods):
        counted.adjust(index % 4, counted_pod, -1)
    for _ in range(6):
        counted.evict_unused()

    assert full == [150.0] * 4
    assert all_pods.row_counts.is_empty
    assert counted.terms_selecting("default", WEB) == ()
    assert not counted._pod_classes
