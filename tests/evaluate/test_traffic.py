"""What is kept of answers about traffic follows members that come and go, on the node itself and in its domain."""

import pytest

from policysched.cluster.samples import MetricSamples
from policysched.evaluate import Evaluator, evaluation
from policysched.evaluate import compile as compile_program
from policysched.evaluate.columns.gang_members import GangMembers
from policysched.evaluate.plan import specialize
from policysched.model.identifiers import NodeName
from policysched.model.pods import Pod, QueuedPodInfo
from tests.builders import node, pod, world
from tests.strategies import program

_NOW_NS = 10**18

_POLICY = """policy test version 1
metric talk: bandwidth { query = "q" unit = "bit/s" from = ["a"] to = ["b"] every = 15s stale = 90s }
gang by pod.labels["group"] { min = 1 mode = gate timeout = 5m }
filter apart require traffic_to(gang%s) < 1Mbps missing reject
"""
ON_THE_NODE = _POLICY % ""
IN_THE_ZONE = _POLICY % ', "topology.kubernetes.io/zone"'

PEER, ASKED = (pod(name, labels={"group": "g"}, scheduler="test") for name in ("db-0", "db-1"))


@pytest.fixture(autouse=True)
def catching_up_row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a small cluster a change is a large part of it, and would start everything over."""
    monkeypatch.setattr(evaluation, "_REBUILD_FRACTION", 0)


def feasible_nodes_while_the_peer_comes_and_goes(text: str) -> list[int]:
    """Three nodes, two of them in one zone, where the peer comes to the first: before, with it, and after."""
    cache = world([node("a", zone="z1"), node("b", zone="z1"), node("c", zone="z2")])
    evaluator, plan = Evaluator(cache), compile_program(program(text))
    one, two = (_peer(PEER), _peer(ASKED))
    samples = {"talk": MetricSamples({}, _NOW_NS, pairs={one: {two: 9e8}, two: {one: 9e8}})}

    def feasible() -> int:
        facts = QueuedPodInfo(_NOW_NS, 0)
        return evaluator.evaluate(plan, ASKED, now_ns=_NOW_NS, facts=facts, samples=samples).feasible_count

    found = [feasible()]
    cache.assume(PEER, NodeName("a"))
    found.append(feasible())
    cache.withdraw(PEER.uid)
    return [*found, feasible()]


def _peer(one: Pod) -> tuple[str, str]:
    return one.namespace, one.name


def test_the_node_of_a_peer_is_another_while_the_peer_is_there() -> None:
    assert feasible_nodes_while_the_peer_comes_and_goes(ON_THE_NODE) == [3, 2, 3]


def test_so_are_the_other_nodes_of_its_domain() -> None:
    assert feasible_nodes_while_the_peer_comes_and_goes(IN_THE_ZONE) == [3, 1, 3]


def test_planted_a_domain_that_is_not_asked_about_again_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(specialize, "traffic_fingerprint", lambda *_: None)

    assert feasible_nodes_while_the_peer_comes_and_goes(IN_THE_ZONE) != [3, 1, 3]


def test_planted_a_member_that_leaves_uncounted_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    shift = GangMembers.adjust

    def only_more(self: GangMembers, row: int, pod: Pod, by: int) -> None:
        if by > 0:
            shift(self, row, pod, by)

    monkeypatch.setattr(GangMembers, "adjust", only_more)

    assert feasible_nodes_while_the_peer_comes_and_goes(ON_THE_NODE) == [3, 2, 2]
