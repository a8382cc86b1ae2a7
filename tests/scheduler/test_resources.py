"""Resources that a policy defines: reserved at assume, like cpu, and never reserved twice."""

from dataclasses import replace

import pytest

from policysched.evaluate.columns.column_kinds import PolicyResourceRequestedColumn
from policysched.model.pods import Pod
from policysched.scheduler import events as e
from tests.builders import node, placed, pod
from tests.scheduler.rig import Rig

BANDWIDTH = """\
policy test version 1
input asked: bandwidth = pod.annotations["kubernetes.io/egress-bandwidth"] unit "bit/s" default 0bps invalid default
input nic: bandwidth = node.labels["nic"] unit "Mbit/s" default 1Gbps invalid default
resource bandwidth { capacity = nic, request = asked }
filter node_resources_fit
filter bandwidth_fits when pod.requests.bandwidth > 0bps require pod.requests.bandwidth <= node.free.bandwidth
  says "{node.free.bandwidth} of {node.allocatable.bandwidth} are free"
preemption { victims = own }
"""
GANG = BANDWIDTH.replace(
    "filter node", 'gang by pod.labels["group"] { min = 3  timeout = 5m }\nfilter node', 1
)


def asking(name: str, speed: str, **more: object) -> Pod:
    return pod(name, annotations={"kubernetes.io/egress-bandwidth": speed}, **more)


def test_a_burst_shares_the_capacity_of_the_links() -> None:
    rig = Rig(BANDWIDTH, node("a", labels={"nic": "1000"}), node("b", labels={"nic": "500"}))

    rig.observe(*[asking(f"p{index}", "400M") for index in range(5)])
    rig.settle()

    assert sorted(rig.placements().values()) == ["a", "a", "b"]
    waiting = next(name for name in ("p0", "p1", "p2", "p3", "p4") if name not in rig.placements())
    assert (rig.pending_message(waiting) or "").startswith("0/2 nodes are available: 2 … of … are free.")


def test_capacity_that_a_pod_frees_goes_to_the_next() -> None:
    rig = Rig(BANDWIDTH, node("a", labels={"nic": "500"}), placed(asking("old", "400M"), "a"))
    rig.observe(asking("new", "200M"))
    rig.settle()
    assert rig.placements() == {}

    rig.handle(e.PodDeleted(asking("old", "400M").uid))
    rig.pass_time(30)

    assert rig.placements() == {"new": "a"}


def test_a_pod_without_requests_is_not_rejected() -> None:
    rig = Rig(BANDWIDTH, node("a", labels={"nic": "100"}), placed(asking("old", "2G"), "a"))

    rig.observe(pod("quiet"))
    rig.settle()

    assert rig.placements() == {"quiet": "a"}


def test_a_gang_counts_the_requests_of_its_own_members() -> None:
    rig = Rig(GANG, node("a", labels={"nic": "1000"}))

    rig.observe(*[asking(f"p{index}", "400M", labels={"group": "g"}) for index in range(3)])
    rig.settle()
    assert rig.placements() == {}

    rig.observe(node("b", labels={"nic": "400"}))
    rig.pass_time(30)

    assert sorted(rig.placements().values()) == ["a", "a", "b"]


def test_eviction_frees_capacity_on_the_link() -> None:
    rig = Rig(BANDWIDTH, node("a", labels={"nic": "500"}))
    low = replace(placed(asking("low", "400M", scheduler="test"), "a"))
    rig.observe(low)

    rig.observe(asking("high", "200M", priority=10))
    commands = rig.settle()

    assert [command.victims[0].name for command in commands if type(command).__name__ == "Evict"] == ["low"]


BYTES = BANDWIDTH.replace("bandwidth = pod", "bytes = pod").replace(
    'unit "bit/s" default 0bps', 'unit "B" default 0B'
)
BYTES = BYTES.replace("bandwidth = node", "bytes = node").replace(
    'unit "Mbit/s" default 1Gbps', 'unit "B" default 1GiB'
)
BYTES = BYTES.replace("pod.requests.bandwidth > 0bps", "pod.requests.bandwidth > 0B")


@pytest.mark.parametrize(
    ("policy", "capacity", "each"),
    [
        (BYTES, str(2**63 - 1), str(2**62)),
        (BANDWIDTH, "1" + "0" * 14, "8" + "0" * 18),
    ],
)
def test_a_node_with_overflowing_requests_is_full(policy: str, capacity: str, each: str) -> None:
    held = [placed(asking(f"p{index}", each), "a") for index in range(13)]
    rig = Rig(policy, node("a", labels={"nic": capacity}), *held)

    rig.observe(asking("more", "1"))
    rig.settle()

    assert rig.placements() == {}


def test_a_sum_that_ignores_placements_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PolicyResourceRequestedColumn, "reads_usage", False)

    with pytest.raises(AssertionError):
        test_a_burst_shares_the_capacity_of_the_links()
