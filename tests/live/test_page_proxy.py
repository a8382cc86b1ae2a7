"""`policysched page`: the scheduler's page on a loopback port, with the user's token and a key of its own."""

import asyncio
import http.client
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from policysched.live.connection import ForwardedAnswer, LiveChannel, LiveFailed
from policysched.live.page_proxy import PageProxy
from tests.live.test_connection import cluster

Ask = Callable[..., tuple[int, Mapping[str, str], bytes]]


def proxied(tmp_path: Path, scenario: Callable[[PageProxy, Ask], None]) -> list[str]:
    """The pods that were forwarded to."""

    def run(target: Any) -> None:
        channel = LiveChannel(target)
        with PageProxy(0, channel.ask, channel.ask) as proxy:
            threading.Thread(target=proxy.serve_forever, daemon=True).start()
            port = proxy.server_address[1]

            def ask(path: str, **headers: str) -> tuple[int, Mapping[str, str], bytes]:
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
                connection.request("GET", path, headers={"Host": f"127.0.0.1:{port}"} | headers)
                answer = connection.getresponse()
                response = answer.status, dict(answer.getheaders()), answer.read()
                connection.close()
                return response

            scenario(proxy, ask)
            proxy.shutdown()
        channel.close()

    async def main() -> list[str]:
        async with cluster(tmp_path) as (api, target):
            await asyncio.to_thread(run, target)
            return api.forwarded

    return asyncio.run(main())


def test_the_page_is_served_with_the_users_credentials_over_one_connection(tmp_path: Path) -> None:
    def scenario(proxy: PageProxy, ask: Ask) -> None:
        status, headers, _ = ask(f"/?key={proxy.key}")
        assert status == 303 and "HttpOnly; SameSite=Strict" in headers["Set-Cookie"]
        cookie = headers["Set-Cookie"].partition(";")[0]
        status, headers, body = ask("/", Cookie=cookie)
        assert status == 200 and b"<title>policysched</title>" in body
        assert headers["Content-Security-Policy"].startswith("default-src 'none'")
        status, headers, body = ask("/page/overview", Cookie=cookie)
        assert status == 200 and b'"note":null' in body
        etag = headers["ETag"]
        assert ask("/page/overview", Cookie=cookie, **{"If-None-Match": etag})[0] == 304
        assert ask("/page/files/page.js", Cookie=cookie)[0] == 200

    assert proxied(tmp_path, scenario) == ["leader"]


def test_others_get_nothing(tmp_path: Path) -> None:
    def scenario(proxy: PageProxy, ask: Ask) -> None:
        cookie = f"policysched-page={proxy.key}"
        assert ask("/")[0] == 403
        assert ask("/page/overview")[0] == 403
        assert ask("/page/overview", Cookie="policysched-page=guess")[0] == 403
        assert ask("/?key=guess")[0] == 403
        assert ask("/page/overview", Cookie=cookie, Host="evil.example:80")[0] == 403
        assert ask("/metrics", Cookie=cookie)[0] == 404
        assert ask("/decisions", Cookie=cookie)[0] == 404

    assert proxied(tmp_path, scenario) == []


def test_a_scheduler_that_is_gone_is_one_line() -> None:
    from policysched.live.connection import LiveTarget

    with pytest.raises(LiveFailed, match="refused"):
        LiveChannel(LiveTarget(url="http://127.0.0.1:1")).ask("/page/overview", {})


def test_the_page_is_served_while_a_change_is_simulated() -> None:
    asked, answered = threading.Event(), threading.Event()

    def try_(_path: str, _headers: Mapping[str, str], _body: bytes | None) -> ForwardedAnswer:
        asked.set()
        assert answered.wait(60)
        return ForwardedAnswer(200, {}, b"tried")

    with PageProxy(0, lambda *_: ForwardedAnswer(200, {}, b"page"), try_) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        host, cookie = f"127.0.0.1:{proxy.server_address[1]}", f"policysched-page={proxy.key}"
        connections = [http.client.HTTPConnection(host, timeout=60) for _ in range(2)]
        headers = {"Cookie": cookie, "Content-Type": "application/json"}
        connections[0].request("POST", "/page/try", b"{}", headers)
        assert asked.wait(60)

        connections[1].request("GET", "/page/overview", headers={"Cookie": cookie})
        assert connections[1].getresponse().read() == b"page"

        answered.set()
        assert connections[0].getresponse().read() == b"tried"
        for connection in connections:
            connection.close()
        proxy.shutdown()
