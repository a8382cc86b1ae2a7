"""Who may try a changed policy, and what is refused."""

import asyncio
import json
import threading
import urllib.error
import urllib.request
from dataclasses import replace
from typing import Any

import pytest

from policysched.serve.policy_try import TEXT_CHARS_MAX, TryFailed
from policysched.serve.server import HttpServerOptions
from tests.serve.served import PAGES, connected, served
from tests.serve.test_page_feed import SECURED

ROWS = [{"namespace": "shop", "pod": "shop/web"}]
JSON_TYPE = "application/json"


class FakeTries:
    """Answers with a row; `gate` holds a simulation until it is set."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.runs = 0

    def look(self, policy: str, *, simulates: bool) -> bool:
        if policy == "gone":
            raise LookupError("no policy gone runs")
        return simulates

    async def run(self, visible: bool, text: str, *, placed: bool) -> dict[str, Any]:
        if text == "slow":
            raise TryFailed("it takes more than 15 s of CPU")
        self.runs += 1
        self.entered.set()
        await asyncio.to_thread(self.gate.wait)
        return {"diagnostics": [], "comparison": {"pods": ROWS if visible else [], "placed": placed}}


def post(port: int, body: Any, *, content_type: str = JSON_TYPE, token: str | None = None) -> tuple[int, str]:
    headers = {"Content-Type": content_type} | ({} if token is None else {"Authorization": f"Bearer {token}"})
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/page/try", data, headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        assert error.headers["Content-Security-Policy"] or error.code in (401, 403)
        return error.code, error.read().decode()


def trying(scenario: Any, tries: FakeTries | None = None, options: HttpServerOptions | None = None) -> None:
    pages = replace(PAGES, policy_tries=tries or FakeTries())
    served(scenario, options or HttpServerOptions(), pages=pages)


ASKED = {"policy": "test", "text": "policy test version 1", "simulate": True}


@pytest.mark.parametrize(
    ("body", "status", "part"),
    [
        (b"{", 400, "not JSON"),
        (b"[]", 400, "must be strings"),
        ({"policy": "test"}, 400, "must be strings"),
        (ASKED | {"policy": "gone"}, 404, "no policy gone runs"),
        (ASKED | {"text": "slow"}, 503, "15 s of CPU"),
        (ASKED | {"text": "x" * (TEXT_CHARS_MAX + 1)}, 413, "too long"),
    ],
)
def test_what_cannot_be_tried_is_refused_with_one_line(body: Any, status: int, part: str) -> None:
    async def scenario(port: int) -> None:
        response_status, text = await asyncio.to_thread(post, port, body)
        assert (response_status, text.count("\n")) == (status, 1), text
        assert part in text

    trying(scenario)


def test_a_form_of_another_site_is_refused() -> None:
    """Browsers send `text/plain` to other origins unasked, and `application/json` never."""

    async def scenario(port: int) -> None:
        assert (await asyncio.to_thread(post, port, ASKED, content_type="text/plain"))[0] == 415

    trying(scenario)


def test_a_user_who_may_not_list_all_pods_checks_a_text_and_simulates_nothing() -> None:
    """A rule such as `reject count(pods on node where starts_with(other.annotations["k"], "4")) > 0` would tell him."""

    async def scenario(port: int) -> None:
        answers = {
            (token, simulates): await asyncio.to_thread(
                post, port, ASKED | {"simulate": simulates}, token=token
            )
            for token in ("ada", "tom")
            for simulates in (False, True)
        }
        refusal = "a simulation reads the pods of all namespaces, which you may not list\n"
        assert answers.pop(("tom", True)) == (403, refusal)
        assert {status for status, _ in answers.values()} == {200}
        assert tries.runs == 3

    tries = FakeTries()
    trying(scenario, tries, SECURED)


def test_a_user_without_the_permission_for_the_path_is_refused() -> None:
    async def scenario(port: int) -> None:
        status, text = await asyncio.to_thread(post, port, ASKED, token="eve")
        assert (status, 'cannot post path "/page/try"' in text) == (403, True)

    trying(scenario, options=SECURED)


def test_one_simulation_at_a_time() -> None:
    tries = FakeTries()
    tries.gate.clear()

    async def scenario(port: int) -> None:
        first = asyncio.create_task(asyncio.to_thread(post, port, ASKED))
        await asyncio.to_thread(tries.entered.wait, 60)
        second = await asyncio.to_thread(post, port, ASKED)
        tries.gate.set()
        assert second[0] == 429
        assert (await first)[0] == 200

    trying(scenario, tries)


def test_no_process_is_started_for_clients_that_have_left() -> None:
    tries = FakeTries()
    tries.gate.clear()
    body = json.dumps(ASKED | {"simulate": False}).encode()
    head = f"POST /page/try HTTP/1.1\r\nHost: localhost\r\nContent-Type: {JSON_TYPE}\r\nContent-Length: {len(body)}"

    async def scenario(port: int) -> None:
        first = asyncio.create_task(asyncio.to_thread(post, port, ASKED | {"simulate": False}))
        await asyncio.to_thread(tries.entered.wait, 60)
        for _ in range(20):
            with connected(port) as client:
                client.sendall(head.encode() + b"\r\n\r\n" + body)
                await asyncio.sleep(0.02)
        last = asyncio.create_task(asyncio.to_thread(post, port, ASKED | {"simulate": False}))
        await asyncio.sleep(0.2)
        tries.gate.set()
        assert ((await first)[0], (await last)[0]) == (200, 200)
        assert tries.runs == 2

    trying(scenario, tries)
