"""Asking a scheduler through the API server's port-forward, with TLS and the user's token inside the tunnel."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import WSMsgType, web

from policysched.live.connection import LiveChannel, LiveFailed, LiveTarget, _Credentials, _read, get_page
from policysched.serve.access import AccessDecision, User
from policysched.serve.main_loop_reader import NoSuchEndpoint
from policysched.serve.server import HttpServerOptions
from policysched.serve.status_routes import StatusEndpoints
from policysched.serve.tls import ServerTls, ServerTlsFiles
from tests.serve.served import PAGES, PATIENCE_S, serving

TOKEN = "token-of-ada"


class Reviewer:
    """Knows one token, whose user may get everything except /pending, and try policies."""

    async def review_token(self, token: str) -> User | None:
        return User("ada") if token == TOKEN else None

    async def review_access(self, user: User, verb: str, path: str) -> AccessDecision:
        may_get = verb == "get" and path != "/pending"
        return AccessDecision(user.name == "ada" and (may_get or (verb, path) == ("post", "/page/try")), "")

    async def review_list_pods(self, user: User, namespace: str | None) -> AccessDecision:
        return AccessDecision(user.name == "ada", "")

    async def client_ca(self) -> str | None:
        return ""


@asynccontextmanager
async def reviewer() -> AsyncIterator[Any]:
    yield Reviewer()


def page(query: Any) -> Any:
    yield None
    if query.get("pod") == "nobody":
        raise NoSuchEndpoint("no pod named nobody exists in any namespace")
    if query.get("pod") == "words":
        yield {"message": "web does not lead", "note": "a gang does not lead"}
    yield {"pod": query.get("pod"), "note": None}


def follows(_query: Any) -> Any:
    yield {"note": "another replica leads"}


class SlowTries:
    """A playground whose answer is the text, once somebody sets `may_answer`."""

    def __init__(self) -> None:
        self.asked, self.may_answer = threading.Event(), threading.Event()

    def look(self, policy: str, *, simulates: bool) -> Any:
        return policy, simulates

    async def run(self, seen: Any, text: str, *, placed: bool) -> dict[str, Any]:
        self.asked.set()
        await asyncio.to_thread(self.may_answer.wait, PATIENCE_S)
        return {"seen": list(seen), "text": text, "placed": placed}


class FakeApiServer:
    """Lists the scheduler's pods and forwards ports to real servers, as kubelets do behind an API server."""

    def __init__(self, ports: dict[str, int], holder: str | None) -> None:
        self.ports, self.holder = ports, holder
        self.forwarded: list[str] = []

    def application(self) -> web.Application:
        application = web.Application()
        base = "/api/v1/namespaces/policysched/pods"
        application.add_routes(
            [
                web.get(base, self.pods),
                web.get(base + "/{pod}/portforward", self.forward),
                web.get("/apis/coordination.k8s.io/v1/namespaces/policysched/leases/policysched", self.lease),
            ]
        )
        return application

    async def pods(self, request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return web.json_response({"message": 'pods is forbidden: User "eve" cannot list'}, status=403)
        items = [
            {
                "metadata": {"name": name, "namespace": "policysched"},
                "spec": {"containers": [{"name": "c", "ports": [{"name": "https", "containerPort": 10259}]}]},
                "status": {"phase": "Running"},
            }
            for name in self.ports
        ]
        return web.json_response({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items})

    async def lease(self, _request: web.Request) -> web.Response:
        if self.holder is None:
            return web.json_response({"message": "leases is forbidden"}, status=403)
        return web.json_response({"metadata": {}, "spec": {"holderIdentity": self.holder}})

    async def forward(self, request: web.Request) -> web.WebSocketResponse:
        """The protocol v4.channel.k8s.io: a byte for the channel before the data, first the port on each channel."""
        name = request.match_info["pod"]
        self.forwarded.append(name)
        socket = web.WebSocketResponse(protocols=("v4.channel.k8s.io",))
        await socket.prepare(request)
        port = int(request.query["ports"])
        for channel in (0, 1):
            await socket.send_bytes(bytes([channel]) + port.to_bytes(2, "little"))
        reader, writer = await asyncio.open_connection("127.0.0.1", self.ports[name])

        async def answers() -> None:
            while data := await reader.read(65536):
                await socket.send_bytes(b"\0" + data)
            await socket.close()

        task = asyncio.create_task(answers())
        async for message in socket:
            if message.type is WSMsgType.BINARY:
                writer.write(message.data[1:])
        task.cancel()
        writer.close()
        return socket


@asynccontextmanager
async def cluster(
    tmp_path: Path,
    *,
    holder: str | None = "leader_1",
    token: str = TOKEN,
    policy_tries: SlowTries | None = None,
) -> AsyncIterator[tuple[FakeApiServer, LiveTarget]]:
    """Two replicas, of which `leader` leads."""
    options = HttpServerOptions(tls=ServerTls(ServerTlsFiles(), host="127.0.0.1"), open_reviewer=reviewer)

    def endpoints(look: Any, *, is_standby: bool) -> StatusEndpoints:
        live = {"/explain": look, "/pending": look}
        return StatusEndpoints(
            PAGES.metrics,
            PAGES.policy,
            PAGES.decisions,
            PAGES.configz,
            live_endpoints=live,
            page_feeds={"/page/overview": (look, 0.5)},
            policy_tries=policy_tries,
            is_standby=lambda: is_standby,
        )

    async with (
        serving(options, pages=endpoints(follows, is_standby=True)) as follower,
        serving(options, pages=endpoints(page, is_standby=False)) as leader,
    ):
        api = FakeApiServer({"follower": follower, "leader": leader}, holder)
        runner = web.AppRunner(api.application())
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        }
        (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
        try:
            yield api, LiveTarget(kubeconfig=tmp_path / "kubeconfig")
        finally:
            await runner.cleanup()


def ask(tmp_path: Path, path: str, query: dict[str, str], **options: Any) -> tuple[Any, list[str]]:
    """The page, or the error, and the pods that were forwarded to."""

    async def main() -> tuple[Any, list[str]]:
        async with cluster(tmp_path, **options) as (api, target):
            try:
                return await asyncio.to_thread(get_page, target, path, query), api.forwarded
            except LiveFailed as error:
                return error, api.forwarded

    return asyncio.run(main())


def test_the_leader_is_queried_through_the_tunnel_with_the_users_token(tmp_path: Path) -> None:
    response, forwarded = ask(tmp_path, "/explain", {"pod": "shop/web"})

    assert response == {"pod": "shop/web", "note": None}
    assert forwarded == ["leader"]


def test_without_the_permission_to_read_the_lease_the_replicas_are_queried_in_turn(tmp_path: Path) -> None:
    response, forwarded = ask(tmp_path, "/explain", {"pod": "shop/web"}, holder=None)

    assert response == {"pod": "shop/web", "note": None}
    assert forwarded == ["follower", "leader"]


def test_words_of_an_answer_do_not_say_who_leads(tmp_path: Path) -> None:
    response, forwarded = ask(tmp_path, "/explain", {"pod": "words"})

    assert response["note"] == "a gang does not lead"
    assert forwarded == ["leader"]


def test_if_no_replica_leads_the_last_one_says_so(tmp_path: Path) -> None:
    async def main() -> LiveFailed:
        async with cluster(tmp_path) as (api, target):
            del api.ports["leader"]
            with pytest.raises(LiveFailed) as failed:
                await asyncio.to_thread(get_page, target, "/explain", {})
            return failed.value

    assert str(asyncio.run(main())) == "another replica leads"


@pytest.mark.parametrize("holder", ["leader_1", "follower_1"])
def test_a_channel_looks_for_the_leader_again_if_another_replica_answers(tmp_path: Path, holder: str) -> None:
    def run(target: LiveTarget) -> None:
        channel = LiveChannel(target)
        for _ in range(3):
            assert channel.ask("/explain?pod=words", {}).status == 200
        channel.close()

    async def main() -> list[str]:
        async with cluster(tmp_path, holder=holder) as (api, target):
            await asyncio.to_thread(run, target)
            return api.forwarded

    assert asyncio.run(main()) == (["leader"] if holder == "leader_1" else ["follower"] * 3)


@pytest.mark.parametrize(
    ("path", "query", "words"),
    [
        ("/pending", {}, "you may not get /pending of the scheduler"),
        ("/explain", {"pod": "nobody"}, "no pod named nobody exists in any namespace"),
        ("/nodes", {}, "the scheduler does not serve /nodes"),
    ],
)
def test_what_the_scheduler_refuses_is_one_line(
    tmp_path: Path, path: str, query: dict[str, str], words: str
) -> None:
    error, _ = ask(tmp_path, path, query)

    assert isinstance(error, LiveFailed) and words in str(error)
    assert len(str(error).splitlines()) == 1


def test_what_the_api_server_refuses_names_the_missing_permission(tmp_path: Path) -> None:
    error, forwarded = ask(tmp_path, "/explain", {"pod": "web"}, token="token-of-eve")

    assert str(error) == 'the API server answered 403: pods is forbidden: User "eve" cannot list'
    assert forwarded == []


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://192.0.2.1:80", "plain HTTP is for loopback addresses"),
        ("127.0.0.1", "not a URL"),
        ("http://127.0.0.1:1", "refused"),
    ],
)
def test_an_unusable_url_is_one_line(url: str, words: str) -> None:
    with pytest.raises(LiveFailed, match=words):
        get_page(LiveTarget(url=url), "/pending", {})


def test_a_missing_kubeconfig_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(LiveFailed, match="kubeconfig"):
        get_page(LiveTarget(kubeconfig=tmp_path / "none"), "/pending", {})


@pytest.mark.parametrize("body", [b"<html>log in\x1b[2J", b"[]", b""])
def test_an_answer_of_another_program_is_one_line(body: bytes) -> None:
    class Answer:
        status, headers = 200, dict[str, str]()

        def read(self) -> bytes:
            return body

    class Connection:
        def request(self, *_: Any, **__: Any) -> None: ...

        def getresponse(self) -> Answer:
            return Answer()

    connection: Any = Connection()
    with pytest.raises(LiveFailed, match="another program answers"):
        _read(connection, "/queue", _Credentials())
