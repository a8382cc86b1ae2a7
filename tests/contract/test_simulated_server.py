"""Properties of the simulated API server alone: compaction, determinism, shared encodings, and loss
of state.
"""

import orjson

from policysched.kube.client.transport import ApiResponse
from policysched.sandbox.apiserver import ApiServer, ServerRequest
from policysched.sandbox.apiserver.kinds import ResourceKind
from tests.contract.manifests import config_map, event, pod
from tests.contract.transports import Api


def test_a_page_of_a_compacted_version_answers_410_with_a_token_to_continue(
    memory_api: Api,
) -> None:
    maps = f"/api/v1/namespaces/{memory_api.namespace()}/configmaps"
    for name in "abc":
        memory_api.post(maps, config_map(name)).ok()
    token = memory_api.get(maps, limit="1").json["metadata"]["continue"]
    memory_api.post(maps, config_map("d")).ok()
    memory_api.make_history_old()

    refused = memory_api.get(maps, limit="1", **{"continue": token})
    rest = memory_api.get(maps, **{"continue": refused.json["metadata"]["continue"]})

    assert (refused.status, refused.json["reason"]) == (410, "Expired")
    assert rest.names == ["b", "c", "d"]


def test_history_is_bounded_and_its_end_is_410() -> None:
    server = ApiServer(now=lambda: 0.0, history_changes_max=10)
    for at in range(25):
        body = orjson.dumps(config_map(f"map-{at}"))
        server.handle(ServerRequest("POST", "/api/v1/namespaces/default/configmaps", body=body))
    collection = server.store.collection("configmaps")

    first_line = server.handle(watch_from(collection.compacted - 1)).drain(0.0)
    lines = server.handle(watch_from(collection.compacted)).drain(0.0).splitlines()

    assert orjson.loads(first_line)["object"]["code"] == 410
    assert 10 <= len(lines) <= 20
    assert all(orjson.loads(line)["type"] == "ADDED" for line in lines)


def watch_from(version: int) -> ServerRequest:
    return ServerRequest("GET", "/api/v1/configmaps", {"watch": "true", "resourceVersion": str(version)})


def test_the_same_requests_give_the_same_bytes() -> None:
    def run(seed: int) -> list[bytes]:
        server = ApiServer(now=lambda: 5.0, seed=seed)
        body = orjson.dumps(pod(generate_name="web-"))
        answers = [
            server.handle(ServerRequest("POST", "/api/v1/namespaces/default/pods", body=body))
            for _ in range(3)
        ]
        return [answer.body for answer in answers if isinstance(answer, ApiResponse)]

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_a_kind_is_served_once_it_is_registered() -> None:
    rows = (ResourceKind("gadgets", "Gadget", "example.com"),)
    server = ApiServer(now=lambda: 0.0, extra_kinds=rows)
    path = "/apis/example.com/v1/namespaces/default/gadgets"

    made = server.handle(
        ServerRequest("POST", path, body=b'{"metadata": {"name": "a"}, "anything": {"goes": 1}}')
    )
    response = server.handle(ServerRequest("GET", f"{path}/a"))

    assert isinstance(made, ApiResponse)
    assert isinstance(response, ApiResponse)
    assert (made.status, orjson.loads(response.body)["anything"]) == (201, {"goes": 1})


def test_an_event_is_encoded_once_for_all_watchers() -> None:
    server = ApiServer(now=lambda: 0.0)
    watches = [server.handle(ServerRequest("GET", "/api/v1/events", {"watch": "true"})) for _ in range(3)]
    body = orjson.dumps(event("e1", "default", "web"))

    server.handle(ServerRequest("POST", "/api/v1/namespaces/default/events", body=body))

    lines = [watch._lines[0] for watch in watches]
    assert lines[0] is lines[1] is lines[2]


def test_a_closed_watch_is_removed() -> None:
    server = ApiServer(now=lambda: 0.0)
    watches = [server.handle(ServerRequest("GET", "/api/v1/pods", {"watch": "true"})) for _ in range(2)]

    watches[0].close()
    one_left = server.open_watches
    server.cut_watches()

    assert (one_left, server.open_watches) == (1, 0)
    assert watches[1].ended


def test_a_server_that_lost_its_state_makes_watchers_list_again() -> None:
    before = ApiServer(now=lambda: 0.0, first_version=1_000)
    after = ApiServer(now=lambda: 0.0, first_version=2_000)

    line = after.handle(watch_from(before.store.version)).drain(0.0)

    assert before.store.version >= 1_000
    assert orjson.loads(line)["object"]["code"] == 410
