"""Kubernetes' Python client, which validates what it reads, against the sandbox."""

import asyncio
from pathlib import Path

import pytest
from kubernetes import client, config

from policysched.sandbox import nodes as sandbox_nodes
from policysched.sandbox.sandbox import Sandbox

MANIFESTS = [{"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}} for name in ("a", "b", "c")]


def listed_nodes(folder: Path) -> list[client.V1Node]:
    path = folder / "kubeconfig"

    def read() -> list[client.V1Node]:
        config.load_kube_config(str(path))
        api = client.CoreV1Api()
        api.list_pod_for_all_namespaces()
        return list(api.list_node().items)

    async def scenario() -> list[client.V1Node]:
        async with Sandbox(nodes=MANIFESTS, kubeconfig_path=path):
            return await asyncio.to_thread(read)

    return asyncio.run(scenario())


def test_nodes_of_manifests_are_listed_with_addresses_of_their_own(tmp_path: Path) -> None:
    nodes = listed_nodes(tmp_path)

    assert [node.metadata.name for node in nodes] == ["a", "b", "c"]
    assert len({node.status.addresses[0].address for node in nodes}) == 3
    assert len({node.status.node_info.system_uuid for node in nodes}) == 3


def test_a_node_without_a_required_field_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = sandbox_nodes.node_status

    def without_boot_id(name: str, now: str, *, at: int = 0) -> sandbox_nodes.Json:
        status = usual(name, now, at=at)
        del status["nodeInfo"]["bootID"]
        return status

    monkeypatch.setattr(sandbox_nodes, "node_status", without_boot_id)

    with pytest.raises(ValueError, match="bootID"):
        listed_nodes(tmp_path)


def test_a_custom_resource_is_defined_created_and_listed_by_the_client(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    resource = ("rail.example.com", "v1", "default", "trains")
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "trains.rail.example.com"},
        "spec": {
            "group": "rail.example.com",
            "scope": "Namespaced",
            "names": {"plural": "trains", "kind": "Train"},
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

    def use() -> tuple[str, list[int]]:
        config.load_kube_config(str(path))
        definitions = client.ApiextensionsV1Api()
        definitions.create_custom_resource_definition(definition)
        (read,) = definitions.list_custom_resource_definition().items
        trains = client.CustomObjectsApi()
        body = {"apiVersion": "rail.example.com/v1", "kind": "Train", "metadata": {"name": "n"}, "cars": 3}
        trains.create_namespaced_custom_object(*resource, body)
        trains.patch_namespaced_custom_object(*resource, "n", {"cars": 4})
        listed = trains.list_namespaced_custom_object(*resource)
        return read.status.conditions[-1].type, [train["cars"] for train in listed["items"]]

    async def scenario() -> tuple[str, list[int]]:
        async with Sandbox(nodes=1, kubeconfig_path=path):
            return await asyncio.to_thread(use)

    assert asyncio.run(scenario()) == ("Established", [4])
