"""policysched on a real control plane: pods of real controllers, kube-scheduler's messages, gangs,
and edits with kubectl.
"""

from pathlib import Path

import pytest

from tests.controlplane.api import Json
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.objects import deployment, pod, ready_node
from tests.controlplane.waiting import wait_for
from tests.e2e.deployed import BROKEN, CONFIG_MAPS, DEPLOY, NAMESPACE, PLAIN, PODS, Deployed

NOT_ON_A = PLAIN + 'filter away reject node.name == "a" says "a is kept free"\n'


@pytest.fixture
def deployed(control_plane: ControlPlane, tmp_path: Path) -> Deployed:
    return Deployed(control_plane, tmp_path)


@pytest.fixture
def whole(whole_control_plane: ControlPlane, deployed: Deployed) -> Deployed:
    """With kube-scheduler and the controllers available."""
    return deployed


def test_only_pods_of_this_scheduler_are_bound(whole: Deployed) -> None:
    for name in ("a", "b"):
        whole.control_plane.add_node(ready_node(name))
    whole.put_policies(main=PLAIN)
    whole.control_plane.start_controller_manager()
    web, batch = deployment("web", replicas=3), job("batch", completions=4)
    web["spec"]["template"]["spec"]["schedulerName"] = "test"
    batch["spec"]["template"]["spec"]["schedulerName"] = "test"

    with whole.running():
        whole.api.post(PODS, pod("foreign"))
        whole.api.post("/apis/apps/v1/namespaces/default/deployments", web)
        whole.api.post("/apis/batch/v1/namespaces/default/jobs", batch)

        bound = wait_for(lambda: placed if len(placed := nodes(whole)) == 7 else None, "seven bound pods")

    assert set(bound.values()) == {"a", "b"}
    assert "foreign" not in bound
    replica = next(name for name in bound if name.startswith("web"))
    event = whole.event(replica, "Scheduled")
    assert event["note"] == f"Successfully assigned default/{replica} to {bound[replica]}"
    assert event["reportingController"] == "test"


def test_an_unschedulable_pod_gets_the_message_of_kube_scheduler(whole: Deployed) -> None:
    taint = {"key": "team", "value": "ml", "effect": "NoSchedule"}
    whole.control_plane.add_node(ready_node("a", cpu="2"))
    whole.control_plane.add_node(ready_node("b", cpu="2", memory="1Gi", labels={"disk": "ssd"}))
    whole.control_plane.add_node(ready_node("c", taints=[taint]))
    whole.control_plane.add_node(ready_node("d", pods="0"))
    whole.put_policies(main=whole.plain_of_release())
    whole.control_plane.start_scheduler()
    hopeless: dict[str, Json] = {
        "huge": {"cpu": "1000"},
        "broad": {"cpu": "3", "memory": "2Gi"},
        "picky": {"nodeSelector": {"disk": "tape"}},
        "tolerant": {"cpu": "1000", "tolerations": [{"key": "team", "operator": "Exists"}]},
        "elsewhere": {"affinity": required_affinity("zone", "In", "moon")},
    }

    with whole.running():
        for name, spec in hopeless.items():
            whole.create(f"{name}-ours", **spec)
            whole.create(f"{name}-theirs", scheduler="default-scheduler", **spec)
        events = {
            name: (whole.event(name, "FailedScheduling"), whole.condition(name))
            for name in (f"{pod}-{scheduler}" for pod in hopeless for scheduler in ("ours", "theirs"))
        }

    for name in hopeless:
        own, upstream = events[f"{name}-ours"], events[f"{name}-theirs"]
        for field in ("type", "reason", "action"):
            assert own[0][field] == upstream[0][field]
        assert own[0]["note"] == upstream[0]["note"]
        assert own[0]["note"] == own[1]["message"]
        for field in ("type", "status", "reason", "observedGeneration"):
            assert own[1][field] == upstream[1][field]
        assert own[1]["message"] == upstream[1]["message"]


def test_a_gang_is_bound_completely_or_not_at_all(deployed: Deployed) -> None:
    for name in ("a", "b"):
        deployed.control_plane.add_node(ready_node(name, cpu="2"))
    deployed.kubectl("apply", "-f", "-", stdin=config_map_of("gang-batch"))
    gang = {"podGroup": "trainer", "minAvailable": "3"}

    with deployed.running():
        deployed.create("blocker", scheduler="gang-batch", cpu="1500m")
        deployed.bound("blocker")
        for number in range(3):
            deployed.create(f"trainer-{number}", scheduler="gang-batch", cpu="1", labels=gang)
        reason = deployed.event("trainer-2", "FailedScheduling")
        assert [deployed.node_of(f"trainer-{number}") for number in range(3)] == ["", "", ""]

        deployed.api.delete(f"{PODS}/blocker", {"gracePeriodSeconds": 0})

        deployed.all_bound(3)
    assert "trainer" in reason["note"]


def test_a_resize_that_a_kubelet_can_never_do_counts_nothing(deployed: Deployed) -> None:
    deployed.control_plane.add_node(ready_node("a", cpu="4"))
    deployed.put_policies(main=PLAIN)

    with deployed.running():
        deployed.create("web", cpu="1")
        deployed.bound("web")
        resize(deployed, "web", cpu="3500m")
        deployed.create("second", cpu="2")
        waits = deployed.event("second", "FailedScheduling")["note"]
        report_infeasible(deployed, "web", allocated="1")
        deployed.bound("second")

    assert waits.startswith("0/1 nodes are available: 1 Insufficient cpu.")


def test_a_node_that_another_component_nominated_stays_when_no_node_fits(deployed: Deployed) -> None:
    deployed.control_plane.add_node(ready_node("a", cpu="4"))
    deployed.put_policies(main=PLAIN)
    deployed.create("web", cpu="8")
    deployed.api.patch(f"{PODS}/web/status", {"status": {"nominatedNodeName": "soon"}})

    with deployed.running():
        deployed.event("web", "FailedScheduling")
        deployed.condition("web")
        deployed.control_plane.add_node(ready_node("soon", cpu="16"))
        deployed.create("greedy", cpu="10")
        node = deployed.bound("web")

    assert node == "soon"
    assert deployed.node_of("greedy") == ""


TEAMS = """\
policy test version 1
include kube_default
quota team by pod.labels["team"] else "none" {
  "one" { cpu = 2 borrow any }
  "two" { cpu = 2 borrow any }
  others { cpu = 0 }
}
"""


def test_a_team_takes_back_the_quota_that_another_borrows(deployed: Deployed) -> None:
    deployed.control_plane.add_node(ready_node("a", cpu="16"))
    deployed.put_policies(main=TEAMS)
    now = {"terminationGracePeriodSeconds": 0}  # no kubelet ends pods here

    with deployed.running() as scheduler:
        for number in range(4):
            deployed.create(f"one-{number}", cpu="1", labels={"team": "one"}, **now)
        deployed.all_bound(4)
        deployed.create("one-4", cpu="1", labels={"team": "one"}, **now)
        reason = deployed.event("one-4", "FailedScheduling")["note"]
        deployed.create("two", cpu="2", labels={"team": "two"}, **now)
        deployed.bound("two")
        used = {
            row["entity"][0]: row["resources"]["cpu"]["used"] for row in scheduler.json("/quotas")["quotas"]
        }

    assert "waits for quota team: 4 of 4 cpu used" in reason
    assert used == {"one": "2", "two": "2"}


def test_kubectl_edit_changes_the_next_decision(deployed: Deployed) -> None:
    for name in ("a", "b"):
        deployed.control_plane.add_node(ready_node(name))
    deployed.put_policies(main=NOT_ON_A)
    with deployed.running() as scheduler:
        deployed.create("first")
        assert deployed.bound("first") == "b"
        before = scheduler.json("/policy")["policies"][0]["sha256"]

        deployed.kubectl(
            *("edit", "configmap", "policies", "-n", NAMESPACE),
            KUBE_EDITOR='sed -i \'s/== \\\\"a/== \\\\"b/;s/== "a"/== "b"/\'',
        )

        wait_for(
            lambda: scheduler.json("/policy")["policies"][0]["sha256"] != before, "the edit to be active"
        )
        deployed.create("second")
        assert deployed.bound("second") == "a"


def test_a_rejected_policy_is_reported_by_an_event_and_the_old_one_stays_active(deployed: Deployed) -> None:
    for name in ("a", "b"):
        deployed.control_plane.add_node(ready_node(name))
    deployed.put_policies(main=NOT_ON_A)
    with deployed.running() as scheduler:
        scheduler.wait_for_state("test", "active")

        deployed.put_policies(main=BROKEN)

        rejected = deployed.event("policies", "PolicyRejected")
        assert rejected["type"] == "Warning"
        assert rejected["regarding"]["kind"] == "ConfigMap"
        assert rejected["regarding"]["uid"] == deployed.api.get(f"{CONFIG_MAPS}/policies")["metadata"]["uid"]
        assert rejected["note"].startswith("main.policy:3:26 PS")
        assert scheduler.state_of("test") == "last_known_good"
        deployed.create("web")
        assert deployed.bound("web") == "b"
        deployed.put_policies(main=NOT_ON_A)
        deployed.event("policies", "PolicyRecovered")
        assert scheduler.state_of("test") == "active"


def test_every_pod_is_bound_after_the_configmap_is_deleted_and_restored(deployed: Deployed) -> None:
    for name in ("a", "b"):
        deployed.control_plane.add_node(ready_node(name))
    deployed.put_policies(main=NOT_ON_A)
    with deployed.running() as scheduler:
        scheduler.wait_for_state("test", "active")

        deployed.kubectl("delete", "configmap", "policies", "-n", NAMESPACE)

        deployed.event("policies", "PolicyMissing")
        deployed.create("meanwhile")
        assert deployed.bound("meanwhile") == "b"
        deployed.put_policies(main=NOT_ON_A.replace('"a"', '"b"'))
        scheduler.wait_for_state("test", "active")
        deployed.create("afterwards")
        assert deployed.bound("afterwards") == "a"


def test_a_restart_with_a_bad_policy_in_place_runs_the_last_known_good_one(deployed: Deployed) -> None:
    for name in ("a", "b"):
        deployed.control_plane.add_node(ready_node(name))
    deployed.put_policies(main=NOT_ON_A)
    with deployed.running():
        wait_for(lambda: "a is kept free" in deployed.last_good().get("test.policy", ""), "it to be kept")
    deployed.put_policies(main=BROKEN)

    with deployed.running() as after:
        deployed.create("web")

        assert deployed.bound("web") == "b"
        assert after.state_of("test") == "last_known_good"


def resize(deployed: Deployed, name: str, *, cpu: str) -> None:
    container = {"name": "main", "resources": {"requests": {"cpu": cpu}}}
    body = {"spec": {"containers": [container]}}
    strategic = "application/strategic-merge-patch+json"
    deployed.api.patch(f"{PODS}/{name}/resize", body, content_type=strategic)


def report_infeasible(deployed: Deployed, name: str, *, allocated: str) -> None:
    """As a kubelet that can never do a resize. The kubelet of a hollow node never reports that: the API server refuses what is larger
    than the node, and the other reasons (`Admit` in pkg/kubelet/allocation/handlers.go) are static pods, swap, memory-backed
    volumes, and static managers of CPUs and memory. `tests/upstream/test_kubelet.py` has all other outcomes of a resize."""
    amounts = {"cpu": allocated, "memory": "64Mi"}
    image = "registry.test/app:1"
    container = {
        "name": "main",
        "image": image,
        "imageID": image,
        "ready": True,
        "restartCount": 0,
        "resources": {"requests": amounts},
        "allocatedResources": amounts,
    }
    condition = {"type": "PodResizePending", "status": "True", "reason": "Infeasible"}
    status = {"phase": "Running", "containerStatuses": [container], "conditions": [condition]}
    deployed.api.patch(f"{PODS}/{name}/status", {"status": status})


def nodes(deployed: Deployed) -> dict[str, str]:
    """The bound pods and their nodes."""
    return {
        pod["metadata"]["name"]: pod["spec"]["nodeName"]
        for pod in deployed.pods()
        if "nodeName" in pod["spec"]
    }


def job(name: str, *, completions: int) -> Json:
    template = pod(name)
    template["spec"]["restartPolicy"] = "Never"
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {
            "completions": completions,
            "parallelism": completions,
            "template": {"spec": template["spec"]},
        },
    }


def required_affinity(key: str, operator: str, *values: str) -> Json:
    term = {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}


def config_map_of(policy: str) -> str:
    """The manifest of a ConfigMap with `policies/POLICY.policy`."""
    text = (DEPLOY.parent / "policies" / f"{policy}.policy").read_text()
    body = "".join(f"    {line}\n" for line in text.splitlines())
    return (
        f"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  namespace: {NAMESPACE}\n  name: policies\n"
        f"data:\n  {policy}.policy: |\n{body}"
    )
