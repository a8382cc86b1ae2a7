"""Claims and volumes in the sandbox: its simulated PV controller, policysched and stock kubectl."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.volumes import claim, local_volume, storage_class, using
from tests.controlplane.waiting import wait_for
from tests.e2e.sandbox import PLAIN, Cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    made.start()
    yield made
    made.stop()


def create(cluster: Cluster, *objects: dict[str, Any]) -> None:
    for obj in objects:
        cluster.kubectl("create", "-f", "-", stdin=json.dumps(obj))


def stateful(name: str, **spec: Any) -> dict[str, Any]:
    containers = [{"name": "c", "image": "app:1"}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"schedulerName": "test", "containers": containers, **spec},
    }


def row(cluster: Cluster, *what: str) -> list[str]:
    """The line of `kubectl get` for one object, without its age."""
    return cluster.kubectl("get", *what, "--no-headers").split()[:-1]


def test_a_claim_without_a_class_gets_a_volume_on_the_node_of_its_pod(cluster: Cluster) -> None:
    unclassed = claim("data")
    del unclassed["spec"]["storageClassName"]
    cluster.put_policies(main=PLAIN)
    create(cluster, unclassed)

    with cluster.scheduler():
        create(cluster, stateful("web", volumes=using("data")))
        node = cluster.bound("web")

    volume = cluster.get("/api/v1/persistentvolumes")["items"][0]["metadata"]["name"]
    assert row(cluster, "pvc", "data") == ["data", "Bound", volume, "5Gi", "RWO", "standard", "<unset>"]
    assert (
        cluster.get("/api/v1/namespaces/default/persistentvolumeclaims/data")["metadata"]["annotations"][
            "volume.kubernetes.io/selected-node"
        ]
        == node
    )
    assert row(cluster, "sc")[:2] == ["standard", "(default)"]

    cluster.kubectl("delete", "pod/web", "pvc/data", "--wait=false")
    wait_for(lambda: not cluster.get("/api/v1/persistentvolumes")["items"], "the volume to go with its claim")


def test_a_static_volume_is_bound_and_released(cluster: Cluster) -> None:
    cluster.put_policies(main=PLAIN)
    create(cluster, storage_class("local"), local_volume("on-1", node="node-1"), claim("data"))

    with cluster.scheduler():
        create(cluster, stateful("web", volumes=using("data")))
        node = cluster.bound("web")

    assert node == "node-1"
    assert row(cluster, "pv", "on-1")[:7] == [
        *("on-1", "10Gi", "RWO", "Retain", "Bound", "default/data", "local")
    ]
    cluster.kubectl("delete", "pod/web", "pvc/data", "--wait=false")
    wait_for(lambda: row(cluster, "pv", "on-1")[4] == "Released", "the volume to be released")


def test_an_immediate_claim_and_the_claim_of_an_ephemeral_volume_are_bound(cluster: Cluster) -> None:
    cluster.put_policies(main=PLAIN)
    create(cluster, storage_class("now", waits=False), claim("data", "now"))
    scratch = {"volumeClaimTemplate": {"spec": claim("", "standard")["spec"]}}

    with cluster.scheduler():
        create(
            cluster,
            stateful("web", volumes=[*using("data"), {"name": "scratch", "ephemeral": scratch}]),
        )
        # At first the claim of the ephemeral volume may not exist, and then this is the message.
        immediate = "pod has unbound immediate PersistentVolumeClaims"
        wait_for(lambda: immediate in "".join(cluster.events("web", "FailedScheduling")), "the reason")
        create(cluster, local_volume("on-1", node="node-1", of_class="now"))
        node = cluster.bound("web")

    assert node == "node-1"
    wait_for(lambda: row(cluster, "pvc", "web-scratch")[1] == "Bound", "the claim to be bound")
