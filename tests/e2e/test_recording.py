"""A recording of the whole program on a real control plane, killed and replayed."""

import json
import subprocess
import sys
from pathlib import Path

from tests.controlplane.cluster import ControlPlane
from tests.controlplane.objects import pod, ready_node
from tests.controlplane.waiting import PATIENCE_S, wait_for
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
