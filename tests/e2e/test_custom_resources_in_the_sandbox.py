"""The policy for Yoda's users in the sandbox: its custom resource is defined and written by kubectl, and read by the scheduler."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.controlplane.waiting import wait_for
from tests.e2e.sandbox import Cluster

POLICY = (Path(__file__).parents[2] / "policies" / "yoda-scv.policy").read_text()
GROUP = "core.run-linux.com"
DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": f"scvs.{GROUP}"},
    "spec": {
        "group": GROUP,
        "scope": "Cluster",
        "names": {"plural": "scvs", "kind": "Scv"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
                },
            }
        ],
    },
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    running = Cluster(tmp_path)
    running.start()
    yield running
    running.stop()


def scv(node: str, free_memory: int) -> dict[str, object]:
    """One healthy card, as Yoda's agent reports it."""
    sizes = {"bandwidth": 1000, "clock": 500, "core": 10, "power": 10, "totalMemory": 10_000}
    card = {"health": "Healthy", "freeMemory": free_memory, **sizes}
    return {
        "apiVersion": f"{GROUP}/v1",
        "kind": "Scv",
        "metadata": {"name": node},
        "status": {"cardNumber": 1, "cardList": [card]},
    }


def test_a_pod_goes_to_the_node_whose_custom_resource_has_room_for_it(cluster: Cluster) -> None:
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(DEFINITION))
    for node, free in (("node-1", 2000), ("node-2", 9000)):
        cluster.kubectl("apply", "-f", "-", stdin=json.dumps(scv(node, free)))
    cluster.put_policies(main=POLICY)
    settings = cluster.folder / "settings.yaml"
    settings.write_text(
        json.dumps({"node_objects": {"scv": {"group": GROUP, "version": "v1", "resource": "scvs"}}})
    )
    labels = {"scv/number": "1", "scv/memory": "8000"}

    with cluster.scheduler("--config", str(settings)):
        cluster.run_pod("first", scheduler="yoda-scv", labels=labels)
        assert cluster.bound("first") == "node-2"

        for node, free in (("node-1", 9000), ("node-2", 2000)):
            patch = json.dumps({"status": scv(node, free)["status"]})
            cluster.kubectl("patch", "scv", node, "--type=merge", "-p", patch)
        cluster.run_pod("second", scheduler="yoda-scv", labels=labels)
        assert cluster.bound("second") == "node-1"

        cluster.kubectl("delete", "crd", f"scvs.{GROUP}")
        cluster.run_pod("third", scheduler="yoda-scv", labels=labels)
        (message,) = wait_for(lambda: cluster.events("third", "FailedScheduling"), "the refusal")
        assert "the node has no Scv" in message
