"""Health, metrics and pages over HTTP, from a thread that does not wait for the main loop."""

import asyncio
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from unittest.mock import patch

import pytest

from policysched.serve import main_loop_reader
from policysched.serve.health import Health, Heartbeat
from policysched.serve.server import HttpThread, ListenAddress, ListenFailed
from tests.serve.served import PAGES, PATIENCE_S, WELL, burn, get, served


def test_a_long_decision_does_not_delay_probes() -> None:
    async def scenario(port: int) -> None:
        with ThreadPoolExecutor() as threads:
            probe = threads.submit(get, port, "/livez")
            gives_up_s = time.monotonic() + PATIENCE_S / 4
            while not probe.done() and time.monotonic() < gives_up_s:
                sum(range(1000))  # and nothing else runs on this loop

            assert probe.done(), "it waits for the main loop"
            assert probe.result() == (200, "ok")

    served(scenario)


def test_pages_are_rendered_on_the_main_loop() -> None:
    async def scenario(port: int) -> None:
        assert await asyncio.to_thread(get, port, "/metrics") == (200, "m 1\n")
        status, text = await asyncio.to_thread(get, port, "/decisions?limit=7&pod=a/b")
        assert (status, json.loads(text)) == (200, {"decisions": [7, "a/b"]})
        for no_limit in ("x", "-1", "%C2%B2", "9" * 30, "9" * 5000):
            assert (await asyncio.to_thread(get, port, f"/decisions?limit={no_limit}"))[0] == 400
        assert (await asyncio.to_thread(get, port, "/nothing"))[0] == 404

    served(scenario)


READERS = 50
TOOK_S = 0.01


def test_fifty_readers_get_no_more_than_their_share_of_the_main_loop() -> None:
    assert mean_interval() >= 0.9 / main_loop_reader.MAIN_LOOP_SHARE


def test_planted_reader_that_is_answered_at_once_is_detected() -> None:
    needed = 0.9 / main_loop_reader.MAIN_LOOP_SHARE
    with patch.object(main_loop_reader, "MAIN_LOOP_SHARE", 1000):
        assert mean_interval() < needed


def mean_interval() -> float:
    """Of the answers to readers of /decisions, no two equal: how often as long as an answer took passes from one to the next on
    average, once the burst is over."""
    begins_s: list[float] = []

    def look(_limit: int, _pod: str) -> Callable[[], bytes]:
        begins_s.append(time.monotonic())
        burn(TOOK_S)  # on the main loop
        return lambda: b"{}"

    async def scenario(port: int) -> None:
        with ThreadPoolExecutor(READERS) as threads:
            loop = asyncio.get_running_loop()
            asked = [
                loop.run_in_executor(threads, get, port, f"/decisions?limit={n}") for n in range(READERS)
            ]
            statuses = {status for status, _ in await asyncio.gather(*asked)}
        assert statuses <= {200, 429, 503}

    served(scenario, pages=replace(PAGES, decisions=look))
    after_burst_s = begins_s[round(main_loop_reader.BURST_S / TOOK_S) :]
    assert len(after_burst_s) > 3
    return (after_burst_s[-1] - after_burst_s[0]) / (len(after_burst_s) - 1) / TOOK_S


def test_a_failed_check_is_named() -> None:
    async def scenario(port: int) -> None:
        assert await asyncio.to_thread(get, port, "/livez?verbose") == (
            200,
            "[+]loop ok\nlivez check passed\n",
        )
        assert await asyncio.to_thread(get, port, "/readyz") == (
            500,
            "[+]sync ok\n[-]policies failed: none is active\nreadyz check failed\n",
        )

    failing = Health(
        live={"loop": lambda: ""}, ready={"sync": lambda: "", "policies": lambda: "none is active"}
    )
    served(scenario, health=failing)


def test_a_stalled_main_loop_fails_livez() -> None:
    now_s = 100.0
    pulse = Heartbeat(stuck_after_s=60, monotonic_s=lambda: now_s)

    now_s = 159.0
    assert pulse.check() == ""
    now_s = 161.0
    assert pulse.check() == "the main loop has not run for 61 s"
    pulse.beat()
    assert pulse.check() == ""


def test_an_address_in_use_is_reported_at_startup() -> None:
    async def scenario(port: int) -> None:
        second = HttpThread(ListenAddress("127.0.0.1", port), WELL, PAGES, asyncio.get_running_loop())
        with pytest.raises(ListenFailed, match=f"--http 127.0.0.1:{port}: "):
            second.start()

    served(scenario)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        (":80", ListenAddress("0.0.0.0", 80)),
        ("127.0.0.1:0", ListenAddress("127.0.0.1", 0)),
        ("[::1]:9", ListenAddress("::1", 9)),
    ],
)
def test_a_listen_address_is_parsed(text: str, address: ListenAddress) -> None:
    assert ListenAddress.parse(text) == address


@pytest.mark.parametrize("text", ["", "80", "host:", "host:http", ":70000"])
def test_an_invalid_listen_address_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="is not an address"):
        ListenAddress.parse(text)
