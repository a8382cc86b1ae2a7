"""The policies' ConfigMap on its way to the scheduler, however often it is written to."""

import asyncio
import logging
from collections.abc import Mapping

import pytest

from policysched.daemon.policy_feed import PolicyFeed
from policysched.kube.watch.resources import ConfigMapUpdated
from policysched.lang.check.bundle import PolicyBundle
from policysched.scheduler.events import PoliciesUpdated
from tests.kube.world import on_virtual_time


def offers(edits_while_checking: int, looks: int) -> list[str]:
    """The versions that are offered where each check sees so many further edits, until the first few are offered."""
    offers: list[str] = []

    async def main() -> None:
        version = 0
        enough = asyncio.Event()

        def edit() -> None:
            nonlocal version
            version += 1
            feed.on_config_map(ConfigMapUpdated({"main.policy": f"text {version}"}, str(version), "uid"))

        async def check_slowly(texts: Mapping[str, str], _place: str) -> PolicyBundle:
            for _ in range(edits_while_checking):
                edit()
                await asyncio.sleep(0)
            assert version < 100, "a hundred edits, and none of them took effect"
            return PolicyBundle({})

        async def nothing_kept() -> Mapping[str, str]:
            return {}

        def deliver(offered: PoliciesUpdated) -> None:
            offers.append(offered.resource_version)
            if len(offers) == looks:
                enough.set()

        feed = PolicyFeed("here", "", check_slowly, deliver, read_last_good=nothing_kept)
        edit()
        async with asyncio.TaskGroup() as group:
            running = group.create_task(feed.run())
            await enough.wait()
            running.cancel()

    asyncio.run(main())
    return offers


def checked(*config_map_updated: ConfigMapUpdated) -> list[Mapping[str, str]]:
    """The texts that reach the check, of one ConfigMap after the other."""
    bundles: list[Mapping[str, str]] = []

    async def main() -> None:
        offered = asyncio.Queue[PoliciesUpdated]()

        async def check_at_once(texts: Mapping[str, str], _place: str) -> PolicyBundle:
            bundles.append(texts)
            return PolicyBundle({})

        async def nothing_kept() -> Mapping[str, str]:
            return {}

        feed = PolicyFeed("here", "", check_at_once, offered.put_nowait, read_last_good=nothing_kept)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(feed.run())
            for config_map in config_map_updated:
                feed.on_config_map(config_map)
                await offered.get()
            running.cancel()

    asyncio.run(main())
    return bundles


def test_continuous_edits_take_effect_the_newest_one_next() -> None:
    offered = offers(edits_while_checking=3, looks=4)

    assert offered == ["1", "4", "7", "10"]


def test_a_key_without_the_ending_of_a_policy_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    texts = {"main.params.yaml": "", "other.policy.txt": "", "mine": ""}

    checked(*(ConfigMapUpdated({"main.policy": version, **texts}, version, "uid") for version in ("1", "2")))

    warnings = [record for record in caplog.records if "ignoring keys" in record.message]
    assert [getattr(record, "keys", "") for record in warnings] == ["mine, other.policy.txt"]


def test_a_file_that_is_not_utf_8_reaches_the_check_and_is_not_passed_over() -> None:
    config_map = ConfigMapUpdated({"a.policy": "a"}, "1", "uid", {"b.policy": b"\xfc", "logo.png": b"\x89"})

    assert checked(config_map) == [{"a.policy": "a", "b.policy": "\udcfc"}]


def test_a_slow_check_is_reported_as_in_progress(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    messages: list[list[str]] = []

    async def main() -> None:
        offered = asyncio.Event()

        async def check_for(_texts: Mapping[str, str], _place: str) -> PolicyBundle:
            for seconds in (4.0, 2.0, 10.0):
                await asyncio.sleep(seconds)
                messages.append(
                    [record.message for record in caplog.records if "still checking" in record.message]
                )
            return PolicyBundle({})

        async def nothing_kept() -> Mapping[str, str]:
            return {}

        feed = PolicyFeed("here", "", check_for, lambda _offer: offered.set(), read_last_good=nothing_kept)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(feed.run())
            feed.on_config_map(ConfigMapUpdated({"a.policy": "a"}, "1", "uid"))
            await offered.wait()
            running.cancel()

    on_virtual_time(main)

    once = ["still checking the edit; the active policies are unchanged"]
    assert messages == [[], once, once]
