"""Requests that exceed the counting range: the plan and the reference implementation treat them
alike.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policysched.cluster.node_usage import REQUESTED_MAX, NodeUsage
from policysched.evaluate.columns.column_kinds import RequestedColumn
from policysched.model.identifiers import NodeName
from policysched.model.pods import Pod, QueuedPodInfo
from tests.builders import node, pending, placed, pod, world
from tests.evaluate.clusters import Scene
from tests.evaluate.test_reference_property import Case, explanations_agree, overlays_agree
from tests.strategies import program as checked

START_NS = 1_800_000_000 * 10**9
NUMBERS = (0, 1, REQUESTED_MAX - 1, REQUESTED_MAX, REQUESTED_MAX + 1, 2**63 - 2, 2**63 - 1)
POLICY = """\
policy test version 1
filter node_resources_fit
filter room require node.free.memory >= pod.requests.memory says "{node.free.memory} of {node.allocatable.memory}"
filter crowd reject node.requested.memory > 4611686018427387902 says "{node.requested.memory}"
filter half require node.requested["example.com/x"] / 2 <= node.free["example.com/x"]
score emptiest weight 1 higher node.free.memory normalize range(0, 4611686018427387904)
"""
PROGRAM = checked(POLICY)
AMOUNTS = st.lists(st.sampled_from(NUMBERS), min_size=5, max_size=5)


def scene(amounts: list[int]) -> Scene:
    """A node that has so much, two pods on it that request so much, and two that wait; `x` is of another pod's number."""
    allocatable, first, second, waiting, other = amounts

    def some(name: str, memory: int, devices: int) -> Pod:
        return pod(name, memory=str(memory), resources={"example.com/x": str(devices)})

    cache = world(
        [node("a", memory=str(allocatable), resources={"example.com/x": str(other)}), node("b")],
        [placed(some("one", first, second), "a"), placed(some("two", second, first), "a")],
    )
    asked = (some("web", waiting, other), some("more", other, waiting))
    for request in asked:
        cache.put_pod(pending(request))
    return Scene(cache, asked, QueuedPodInfo(START_NS, 0), {}, START_NS)


@settings(max_examples=40, deadline=None)
@given(AMOUNTS)
def test_amounts_that_are_not_counted_any_more_mean_the_same_to_plan_and_oracle(amounts: list[int]) -> None:
    case = Case(PROGRAM, scene(amounts))
    explanations_agree(case)
    overlays_agree(case)


def test_requests_saturate_and_the_free_amount_follows() -> None:
    (web, _) = Case(PROGRAM, scene([2**63 - 1, 2**63 - 1, 1, 0, 0])).expected

    refusals = {rejection.rule: rejection.reasons for rejection in web.rejections[NodeName("a")]}

    assert refusals["crowd"] == ("4Ei",)
    assert "room" not in refusals


def test_a_column_that_does_not_saturate_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_end(self: RequestedColumn, _node: object, usage: NodeUsage, _codes: object) -> int:
        return min(usage.requested.get(self.resource, 0), 2**63 - 1)

    monkeypatch.setattr(RequestedColumn, "read", without_end)

    with pytest.raises(AssertionError):
        explanations_agree(Case(PROGRAM, scene([2**63 - 1, REQUESTED_MAX, 1, 2**62, 0])))
