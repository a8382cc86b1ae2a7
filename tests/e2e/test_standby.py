"""A standby on a real control plane: what it has read before it leads is not listed or decoded again."""

from pathlib import Path

from tests.controlplane.cluster import ControlPlane
from tests.controlplane.objects import pod, ready_node
from tests.controlplane.waiting import wait_for
from tests.e2e.deployed import PLAIN, PODS, Deployed

LISTS = 'policysched_lists_total{kind="Pod"}'
OBJECTS = 'policysched_watched_objects{kind="Pod"}'


def test_a_standby_takes_over_with_what_it_has_read(control_plane: ControlPlane, tmp_path: Path) -> None:
    deployed = Deployed(control_plane, tmp_path)
    deployed.put_policies(main=PLAIN)
    control_plane.add_node(ready_node("a", cpu="4"))
    for number in range(5):
        deployed.api.post(PODS, pod(f"p{number}", cpu="500m", nodeName="a"))
    with deployed.running(elect=True) as leader:
        leader.wait_for_state("test", "active")
        with deployed.running(elect=True) as standby:
            wait_for(lambda: standby.logged("the cache of this standby is complete"), "the first lists")
            deployed.api.post(PODS, pod("large", cpu="1", schedulerName="test"))
            deployed.bound("large")
            wait_for(lambda: standby.metric(OBJECTS) == 6, "the watch of the standby")

            assert leader.terminate() == 0
            deployed.api.post(PODS, pod("fits", cpu="500m", schedulerName="test"))
            deployed.api.post(PODS, pod("full", cpu="500m", schedulerName="test"))

            wait_for(lambda: deployed.node_of("fits") or deployed.node_of("full"), "the takeover")
            waits = "full" if deployed.node_of("fits") else "fits"
            assert deployed.condition(waits)["status"] == "False"
            assert standby.metric(LISTS) == 1, "the first one"
