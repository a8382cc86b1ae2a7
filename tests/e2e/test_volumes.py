"""Pods with volumes on a real control plane: the real PV controller completes what policysched
writes.
"""

from pathlib import Path

from tests.controlplane.cluster import ControlPlane
from tests.controlplane.objects import ready_node
from tests.controlplane.volumes import CLAIMS, CLASSES, VOLUMES, claim, local_volume, storage_class, using
from tests.controlplane.waiting import wait_for
from tests.e2e.deployed import PLAIN, PODS, Deployed

BINDER = "--controllers=persistentvolume-binder-controller,ephemeral-volume-controller"


def deployed_with_volumes(control_plane: ControlPlane, folder: Path, *nodes: str) -> Deployed:
    deployed = Deployed(control_plane, folder)
    for name in nodes:
        control_plane.add_node(ready_node(name))
    deployed.put_policies(main=PLAIN)
    control_plane.start_controller_manager(BINDER, "--enable-hostpath-provisioner=true")
    return deployed


def wait_until_bound(deployed: Deployed, claim: str) -> None:
    """The PV controller writes this to the status last, after everything that the pod waits for."""
    wait_for(
        lambda: deployed.api.get(f"{CLAIMS}/{claim}")["status"].get("phase") == "Bound",
        f"{claim} to be Bound",
    )


def test_a_wait_for_first_consumer_claim_is_bound_before_its_pod(
    whole_control_plane: ControlPlane, tmp_path: Path
) -> None:
    deployed = deployed_with_volumes(whole_control_plane, tmp_path, "a", "b")
    deployed.api.post(CLASSES, storage_class("local"))
    deployed.api.post(VOLUMES, local_volume("on-b", node="b"))
    wait_for(lambda: deployed.api.get(f"{VOLUMES}/on-b")["status"]["phase"] == "Available", "the volume")
    deployed.api.post(CLAIMS, claim("data"))

    with deployed.running():
        deployed.create("web", volumes=using("data"))
        node = deployed.bound("web")

    volume = deployed.api.get(f"{VOLUMES}/on-b")
    assert node == "b"
    assert volume["spec"]["claimRef"]["name"] == "data"
    assert volume["metadata"]["annotations"]["pv.kubernetes.io/bound-by-controller"] == "yes"
    assert deployed.api.get(f"{CLAIMS}/data")["spec"]["volumeName"] == "on-b"
    wait_until_bound(deployed, "data")


def test_a_volume_is_provisioned_for_a_claim_once_its_pod_has_a_node(
    whole_control_plane: ControlPlane, tmp_path: Path
) -> None:
    deployed = deployed_with_volumes(whole_control_plane, tmp_path, "a")
    deployed.api.post(CLASSES, storage_class("made", "kubernetes.io/host-path"))
    deployed.api.post(CLAIMS, claim("data", "made", size="1Mi"))

    with deployed.running():
        deployed.create("web", volumes=using("data"))
        node = deployed.bound("web")

    data = deployed.api.get(f"{CLAIMS}/data")
    assert node == "a"
    assert data["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] == "a"
    wait_until_bound(deployed, "data")


def test_a_pod_is_nominated_while_its_claim_is_provisioned(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    deployed = Deployed(control_plane, tmp_path)
    control_plane.add_node(ready_node("a"))
    deployed.put_policies(main=PLAIN)
    deployed.api.post(CLASSES, storage_class("made", "example.com/not-running"))
    deployed.api.post(CLAIMS, claim("data", "made", size="1Mi"))

    with deployed.running():
        deployed.create("web", volumes=using("data"))
        selected = wait_for(
            lambda: (
                deployed.api.get(f"{CLAIMS}/data")["metadata"]
                .get("annotations", {})
                .get("volume.kubernetes.io/selected-node")
            ),
            "the node of the claim",
        )
        status = deployed.api.get(f"{PODS}/web")["status"]

    assert (selected, status["nominatedNodeName"]) == ("a", "a")


def test_a_pod_waits_for_the_claim_of_its_ephemeral_volume(
    whole_control_plane: ControlPlane, tmp_path: Path
) -> None:
    deployed = deployed_with_volumes(whole_control_plane, tmp_path, "a")
    deployed.api.post(CLASSES, storage_class("made", "kubernetes.io/host-path"))
    template = {"spec": claim("", "made", size="1Mi")["spec"]}

    with deployed.running():
        deployed.create("web", volumes=[{"name": "scratch", "ephemeral": {"volumeClaimTemplate": template}}])
        node = deployed.bound("web")

    assert node == "a"
    wait_until_bound(deployed, "web-scratch")


def test_a_pod_with_an_unbound_immediate_claim_waits_until_it_is_bound(
    whole_control_plane: ControlPlane, tmp_path: Path
) -> None:
    deployed = deployed_with_volumes(whole_control_plane, tmp_path, "a", "b")
    deployed.api.post(CLASSES, storage_class("now", waits=False))
    deployed.api.post(CLAIMS, claim("data", "now"))

    with deployed.running():
        deployed.create("web", volumes=using("data"))
        message = deployed.condition("web")["message"]
        deployed.api.post(VOLUMES, local_volume("on-b", node="b", of_class="now"))
        node = deployed.bound("web")

    assert message == ("0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found")
    assert node == "b"


def test_two_pods_do_not_get_one_volume(whole_control_plane: ControlPlane, tmp_path: Path) -> None:
    deployed = deployed_with_volumes(whole_control_plane, tmp_path, "a", "b")
    deployed.api.post(CLASSES, storage_class("local"))
    for name in ("a", "b"):
        deployed.api.post(VOLUMES, local_volume(f"on-{name}", node=name))
        deployed.api.post(CLAIMS, claim(f"data-{name}"))

    with deployed.running():
        deployed.create("one", volumes=using("data-a"))
        deployed.create("two", volumes=using("data-b"))
        nodes = {deployed.bound("one"), deployed.bound("two")}

    held = {deployed.api.get(f"{VOLUMES}/on-{name}")["spec"]["claimRef"]["name"] for name in ("a", "b")}
    assert nodes == {"a", "b"}
    assert held == {"data-a", "data-b"}


def test_a_new_process_continues_from_the_claims_that_a_killed_one_wrote(
    whole_control_plane: ControlPlane, tmp_path: Path
) -> None:
    """The PV controller starts only after the first policysched is killed, so that it is killed
    while it waits.
    """
    deployed = Deployed(whole_control_plane, tmp_path)
    for name in ("a", "b"):
        whole_control_plane.add_node(ready_node(name))
    deployed.put_policies(main=PLAIN)
    deployed.api.post(CLASSES, storage_class("local"))
    volume = deployed.api.post(VOLUMES, local_volume("on-b", node="b"))
    deployed.api.put(f"{VOLUMES}/on-b/status", {**volume, "status": {"phase": "Available"}})
    deployed.api.post(CLAIMS, claim("data"))
    first = deployed.start()
    deployed.create("web", volumes=using("data"))
    wait_for(lambda: "claimRef" in deployed.api.get(f"{VOLUMES}/on-b")["spec"], "the volume to be promised")
    first.kill()

    whole_control_plane.start_controller_manager(BINDER)
    with deployed.running():
        node = deployed.bound("web")

    assert node == "b"
    wait_until_bound(deployed, "data")
