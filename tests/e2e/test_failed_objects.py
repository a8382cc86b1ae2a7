"""A process on a real control plane in which the event of a pod raises: it goes on without it."""

from pathlib import Path
from typing import Any

import pytest

from policysched.scheduler.events import PodUpdated
from policysched.scheduler.scheduler import Scheduler
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.objects import ready_node
from tests.controlplane.waiting import wait_for
from tests.e2e.deployed import PLAIN, Deployed


def plant() -> None:
    """An event of a pod `bad` raises."""
    right = Scheduler.handle

    def handle(scheduler: Scheduler, event: Any, now_ns: int) -> Any:
        if isinstance(event, PodUpdated) and event.pod.pod.name == "bad":
            raise OverflowError("planted")
        return right(scheduler, event, now_ns)

    Scheduler.handle = handle  # type: ignore[method-assign]


@pytest.mark.parametrize("elect", [False, True], ids=["alone", "elected"])
def test_the_process_reads_the_cluster_again_without_the_pod(
    control_plane: ControlPlane, tmp_path: Path, elect: bool
) -> None:
    deployed = Deployed(control_plane, tmp_path)
    deployed.put_policies(main=PLAIN)
    control_plane.add_node(ready_node("a"))
    with deployed.running(elect=elect, plant=plant) as scheduler:
        scheduler.wait_for_state("test", "active")
        deployed.create("before")
        deployed.bound("before")

        deployed.create("bad")
        deployed.create("after")
        deployed.bound("after")

        scheduler.wait_for_state("test", "active")
        assert "planted" in str(deployed.event("bad", "SchedulerError"))
        assert scheduler.metric('policysched_failed_objects{kind="Pod"}') == 1
        assert [line["object"] for line in scheduler.logged("could not be applied")] == ["Pod default/bad"]
        assert scheduler.process.poll() is None
        wait_for(lambda: len(scheduler.logged("started")) == 2, "it to be made anew once")
    assert deployed.node_of("bad") == ""
