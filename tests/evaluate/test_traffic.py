"""Cached evaluations follow gang members that are added and removed, on the node itself and in its domain."""

import pytest

from policysched.cluster.metric_samples import MetricSamples
from policysched.evaluate import Evaluator, evaluation
from policysched.evaluate import compile as compile_program
from policysched.evaluate.columns.gang_members import GangMembers
from policysched.evaluate.plan import lowering
from policysched.model.identifiers import NodeName
from policysched.model.namespaces import Namespace
from policysched.model.pods import Pod, QueuedPodInfo
from tests.builders import node, pod, world
from tests.strategies import program

_NOW_NS = 10**18

_POLICY = """policy test version 1
metric talk: bandwidth { query = "q" unit = "bit/s" from = ["a"] to = ["b"] every = 15s stale = 90s }
gang by pod.labels["group"] { min = 1 mode = gate timeout = 5m }
filter separate require traffic_to(gang%s) < 1Mbps missing reject
"""
ON_THE_NODE = _POLICY % ""
IN_THE_ZONE = _POLICY % ', "topology.kubernetes.io/zone"'

PEER, POD = (pod(name, labels={"group": "g"}, scheduler="test") for name in ("db-0", "db-1"))


@pytest.fixture(autouse=True)
def row_by_row_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a small cluster, one change is a large fraction and would rebuild everything."""
    monkeypatch.setattr(evaluation, "_REBUILD_FRACTION", 0)


def feasible_counts_before_with_and_after_the_peer(text: str) -> list[int]:
    """Three nodes, two of them in one zone; the peer is placed on the first and removed."""
    cache = world([node("a", zone="z1"), node("b", zone="z1"), node("c", zone="z2")])
    evaluator, plan = Evaluator(cache), compile_program(program(text))
    peer, pod_endpoint = (_endpoint(PEER), _endpoint(POD))
    samples = {
        "talk": MetricSamples({}, _NOW_NS, pairs={peer: {pod_endpoint: 9e8}, pod_endpoint: {peer: 9e8}})
    }

    def feasible() -> int:
        facts = QueuedPodInfo(_NOW_NS, 0)
        return evaluator.evaluate(plan, POD, now_ns=_NOW_NS, facts=facts, samples=samples).feasible_count

    counts = [feasible()]
    cache.assume(PEER, NodeName("a"))
    counts.append(feasible())
    cache.withdraw(PEER.uid)
    return [*counts, feasible()]


def _endpoint(pod: Pod) -> tuple[str, str]:
    return pod.namespace, pod.name


def test_the_node_of_a_peer_is_infeasible_while_the_peer_is_there() -> None:
    assert feasible_counts_before_with_and_after_the_peer(ON_THE_NODE) == [3, 2, 3]


def test_the_other_nodes_of_its_domain_are_also_infeasible() -> None:
    assert feasible_counts_before_with_and_after_the_peer(IN_THE_ZONE) == [3, 1, 3]


def test_a_planted_missing_domain_fingerprint_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowering, "fingerprint_of_other_rows", lambda *_: None)

    assert feasible_counts_before_with_and_after_the_peer(IN_THE_ZONE) != [3, 1, 3]


def test_a_planted_miss_of_removed_members_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    adjust = GangMembers.adjust

    def only_additions(self: GangMembers, row: int, pod: Pod, by: int) -> None:
        if by > 0:
            adjust(self, row, pod, by)

    monkeypatch.setattr(GangMembers, "adjust", only_additions)

    assert feasible_counts_before_with_and_after_the_peer(ON_THE_NODE) == [3, 2, 2]


def test_a_new_namespace_counts_no_members_again(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(ON_THE_NODE)
    cluster.feasible()
    adjusted: list[str] = []
    adjust = GangMembers.adjust
    monkeypatch.setattr(
        GangMembers,
        "adjust",
        lambda self, row, pod, by: (adjusted.append(pod.name), adjust(self, row, pod, by))[1],
    )

    cluster.cache.put_namespace(Namespace("new", {}, {}))
    cluster.cache.assume(pod("other"), NodeName("c"))
    feasible = cluster.feasible()

    assert feasible == 2
    assert adjusted == ["other"]


def test_members_change_their_gang_with_a_label_of_their_namespace() -> None:
    cluster = Cluster(ON_THE_NODE.replace("pod.labels", "namespace.labels"))

    counts = [cluster.feasible()]
    cluster.label("group", "g")
    counts.append(cluster.feasible())
    cluster.label("group", "h")
    counts.append(cluster.feasible())
    cluster.label("other", "h")
    counts.append(cluster.feasible())
    cluster.label("group", "h")
    cluster.cache.withdraw(PEER.uid)
    counts.append(cluster.feasible())
    cluster.cache.assume(PEER, NodeName("a"))
    counts.append(cluster.feasible())

    assert counts == [3, 2, 2, 3, 3, 2], (
        "without a gang, in one, in another, in none, without the peer, with it"
    )


def test_a_member_that_leaves_while_its_namespace_changes_leaves_the_gang_it_was_counted_in() -> None:
    cluster = Cluster(ON_THE_NODE.replace("pod.labels", "namespace.labels"))
    cluster.label("group", "g")
    cluster.feasible()

    cluster.label("group", "h")
    cluster.cache.withdraw(PEER.uid)
    counts = [cluster.feasible()]
    cluster.label("group", "g")
    counts.append(cluster.feasible())

    assert counts == [3, 3]


class Cluster:
    """Three nodes, with the peer on the first."""

    def __init__(self, text: str) -> None:
        self.cache = world([node(name) for name in "abc"])
        self.cache.assume(PEER, NodeName("a"))
        self._evaluator, self._plan = Evaluator(self.cache), compile_program(program(text))
        peer, pod_endpoint = _endpoint(PEER), _endpoint(POD)
        pairs = {peer: {pod_endpoint: 9e8}, pod_endpoint: {peer: 9e8}}
        self._samples = {"talk": MetricSamples({}, _NOW_NS, pairs=pairs)}

    def label(self, key: str, value: str) -> None:
        self.cache.put_namespace(Namespace(POD.namespace, {key: value}, {}))

    def feasible(self) -> int:
        facts = QueuedPodInfo(_NOW_NS, 0)
        return self._evaluator.evaluate(
            self._plan, POD, now_ns=_NOW_NS, facts=facts, samples=self._samples
        ).feasible_count
