"""The ledger's states and totals, and its recount."""

from typing import Any
from unittest.mock import MagicMock, call, patch

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import policysched.cluster.ledger as ledger_module
from policysched.cluster.ledger import Ledger, PlacementState
from policysched.cluster.namespace_shares import NamespaceShares
from policysched.cluster.node_usage import NodeUsage
from policysched.model.identifiers import NodeName
from policysched.model.pods import HostPort, Placement
from tests.builders import pod

A, B = NodeName("a"), NodeName("b")


def test_an_assumed_pod_counts_with_its_requests_and_ports() -> None:
    ledger = Ledger()

    ledger.assume(pod("web", cpu="500m", memory="1Gi", host_ports=[80]), A)

    usage = ledger.usage(A)
    assert usage.requested == {"cpu": 500, "memory": 2**30}
    assert usage.ports.items == {HostPort("0.0.0.0", "TCP", 80), ("TCP", 80)}
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
    ledger, listener = Ledger(), MagicMock()
    before, after = pod("web", cpu="500m"), pod("web", cpu="2")
    ledger.confirm(before, A)
    ledger.listeners.append(listener)

    ledger.confirm(after, A)

    assert ledger.usage(A).requested == {"cpu": 2000}
    assert listener.mock_calls == [call.pod_changed(before, after)]
    assert ledger.check() == []


def test_new_labels_change_no_total_and_are_reported() -> None:
    ledger, listener = Ledger(), MagicMock()
    ledger.listeners.append(listener)
    before, after = pod("web", cpu="500m"), pod("web", cpu="500m", labels={"zone": "z"})
    ledger.assume(before, A)
    ledger.assume(pod("other"), A)
    listener.reset_mock()

    with (
        patch.object(NodeUsage, "_adjust") as adjusted,
        patch.object(NamespaceShares, "adjust_requested") as shared,
    ):
        ledger.confirm(after, A)

    assert not adjusted.called and not shared.called
    assert listener.mock_calls == [call.pod_changed(before, after)]
    assert [placement.pod for placement in ledger.placements] == [after, pod("other")]
    assert ledger.check() == []


@pytest.mark.parametrize(
    "changed",
    [
        {"cpu": "2"},
        {"resources": {"gpu": "1"}},
        {"priority": 7},
        {"host_ports": [80]},
        {"image": "app:2"},
        {"spec": {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}},
        {"spec": {"volumes": [{"name": "v", "gcePersistentDisk": {"pdName": "d"}}]}},
    ],
)
def test_whatever_changes_of_a_confirmed_pod_the_totals_are_those_of_its_last_state(
    changed: dict[str, Any],
) -> None:
    ledger = Ledger()
    ledger.assume(pod("web", cpu="500m"), A)

    ledger.confirm(pod("web", **{"cpu": "500m", **changed}), A)

    alone = Ledger()
    alone.confirm(pod("web", **{"cpu": "500m", **changed}), A)
    assert ledger.check() == []
    assert ledger.usage(A).nonzero() == alone.usage(A).nonzero()
    assert ledger.usage(A).disks.items == alone.usage(A).disks.items
    assert ledger.usage(A).ports.items == alone.usage(A).ports.items


def test_planted_equal_totals_of_whatever_changed_are_detected() -> None:
    with patch.object(ledger_module, "have_equal_totals", return_value=True), pytest.raises(AssertionError):
        test_whatever_changes_of_a_confirmed_pod_the_totals_are_those_of_its_last_state({"host_ports": [80]})


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
    labels = st.sampled_from([{}, {"zone": "z"}])
    priorities = st.sampled_from([0, 7])

    @rule(name=pods, node=nodes, cpu=sizes)
    def assume(self, name: str, node: NodeName, cpu: int) -> None:
        if name not in self.where:
            self.ledger.assume(pod(name, cpu=f"{cpu}m"), node)
            self.where[name] = (node, cpu)

    @rule(name=pods, node=nodes, cpu=sizes, labels=labels, priority=priorities)
    def confirm(self, name: str, node: NodeName, cpu: int, labels: dict[str, str], priority: int) -> None:
        confirmed = pod(name, cpu=f"{cpu}m", labels=labels, priority=priority)
        self.ledger.confirm(confirmed, node)
        assert self.ledger.placement(confirmed.uid) == Placement(confirmed, node)
        assert self.ledger.usage(node).pods[confirmed.uid] == confirmed
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


def test_resources_of_pods_that_are_gone_are_forgotten() -> None:
    """Whoever names a node in its pods could otherwise leave thousands of resources there with each."""
    usage = NodeUsage()
    usage.add(pod("stays", cpu="1"))
    for number in range(3):
        gone = pod(f"p{number}", resources={f"tenant.example/r{number}": "1"})
        usage.add(gone)
        usage.subtract(gone)

    assert usage.requested == {"cpu": 1000}
