"""The roles in `deploy/` are exactly what policysched needs: no request is refused, and no
permission is unused.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from policysched.kube.decode.devices import EXTENDED_RESOURCE_CLAIM_ANNOTATION
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.objects import ready_node
from tests.controlplane.programs import Programs
from tests.controlplane.volumes import CLAIMS, CLASSES, VOLUMES, claim, local_volume, storage_class, using
from tests.controlplane.waiting import wait_for
from tests.devices import claim_spec, claiming, gpu, new, slice_manifest
from tests.e2e.deployed import BROKEN, DEPLOY, NAMESPACE, PLAIN, PODS, Deployed, manifests, refused
from tests.e2e.permissions import Permission, allowed, asked, granted
from tests.e2e.program import Running

GROUP = "/apis/resource.k8s.io/v1"
POD_GROUP_APIS = ("scheduling.k8s.io", "scheduling.volcano.sh", "scheduling.x-k8s.io")
NOT_AUDITED = {
    "patch resource.k8s.io/resourceclaims/binding",
    "watch scheduling.k8s.io/workloads",
    *(f"watch {group}/podgroups" for group in POD_GROUP_APIS),
    *(f"patch {group}/podgroups/status" for group in POD_GROUP_APIS),
}
"""What the API server authorizes in addition to the request itself, so that no request has it as its own verb; and what
this API server does not serve: `test_pod_groups` has servers that do, and runs with the same role."""
NOT_SERVED_BEFORE_1_37 = {"watch resource.k8s.io/devicetaintrules"}


@pytest.fixture
def audited(control_plane_programs: Programs, control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """A separate control plane that records the requests of policysched's ServiceAccount. The
    fixture `control_plane` is requested only because it skips the test if there is none.
    """
    del control_plane
    user = f"system:serviceaccount:{NAMESPACE}:policysched"
    with ControlPlane(control_plane_programs, audited=user) as running:
        yield running


def test_every_permission_is_used_and_none_is_missing(audited: ControlPlane, tmp_path: Path) -> None:
    deployed = Deployed(audited, tmp_path)

    everything_once(deployed)

    used, rules = asked(audited.audit_records()), granted(manifests())
    assert {str(permission): codes for permission, codes in used.items() if 403 in codes} == {}
    in_vain = {str(rule) for rule in rules if not any(map(rule.allows, used))}
    assert in_vain == NOT_AUDITED | (NOT_SERVED_BEFORE_1_37 if deployed.kubernetes_minor() < 37 else set())
    assert [
        str(permission) for permission in sorted(used) if not any(rule.allows(permission) for rule in rules)
    ] == []


def test_without_the_preemption_permissions_no_pod_is_evicted_or_marked(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    deployed = Deployed(control_plane, tmp_path)
    deployed.kubectl("delete", "-f", str(DEPLOY / "preemption.yaml"))
    account, deleting = f"{NAMESPACE}:policysched", Permission("", "pods", "delete")
    wait_for(lambda: not allowed(control_plane.api, account, deleting), "the permission to be gone")
    control_plane.add_node(ready_node("a", cpu="4"))
    priority = "/apis/scheduling.k8s.io/v1/priorityclasses"
    deployed.api.post(priority, {"metadata": {"name": "urgent"}, "value": 1000})
    deployed.put_policies(main=PLAIN)

    with deployed.running():
        deployed.create("low", cpu="3")
        deployed.bound("low")
        deployed.create("urgent", cpu="3", priorityClassName="urgent")
        event = deployed.event("policies", "PreemptionForbidden")

    low, urgent = (deployed.api.get(f"{PODS}/{name}") for name in ("low", "urgent"))
    assert "cannot delete resource" in event["note"]
    assert [condition["type"] for condition in low["status"]["conditions"]] == ["PodScheduled"]
    assert "deletionTimestamp" not in low["metadata"]
    assert "nominatedNodeName" not in urgent["status"]


def test_a_superfluous_and_a_missing_permission_are_detected() -> None:
    manifest = {
        "kind": "Role",
        "metadata": {"name": "r", "namespace": "team"},
        "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "delete"]}],
    }
    record = {
        "verb": "get",
        "objectRef": {"resource": "pods", "namespace": "team", "name": "web", "apiVersion": "v1"},
        "responseStatus": {"code": 200},
    }
    elsewhere = {**record, "objectRef": {**record["objectRef"], "namespace": "other"}}

    rules, used = granted([manifest]), asked([record, elsewhere])

    assert [str(rule) for rule in rules if not any(map(rule.allows, used))] == ["delete core/pods in team"]
    assert [permission for permission in used if not any(rule.allows(permission) for rule in rules)] == [
        Permission("", "pods", "get", "other", "web")
    ]


def everything_once(deployed: Deployed) -> None:
    """Cause every kind of request that policysched sends, at least once."""
    deployed.control_plane.add_node(ready_node("a", cpu="4"))
    deployed.put_policies(main=PLAIN)
    # Reported again so soon that the event's count is increased.
    often = {"reporting": {"series_update_interval_s": 0.5}}
    # The Lease: get, update. `secure`: reviews of users and of what they may read.
    with deployed.running(elect=True, settings=often, secure=True) as scheduler:
        scheduler.wait_for_state("test", "active")  # the policies: list, watch
        token = deployed.control_plane.service_account_token(NAMESPACE, "policysched")
        assert scheduler.status_with_token("/metrics", token) == 403
        wait_for(deployed.last_good, "the last known good policy to be kept")  # get, patch
        deployed.create("web")
        deployed.event("web", "Scheduled")  # a binding, an event
        deployed.create("huge", cpu="100")
        deployed.condition("huge")  # a status
        for _ in range(2):
            deployed.put_policies(main=BROKEN)
            scheduler.wait_for_state("test", "last_known_good")
            deployed.put_policies(main=PLAIN)
            scheduler.wait_for_state("test", "active")
        wait_for(lambda: counted_up(deployed), "an event that is counted up")  # a patch
        somebody_is_quicker(deployed, scheduler)  # reads a pod
        promises_volumes(deployed)  # a volume and a claim: patch
        # A device claim: patch, its status, and get, because another writer changes it meanwhile.
        gives_devices(deployed)
        stands_for_a_resource(deployed)  # a claim for devices: create, delete
        makes_room(deployed)  # marks a pod, and deletes it


def promises_volumes(deployed: Deployed) -> None:
    """One claim is bound to an existing volume, and another waits for provisioning, which nothing
    does here.
    """
    deployed.api.post(CLASSES, storage_class("local"))
    deployed.api.post(CLASSES, storage_class("made", "example.com/maker"))
    volume = deployed.api.post(VOLUMES, local_volume("v", node="a"))
    deployed.api.put(f"{VOLUMES}/v/status", {**volume, "status": {"phase": "Available"}})
    deployed.api.post(CLAIMS, claim("found"))
    deployed.api.post(CLAIMS, claim("missing", "made"))
    deployed.create("stateful", cpu="1m", volumes=using("found", "missing"))
    wait_for(lambda: "claimRef" in deployed.api.get(f"{VOLUMES}/v")["spec"], "the volume to be promised")
    wait_for(
        lambda: (
            "volume.kubernetes.io/selected-node"
            in deployed.api.get(f"{CLAIMS}/missing")["metadata"].get("annotations", {})
        ),
        "the claim to be sent to the node",
    )


def gives_devices(deployed: Deployed) -> None:
    """Change device claims continuously, until policysched has to read one."""
    deployed.api.post(f"{GROUP}/deviceclasses", {"metadata": {"name": "gpu"}, "spec": {}})
    offered = slice_manifest("a", *(gpu(f"g{number}") for number in range(60)))
    deployed.api.post(f"{GROUP}/resourceslices", new(offered))
    for number in range(60):
        name = f"gpu-{number}"
        path = f"{GROUP}/namespaces/default/resourceclaims"
        deployed.api.post(path, {"metadata": {"name": name}, "spec": claim_spec()})
        deployed.create(name, cpu="1m", memory="1Mi", **claiming(name))
        for turn in range(500):
            deployed.api.patch(f"{path}/{name}", {"metadata": {"annotations": {"turn": str(turn)}}})
            if deployed.node_of(name):
                break
        deployed.bound(name)
        used = asked(deployed.control_plane.audit_records())
        if any((permission.resource, permission.verb) == ("resourceclaims", "get") for permission in used):
            return
    raise AssertionError("nobody was quicker than policysched")


def stands_for_a_resource(deployed: Deployed) -> None:
    """A pod that requests an extended resource while a claim of an earlier attempt still exists."""
    named = {"metadata": {"name": "card"}, "spec": {"extendedResourceName": "example.com/card"}}
    deployed.api.post(f"{GROUP}/deviceclasses", named)
    deployed.api.post(
        f"{GROUP}/resourceslices", new(slice_manifest("a", gpu("card"), pool="cards", name="cards"))
    )
    gated = {"schedulingGates": [{"name": "example.com/wait"}]}
    asking = {"requests": {"example.com/card": "1"}, "limits": {"example.com/card": "1"}}
    containers = [{"name": "c", "image": "app:1", "resources": asking}]
    deployed.create("card", containers=containers, **gated)
    uid = deployed.api.get(f"{PODS}/card")["metadata"]["uid"]
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "card", "uid": uid, "controller": True}
    meta = {
        "name": "left",
        "annotations": {EXTENDED_RESOURCE_CLAIM_ANNOTATION: "true"},
        "ownerReferences": [owner],
    }
    request = {"name": "r", "exactly": {"deviceClassName": "card", "count": 1}}
    path = f"{GROUP}/namespaces/default/resourceclaims"
    deployed.api.post(path, {"metadata": meta, "spec": {"devices": {"requests": [request]}}})
    deployed.api.patch(f"{PODS}/card", {"spec": {"schedulingGates": None}})
    deployed.bound("card")


def makes_room(deployed: Deployed) -> None:
    """A pod of higher priority that needs the requests of all others on the node."""
    path = "/apis/scheduling.k8s.io/v1/priorityclasses"
    deployed.put_policies(main=PLAIN.replace("preemption never\n", ""))
    deployed.api.post(path, {"metadata": {"name": "urgent"}, "value": 1000})
    deployed.create("low", cpu="3")
    deployed.bound("low")
    deployed.create("urgent", cpu="3", priorityClassName="urgent")
    deployed.event("low", "Preempted")


def counted_up(deployed: Deployed) -> bool:
    return any(
        event.get("series", {}).get("count", 1) > 1
        for event in deployed.events("policies", "PolicyRecovered")
    )


def somebody_is_quicker(deployed: Deployed, scheduler: Running) -> None:
    """Bind pods by hand as soon as they are created, until policysched loses that race and reads
    the pod.
    """
    for number in range(500):
        name = f"raced-{number}"
        deployed.create(name, cpu="1m", memory="1Mi")
        target = {"apiVersion": "v1", "kind": "Node", "name": "elsewhere"}
        refused(
            lambda name=name, target=target: deployed.api.post(  # type: ignore[misc]
                f"{PODS}/{name}/binding", {"metadata": {"name": name}, "target": target}
            )
        )
        if scheduler.metric('policysched_binds_total{outcome="lost"}'):
            return
    raise AssertionError("policysched won every race")
