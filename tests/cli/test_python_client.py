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
