"""A recording of the whole program on a real control plane, killed and replayed."""

import json
import subprocess
import sys
from pathlib import Path

from tests.controlplane.cluster import ControlPlane
from tests.controlplane.objects import pod, ready_node
from tests.controlplane.waiting import PATIENCE_S, wait_for
from tests.daemon.collector import collecting
from tests.e2e.deployed import PLAIN, PODS, Deployed


def test_a_killed_process_leaves_a_recording_that_is_replayed_without_differences(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    deployed, folder = Deployed(control_plane, tmp_path), tmp_path / "recording"
    deployed.put_policies(main=PLAIN)
    control_plane.add_node(ready_node("node-1", cpu="2"))
    scheduler = deployed.start("--record", str(folder))
    try:
        scheduler.wait_until_ready()
        for number in range(6):
            control_plane.api.post(PODS, pod(f"p-{number}", schedulerName="test"))
        control_plane.api.post(PODS, pod("huge", cpu="1000", schedulerName="test"))
        wait_for(lambda: len(scheduler.json("/decisions?limit=100")["decisions"]) >= 7, "the decisions")
        wait_for(lambda: scheduler.metric("policysched_recording_lines_total"), "lines")
    finally:
        scheduler.kill()

    replayed = _replay(folder)

    assert (replayed["different"], replayed["gaps"]) == (0, [])
    assert replayed["same"] == replayed["decisions"]


def test_every_decision_reaches_the_collector(control_plane: ControlPlane, tmp_path: Path) -> None:
    deployed = Deployed(control_plane, tmp_path)
    deployed.put_policies(main=PLAIN)
    control_plane.add_node(ready_node("node-1", cpu="2"))
    names = {f"p-{number}" for number in range(6)}
    with collecting() as collector, deployed.running("--otlp", collector.url) as scheduler:
        scheduler.wait_until_ready()
        for name in names:
            control_plane.api.post(PODS, pod(name, schedulerName="test"))
        control_plane.api.post(PODS, pod("huge", cpu="1000", schedulerName="test"))
        wait_for(
            lambda: {record["k8s.pod.name"] for record in collector.records} >= names | {"huge"},
            "the decisions at the collector",
        )
        assert scheduler.metric("policysched_otlp_missed_total") == 0
        assert {deployed.bound(name) for name in names} == {"node-1"}
    (huge, *_) = [record for record in collector.records if record["k8s.pod.name"] == "huge"]
    assert huge["body"].startswith("0/1 nodes are available: 1 Insufficient cpu.")


def _replay(folder: Path) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-m", "policysched", "replay", str(folder), "--output-format", "json"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report: dict[str, object] = json.loads(done.stdout)
    return report
