"""`policysched page`: the scheduler's page on a loopback port, with the user's token and a key of its own."""

import asyncio
import http.client
import json
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from policysched.live.connection import LiveChannel, LiveFailed
from policysched.live.page_proxy import PageProxy
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


JSON = {"Content-Type": "application/json"}
TRY = b'{"policy": "main", "text": "policy main version 1", "simulate": true}'


def test_the_page_is_updated_while_a_changed_policy_is_simulated(tmp_path: Path) -> None:
    tries = SlowTries()

    def scenario(proxy: PageProxy, ask: Ask) -> None:
        cookie = f"policysched-page={proxy.key}"
        with ThreadPoolExecutor(1) as pool:
            tried = pool.submit(ask, "/page/try", TRY, Cookie=cookie, **JSON)
            assert tries.asked.wait(PATIENCE_S)
            status, _, _ = ask("/page/overview", Cookie=cookie)
            assert status == 200 and not tried.done()
            tries.may_answer.set()
            status, headers, body = tried.result()
        assert status == 200 and headers["Content-Type"].startswith("application/json")
        assert json.loads(body) == {"seen": ["main", True], "text": "policy main version 1", "placed": False}

    assert set(proxied(tmp_path, scenario, tries)) == {"leader"}


def test_only_authorized_users_may_try_a_policy(tmp_path: Path) -> None:
    tries = SlowTries()

    def scenario(proxy: PageProxy, ask: Ask) -> None:
        cookie = f"policysched-page={proxy.key}"
        assert ask("/page/try", TRY, **JSON)[0] == 403
        assert ask("/page/try", TRY, Cookie="policysched-page=guess", **JSON)[0] == 403
        assert ask("/page/try", TRY, Cookie=cookie, Host="evil.example:80", **JSON)[0] == 403
        assert ask("/page/try", TRY, Cookie=cookie, **{"Content-Type": "text/plain"})[0] == 415
        assert ask("/page/overview", TRY, Cookie=cookie, **JSON)[0] == 404
        too_long = {**JSON, "Content-Length": str(2**20 + 1)}
        assert ask("/page/try", b"x", Cookie=cookie, **too_long)[0] == 413

    assert proxied(tmp_path, scenario, tries) == []
    assert not tries.asked.is_set()


def test_a_scheduler_that_is_gone_is_one_line() -> None:
    from policysched.live.connection import LiveTarget

    with pytest.raises(LiveFailed, match="refused"):
        LiveChannel(LiveTarget(url="http://127.0.0.1:1")).ask("/page/overview", {})
