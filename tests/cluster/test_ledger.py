"""The ledger's states and totals, and its recount."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from policysched.cluster.ledger import Ledger, PlacementState
from policysched.cluster.node_usage import NodeUsage
from policysched.model.identifiers import NodeName
from tests.builders import pod

A, B = NodeName("a"), NodeName("b")


def test_an_assumed_pod_counts_with_its_requests_and_ports() -> None:
    ledger = Ledger()

    ledger.assume(pod("web", cpu="500m", memory="1Gi", host_ports=[80]), A)

    usage = ledger.usage(A)
    assert usage.requested == {"cpu": 500, "memory": 2**30}
    assert [port.port for port in usage.ports] == [80]
    assert ledger.usage(B).requested == {}


def test_a_confirmed_pod_is_counted_once() -> None:
    ledger = Ledger()
    web = pod("web", cpu="500m")
    ledger.assume(web, A)

    ledger.confirm(web, A)
    ledger.confirm(web, A)

    assert ledger.usage(A).requested == {"cpu": 500}
    assert ledger.state(web.uid) is PlacementState.BOUND


def test_a_pod_bound_to_another_node_moves_there() -> None:
    ledger = Ledger()
    web = pod("web", cpu="500m")
    ledger.assume(web, A)

    ledger.confirm(web, B)

    assert not ledger.usage(A).pods
    assert ledger.usage(B).requested == {"cpu": 500}


def test_a_resized_pod_is_counted_at_its_new_size() -> None:
    ledger = Ledger()
    ledger.confirm(pod("web", cpu="500m"), A)

    ledger.confirm(pod("web", cpu="2"), A)

    assert ledger.usage(A).requested == {"cpu": 2000}
    assert ledger.check() == []


def test_a_bound_pod_can_neither_be_withdrawn_nor_assumed() -> None:
    ledger = Ledger()
    web = pod("web")
    ledger.confirm(web, A)

    with pytest.raises(AssertionError, match="bound"):
        ledger.withdraw(web.uid)
    with pytest.raises(AssertionError, match="cannot be assumed"):
        ledger.assume(web, B)


def test_removing_an_unknown_pod_is_a_no_op() -> None:
    assert Ledger().remove(pod("web").uid) is None


class LedgerMachine(RuleBasedStateMachine):
    """Any order of valid steps, compared with a plain dictionary of placements."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.where: dict[str, tuple[str, int]] = {}
        self.bound: set[str] = set()

    pods = st.sampled_from(["p", "q", "r"])
    nodes = st.sampled_from([A, B])
    sizes = st.sampled_from([0, 100, 250])

    @rule(name=pods, node=nodes, cpu=sizes)
    def assume(self, name: str, node: NodeName, cpu: int) -> None:
        if name not in self.where:
            self.ledger.assume(pod(name, cpu=f"{cpu}m"), node)
            self.where[name] = (node, cpu)

    @rule(name=pods, node=nodes, cpu=sizes)
    def confirm(self, name: str, node: NodeName, cpu: int) -> None:
        self.ledger.confirm(pod(name, cpu=f"{cpu}m"), node)
        self.where[name] = (node, cpu)
        self.bound.add(name)

    @precondition(lambda self: self.where.keys() - self.bound)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.where.keys() - self.bound)))
        self.ledger.withdraw(pod(name).uid)
        del self.where[name]

    @rule(name=pods)
    def remove(self, name: str) -> None:
        self.ledger.remove(pod(name).uid)
        self.where.pop(name, None)
        self.bound.discard(name)

    @invariant()
    def the_totals_are_those_of_the_dictionary(self) -> None:
        for node in (A, B):
            expected = sum(cpu for where, cpu in self.where.values() if where == node)
            assert self.ledger.usage(node).requested.get("cpu", 0) == expected
        assert self.ledger.check() == []


TestLedgerMachine = LedgerMachine.TestCase
TestLedgerMachine.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


def test_the_recount_finds_a_total_that_was_not_subtracted(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(self: NodeUsage, removed: object) -> None:
        del self.pods[removed.uid]  # type: ignore[attr-defined]

    ledger = Ledger()
    ledger.confirm(pod("stays", cpu="1"), A)
    ledger.confirm(pod("goes", cpu="1"), A)
    monkeypatch.setattr(NodeUsage, "subtract", forgetful)

    ledger.remove(pod("goes").uid)

    assert any("node a" in sentence for sentence in ledger.check())
