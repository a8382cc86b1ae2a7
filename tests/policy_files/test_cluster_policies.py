"""The key that removes a policy, written to a cluster: what is checked first, and what a request changes."""

import asyncio
import base64
import lzma
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import pytest

from policysched.kube.client.api import ApiClient, Forbidden, NotFound
from policysched.kube.client.transport import ApiRequest, ApiResponse
from policysched.policy_files.last_good_format import ARCHIVE_KEY
from policysched.policy_files.policies_config_map import ListedPolicy, PoliciesConfigMap, RemovalRefused
from policysched.sandbox.apiserver.server import ApiServer
from policysched.sandbox.local_client import LocalClient
from policysched.sandbox.transport import MemoryTransport
from policysched.scheduler.canaries import Canaries, CanaryRecord

BATCH = "# for jobs\npolicy batch version 1\n"
KEPT = {"batch.policy": BATCH, "old.policy": "policy old version 1", "old.state.json": "{}"}


class _Cluster:
    """A ConfigMap with `data` and one with `kept`. `requests` has those that change something."""

    def __init__(self, data: dict[str, str] | None, kept: dict[str, str] | None = None) -> None:
        self.server = ApiServer(now=lambda: 0.0, seed=1)
        self.local = LocalClient(self.server)
        self._transport = MemoryTransport(self.server)
        self.requests: list[ApiRequest] = []
        self.forbidden = ""
        if data is not None:
            self.local.create("configmaps", "default", {"metadata": {"name": "policies"}, "data": data})
        packed = base64.b64encode(lzma.compress(orjson.dumps(KEPT if kept is None else kept))).decode()
        self.local.create(
            "configmaps", "default", {"metadata": {"name": "kept"}, "binaryData": {ARCHIVE_KEY: packed}}
        )

    async def request(self, request: ApiRequest) -> ApiResponse:
        if self.forbidden and request.path.endswith(self.forbidden):
            return ApiResponse(403, b'{"kind": "Status", "code": 403, "message": "not you"}', {})
        if request.method != "GET":
            self.requests.append(request)
        return await self._transport.request(request)

    def data(self) -> dict[str, str] | None:
        config_map = self.local.get("configmaps", "default", "policies")
        assert config_map is not None
        data: dict[str, str] | None = config_map.get("data")
        return data

    def call(self, method: Callable[..., Awaitable[Any]], *arguments: object, **more: object) -> Any:
        policies = PoliciesConfigMap(
            ApiClient(self),  # type: ignore[arg-type]
            ("default", "policies"),
            ("default", "kept"),
        )
        return asyncio.run(method(policies, *arguments, **more))  # type: ignore[arg-type]

    def remove(self, name: str, reason: str = "", *, dry_run: bool = False) -> Any:
        return self.call(PoliciesConfigMap.remove, name, reason, dry_run=dry_run)


def test_a_removal_adds_one_key_by_one_patch() -> None:
    cluster = _Cluster({"main.policy": BATCH})

    assert cluster.remove("batch", "use batch-v2")

    assert cluster.data() == {"main.policy": BATCH, "batch.removed": "use batch-v2"}
    (request,) = cluster.requests
    assert (request.method, orjson.loads(request.body)) == (
        "PATCH",
        [{"op": "add", "path": "/data/batch.removed", "value": "use batch-v2"}],
    )


def test_a_policy_that_is_only_kept_can_be_removed_also_without_data() -> None:
    cluster = _Cluster({})

    assert cluster.remove("old")

    assert cluster.data() == {"old.removed": ""}


def test_a_second_removal_writes_nothing_unless_the_reason_is_another() -> None:
    cluster = _Cluster({"batch.removed": "a"})

    assert not cluster.remove("batch", "a")
    assert cluster.requests == []
    assert cluster.remove("batch", "b")
    assert cluster.data() == {"batch.removed": "b"}


def test_a_misspelt_name_is_refused_with_the_right_one() -> None:
    cluster = _Cluster({"main.policy": BATCH})

    with pytest.raises(RemovalRefused, match=r"has a policy `batsh` \(did you mean `batch`\?\)"):
        cluster.remove("batsh")

    assert cluster.requests == []


def test_a_dry_run_changes_nothing_and_is_checked_by_the_server() -> None:
    cluster = _Cluster({"main.policy": BATCH})

    assert cluster.remove("batch", dry_run=True)

    assert cluster.data() == {"main.policy": BATCH}
    assert cluster.requests[0].params == {"fieldManager": "policysched", "dryRun": "All"}


def test_a_user_who_may_not_read_the_kept_texts_can_remove_a_policy_with_a_text() -> None:
    cluster = _Cluster({"main.policy": BATCH})
    cluster.forbidden = "/kept"

    assert cluster.remove("batch")
    with pytest.raises(RemovalRefused, match=r"default/kept \(ConfigMap default/kept cannot be read\)"):
        cluster.remove("old")


def test_errors_of_the_server_reach_the_caller() -> None:
    cluster = _Cluster({"main.policy": BATCH})
    cluster.forbidden = "/policies"

    with pytest.raises(Forbidden, match="not you"):
        cluster.remove("batch")
    with pytest.raises(NotFound):
        _Cluster(None).remove("batch")


def test_restoring_deletes_the_key_and_says_where_the_text_is() -> None:
    cluster = _Cluster({"main.policy": BATCH, "batch.removed": "", "old.removed": ""})

    assert cluster.call(PoliciesConfigMap.restore, "batch", dry_run=False) == "main.policy"
    assert cluster.call(PoliciesConfigMap.restore, "old", dry_run=False) is None

    assert cluster.data() == {"main.policy": BATCH}
    with pytest.raises(RemovalRefused, match="policy `batch` is not removed"):
        cluster.call(PoliciesConfigMap.restore, "batch", dry_run=False)


def test_the_list_says_what_is_kept_about_a_canary() -> None:
    saved = Canaries(lambda _: None)
    saved.records["batch"] = CanaryRecord("packed", "0a", 1, 2 * 10**9, 3, 40)
    kept = {**KEPT, "batch.state.json": saved.saved_with({})["batch"], "odd.state.json": "no JSON"}
    cluster = _Cluster({"main.policy": BATCH}, kept)

    listed = {policy.name: policy.canary for policy in cluster.call(PoliciesConfigMap.read)}

    assert listed == {"batch": saved.records["batch"], "old": None}


def test_the_list_has_texts_kept_texts_and_removals() -> None:
    data = {
        "main.policy": BATCH,
        "base.policy": "library base version 1",
        "web.policy": "policy web version 1",
        "gone.removed": "last year",
        "web.removed": "",
    }

    assert _Cluster(data).call(PoliciesConfigMap.read) == [
        ListedPolicy("batch", "main.policy", True, None),
        ListedPolicy("gone", None, False, "last year"),
        ListedPolicy("old", None, True, None),
        ListedPolicy("web", "web.policy", False, ""),
    ]
