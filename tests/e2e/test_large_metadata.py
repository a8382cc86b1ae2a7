"""Objects with a megabyte of metadata on a real API server, which knows best in which order it writes the fields."""

import asyncio

from policysched.kube.client.large_metadata import large_metadata
from policysched.kube.client.session import ConnectionSettings, connect
from policysched.kube.client.transport import METADATA_LIST_ONLY, METADATA_ONLY, ApiRequest
from tests.controlplane.api import Json
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.objects import pod

PODS = "/api/v1/namespaces/default/pods"


def test_the_identity_is_found_where_the_api_server_writes_it(control_plane: ControlPlane) -> None:
    manifest = pod("large")
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "none"}
    manifest["metadata"]["ownerReferences"] = [{**owner, "uid": str(number)} for number in range(12_000)]
    created = control_plane.api.post(PODS, manifest)["metadata"]
    selected = {"fieldSelector": "metadata.name=large,spec.nodeName="}

    async def read() -> tuple[Json | None, Json | None]:
        async with await connect(ConnectionSettings(control_plane.kubeconfig_path)) as session:
            one = await session.request(ApiRequest("GET", f"{PODS}/large", accept=METADATA_ONLY))
            listed = await session.request(ApiRequest("GET", PODS, selected, accept=METADATA_LIST_ONLY))
        return large_metadata(one.body), large_metadata(listed.body)

    identity = {
        "uid": created["uid"],
        "resourceVersion": created["resourceVersion"],
        "generation": created["generation"],
    }
    assert asyncio.run(read()) == ({"metadata": identity}, {"items": [{"metadata": identity}]})
