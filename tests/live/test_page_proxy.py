"""`policysched page`: the scheduler's page on a loopback port, with the user's token and a key of its own."""

import asyncio
import http.client
import json
import re
import socket
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import pytest

from policysched.live.connection import LiveChannel, LiveFailed
from policysched.live.page_proxy import CONNECTIONS_MAX, PageProxy
from tests.live.test_connection import SlowTries, cluster
from tests.serve.served import PATIENCE_S

Ask = Callable[..., tuple[int, Mapping[str, str], bytes]]


def proxied(
    tmp_path: Path, scenario: Callable[[PageProxy, Ask], None], policy_tries: SlowTries | None = None
) -> list[str]:
    """The pods that were forwarded to."""

    def run(target: Any) -> None:
        channel, long_channel = LiveChannel(target), LiveChannel(target)
        with PageProxy(0, channel.ask, long_channel.ask) as proxy:
            threading.Thread(target=proxy.serve_forever, daemon=True).start()
            port = proxy.server_address[1]

            def ask(
                path: str, body: bytes | None = None, **headers: str
            ) -> tuple[int, Mapping[str, str], bytes]:
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
                method = "GET" if body is None else "POST"
                connection.request(method, path, body, {"Host": f"127.0.0.1:{port}"} | headers)
                answer = connection.getresponse()
                response = answer.status, dict(answer.getheaders()), answer.read()
                connection.close()
                return response

            scenario(proxy, ask)
            proxy.shutdown()
        channel.close()
        long_channel.close()

    async def main() -> list[str]:
        async with cluster(tmp_path, policy_tries=policy_tries) as (api, target):
            await asyncio.to_thread(run, target)
            return api.forwarded

    return asyncio.run(main())


def test_the_page_is_served_with_the_users_credentials_over_one_connection(tmp_path: Path) -> None:
    def scenario(proxy: PageProxy, ask: Ask) -> None:
        below = urlsplit(proxy.url).path
        status, headers, body = ask(below)
        assert status == 200 and b"<title>policysched</title>" in body
        assert headers["Content-Security-Policy"].startswith("default-src 'none'")
        links = re.findall(r'(?:href|src)="([^"#]+)"', body.decode())
        assert len(links) == 4 and {ask(urljoin(below, link))[0] for link in links} == {200}
        status, headers, body = ask(f"{below}page/overview")
        assert status == 200 and b'"note":null' in body
        etag = headers["ETag"]
        assert ask(f"{below}page/overview", **{"If-None-Match": etag})[0] == 304

    assert proxied(tmp_path, scenario) == ["leader"]


def test_others_get_nothing(tmp_path: Path) -> None:
    def scenario(proxy: PageProxy, ask: Ask) -> None:
        below = urlsplit(proxy.url).path
        for path in ("/", "/page/overview", "/guess/page/overview", below.rstrip("/")):
            assert ask(path)[0] == 403
        assert ask(f"{below}page/overview", Host="evil.example:80")[0] == 403
        for path in ("metrics", "decisions", "page", "/page/overview", "../metrics"):
            assert ask(f"{below}{path}")[0] == 404

    assert proxied(tmp_path, scenario) == []


def test_the_browser_keeps_nothing_that_it_sends_to_other_ports(tmp_path: Path) -> None:
    """Another user of the machine can listen on any of them, and would get the cookies of the host."""

    def scenario(proxy: PageProxy, ask: Ask) -> None:
        for path in (urlsplit(proxy.url).path, f"/?key={proxy.key}", "/"):
            assert "Set-Cookie" not in ask(path)[1]
            assert ask("/page/overview", Cookie=f"policysched-page={proxy.key}")[0] == 403

    proxied(tmp_path, scenario)


JSON = {"Content-Type": "application/json"}
TRY = b'{"policy": "main", "text": "policy main version 1", "simulate": true}'


def test_the_page_is_updated_while_a_changed_policy_is_simulated(tmp_path: Path) -> None:
    tries = SlowTries()

    def scenario(proxy: PageProxy, ask: Ask) -> None:
        below = urlsplit(proxy.url).path
        with ThreadPoolExecutor(1) as pool:
            tried = pool.submit(ask, f"{below}page/try", TRY, **JSON)
            assert tries.asked.wait(PATIENCE_S)
            status, _, _ = ask(f"{below}page/overview")
            assert status == 200 and not tried.done()
            tries.may_answer.set()
            status, headers, body = tried.result()
        assert status == 200 and headers["Content-Type"].startswith("application/json")
        assert json.loads(body) == {"seen": ["main", True], "text": "policy main version 1", "placed": False}

    assert set(proxied(tmp_path, scenario, tries)) == {"leader"}


def test_only_authorized_users_may_try_a_policy(tmp_path: Path) -> None:
    tries = SlowTries()

    def scenario(proxy: PageProxy, ask: Ask) -> None:
        below = urlsplit(proxy.url).path
        assert ask("/page/try", TRY, **JSON)[0] == 403
        assert ask("/guess/page/try", TRY, **JSON)[0] == 403
        assert ask(f"{below}page/try", TRY, Host="evil.example:80", **JSON)[0] == 403
        assert ask(f"{below}page/try", TRY, **{"Content-Type": "text/plain"})[0] == 415
        assert ask(f"{below}page/overview", TRY, **JSON)[0] == 404
        too_long = {**JSON, "Content-Length": str(2**20 + 1)}
        assert ask(f"{below}page/try", b"x", **too_long)[0] == 413

    assert proxied(tmp_path, scenario, tries) == []
    assert not tries.asked.is_set()


@pytest.mark.parametrize(
    "half",
    [b"", b"GET /page/over", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n", b"POST %s HTTP/1.1\r\n%s\r\n\r\n{"],
)
def test_a_request_that_does_not_end_is_closed(half: bytes) -> None:
    def never(*_: Any) -> Any:
        raise AssertionError("nothing was asked")

    with PageProxy(0, never, never, request_timeout_s=0.2) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        port = proxy.server_address[1]
        if b"%s" in half:
            headers = f"Host: 127.0.0.1:{port}\r\nContent-Type: application/json\r\nContent-Length: 9"
            half %= urlsplit(f"{proxy.url}page/try").path.encode(), headers.encode()
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as connection:
            connection.sendall(half)
            assert connection.recv(1) == b""
        proxy.shutdown()


def test_at_the_limit_the_oldest_connection_makes_room() -> None:
    def never(*_: Any) -> Any:
        raise AssertionError("nothing was asked")

    with PageProxy(0, never, never, request_timeout_s=2 * PATIENCE_S) as proxy, ExitStack() as connections:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()

        def connect() -> socket.socket:
            address = "127.0.0.1", proxy.server_address[1]
            connection = connections.enter_context(socket.create_connection(address, timeout=PATIENCE_S))
            connection.sendall(b"GET /page/over")
            return connection

        oldest, *_ = [connect() for _ in range(CONNECTIONS_MAX + 1)]
        assert oldest.recv(1) == b""
        newest = connect()
        newest.sendall(b"view HTTP/1.1\r\nHost: 127.0.0.1:1\r\nConnection: close\r\n\r\n")
        assert b"".join(iter(lambda: newest.recv(4096), b"")).startswith(b"HTTP/1.1 403")
        proxy.shutdown()


def test_a_scheduler_that_is_gone_is_one_line() -> None:
    from policysched.live.connection import LiveTarget

    with pytest.raises(LiveFailed, match="refused"):
        LiveChannel(LiveTarget(url="http://127.0.0.1:1")).ask("/page/overview", {})
