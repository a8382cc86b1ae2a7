"""The replay reports exactly what kube-scheduler decides differently from the recording."""

from tests.conformance.replay_upstream import replay
from tests.controlplane.api import Json
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.objects import pod, ready_node


def case(*, pending: Json, expected: Json) -> Json:
    """Two nodes, one of them half full."""
    return {
        "name": "by-hand",
        "nodes": [ready_node("busy", cpu="4", memory="4Gi"), ready_node("idle", cpu="4", memory="4Gi")],
        "bound": [pod("there", cpu="2", memory="2Gi", nodeName="busy")],
        "pending": [pending],
        "expected": [{"pod": "web", "feasible": [], **expected}],
    }


def is_before_1_37(control_plane: ControlPlane) -> bool:
    """Such a release says in a rejection what became of device claims, and scores no volumes without capacities."""
    minor: str = control_plane.api.get("/version")["minor"]
    return int(minor.rstrip("+")) < 37


def refused(control_plane: ControlPlane) -> Json:
    claims = "no new claims to deallocate, " if is_before_1_37(control_plane) else ""
    message = (
        f"0/2 nodes are available: 2 Insufficient cpu. {claims}preemption: "
        "0/2 nodes are available: 2 Preemption is not helpful for scheduling."
    )
    return {"nodeName": None, "reason": "Unschedulable", "message": message}


def test_the_recorded_rejection_is_not_a_difference(whole_control_plane: ControlPlane) -> None:
    recorded = case(pending=pod("web", cpu="5"), expected=refused(whole_control_plane))

    assert replay(whole_control_plane, recorded) == []


def test_another_message_is_a_difference(whole_control_plane: ControlPlane) -> None:
    expected = refused(whole_control_plane)
    recorded = case(pending=pod("web", cpu="5"), expected=expected | {"message": "0/2 nodes are available."})

    differences = replay(whole_control_plane, recorded)

    assert differences == [
        f"web has the message {expected['message']!r}, recorded '0/2 nodes are available.'",
    ]


def test_another_node_and_another_score_are_differences(whole_control_plane: ControlPlane) -> None:
    # kube-scheduler: LeastAllocated gives `busy` 100 * (4 - 3) / 4 = 25 and `idle` 75, on both resources.
    volumes = {} if is_before_1_37(whole_control_plane) else {"VolumeBinding": {"busy": 0, "idle": 0}}
    recorded = case(
        pending=pod("web", cpu="1", memory="1Gi"),
        expected={
            "nodeName": "busy",
            "finalScores": {"busy": 500, "idle": 400},
            "weightedScores": {
                "ImageLocality": {"busy": 0, "idle": 0},
                "NodeResourcesBalancedAllocation": {"busy": 75, "idle": 75},
                "NodeResourcesFit": {"busy": 25, "idle": 74},
                "TaintToleration": {"busy": 300, "idle": 300},
                **volumes,
            },
        },
    )

    differences = replay(whole_control_plane, recorded)

    assert differences == [
        "web went to idle, recorded busy",
        "web: NodeResourcesFit gave idle 75, recorded 74",
    ]
