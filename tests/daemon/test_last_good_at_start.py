"""The last known good texts at a start: those of teams may take long to check, and what the operator wrote does not wait."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

import pytest

from policysched.daemon import policy_feed
from policysched.daemon.policy_checker import PolicyTexts, check_texts
from policysched.daemon.policy_feed import PolicyFeed
from policysched.kube.watch.resources import ConfigMapUpdated
from policysched.lang.check.bundle import PolicyBundle
from policysched.lang.ir.program import TeamSource
from policysched.scheduler.events import PoliciesUpdated
from policysched.scheduler.policies.saved_texts import saved_form
from tests.daemon.test_team_bases import Cluster, settled
from tests.daemon.test_team_policy_feed import OPERATOR, own
from tests.kube.world import on_virtual_time

OPERATORS = "policy other version 1\ninclude kube_default\n"
SLOW_S = 100.0


def team_text(name: str) -> str:
    """As it is saved."""
    program = check_texts({"a.policy": own(name), **OPERATOR}, "here").sources["a.policy"].program
    assert program is not None
    return saved_form(replace(program, team=TeamSource(own(name), "", "")))


def started(
    kept: Mapping[str, str], script: Callable[[PolicyFeed], Awaitable[None]]
) -> tuple[list[tuple[float, PoliciesUpdated]], list[list[str]]]:
    """What is delivered, and when, and the keys of each check, where a check with a team's text takes `SLOW_S`."""
    deliveries, checks = list[tuple[float, PoliciesUpdated]](), list[list[str]]()

    async def check(texts: PolicyTexts, place: str) -> PolicyBundle:
        checks.append(sorted(texts))
        await asyncio.sleep(SLOW_S if any(key.startswith("ml-") for key in texts) else 1.0)
        return check_texts(texts, place)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()

        async def read() -> Mapping[str, str]:
            return kept

        def deliver(event: PoliciesUpdated) -> None:
            deliveries.append((loop.time() - began_s, event))

        feed = PolicyFeed("here", "kept", check, deliver, read_last_good=read)
        running = asyncio.create_task(feed.run())
        await script(feed)
        running.cancel()

    on_virtual_time(main)
    return deliveries, checks


def programs(bundle: PolicyBundle | None) -> set[str]:
    return set() if bundle is None else {s.program.name for s in bundle.sources.values() if s.program}


async def edit_and_wait(feed: PolicyFeed) -> None:
    feed.on_config_map(ConfigMapUpdated({"other.policy": OPERATORS}, "1", "uid"))
    await asyncio.sleep(10 * SLOW_S)


def test_the_first_delivery_waits_for_no_text_of_a_team() -> None:
    """Each batch of a mebibyte could take 20 s of processor time, before a new leader scheduled anything."""
    kept = {"ml-a.policy": team_text("ml-a"), "other.policy": OPERATORS}

    (first, second), checks = started(kept, edit_and_wait)

    assert checks == [["other.policy"], ["other.policy"], ["ml-a.policy"]]
    assert first[0] < 5.0 and programs(first[1].last_good) == {"other"}
    assert first[1].unchecked_texts == {"ml-a": kept["ml-a.policy"]}
    assert second[0] >= SLOW_S and programs(second[1].last_good) == {"ml-a"}
    source = second[1].last_good.sources["ml-a.policy"] if second[1].last_good else None
    assert source is not None and source.program is not None and source.program.team is not None
    assert (second[1].bundle, second[1].unchecked_texts) == (first[1].bundle, {})


def test_an_edit_goes_before_the_next_batch_of_teams_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_feed, "LAST_GOOD_BATCH_CHARS", 1)
    texts = {f"ml-{letter}.policy": team_text(f"ml-{letter}") for letter in "abc"}

    async def script(feed: PolicyFeed) -> None:
        feed.on_config_map(ConfigMapUpdated({"other.policy": OPERATORS}, "1", "uid"))
        await asyncio.sleep(SLOW_S / 2)
        feed.on_config_map(ConfigMapUpdated({"main.policy": OPERATORS}, "2", "uid"))
        await asyncio.sleep(10 * SLOW_S)

    deliveries, checks = started(texts, script)

    assert checks == [
        ["other.policy"],
        ["ml-a.policy"],
        ["main.policy"],
        ["ml-b.policy"],
        ["ml-c.policy"],
    ]
    assert [event.resource_version for _, event in deliveries] == ["1", "1", "2", "2", "2"]
    assert [programs(event.last_good) for _, event in deliveries] == [
        set(),
        {"ml-a"},
        set(),
        {"ml-b"},
        {"ml-c"},
    ]


def test_with_nothing_else_to_run_the_first_delivery_waits_for_a_team() -> None:
    """A process without any policy ends."""

    async def script(feed: PolicyFeed) -> None:
        feed.on_listed()
        await asyncio.sleep(10 * SLOW_S)

    deliveries, _ = started({"ml-a.policy": team_text("ml-a")}, script)

    assert [(programs(event.last_good), event.unchecked_texts) for _, event in deliveries] == [({"ml-a"}, {})]


def late(cluster: Cluster, name: str, texts: PolicyTexts) -> None:
    """The last known good text of a team arrives after the first delivery."""
    saved = check_texts({f"{name}.policy": own(name), **OPERATOR}, "kept").sources[f"{name}.policy"]
    assert saved.program is not None
    team = TeamSource(own(name), "", "of an earlier base")
    source = replace(saved, program=replace(saved.program, team=team))
    cluster.set_base(texts, PolicyBundle({f"{name}.policy": source}))


def test_a_late_text_is_checked_on_the_present_base_and_what_the_team_has_had_since_is_newer() -> None:
    async def main() -> None:
        cluster = Cluster()
        cluster.feed.on_listed()
        cluster.set_base(OPERATOR)
        newer = own("ml-b", "filter ready require node.ready")
        cluster.put("ml", {"b.policy": newer})
        await settled(cluster)
        cluster.put("ml", None)
        await settled(cluster)
        late(cluster, "ml-a", OPERATOR)
        assert cluster.delivered[-1].last_good is not None
        late(cluster, "ml-b", OPERATOR)
        await settled(cluster)

        fallbacks = cluster.delivered[-1].fallbacks

        assert fallbacks.keys() == {"ml-a", "ml-b"} and cluster.delivered[-1].last_good is None
        assert not any(program.removed for program in fallbacks.values())
        assert fallbacks["ml-b"].team is not None and fallbacks["ml-b"].team.text == newer

    on_virtual_time(main)


def test_a_late_text_of_a_removed_policy_does_not_come_back() -> None:
    async def main() -> None:
        cluster = Cluster()
        cluster.feed.on_listed()
        cluster.set_base(OPERATOR)
        await settled(cluster)
        cluster.set_base({**OPERATOR, "ml-a.removed": ""})
        cluster.set_base(OPERATOR)
        late(cluster, "ml-a", OPERATOR)
        await settled(cluster)

        assert cluster.delivered[-1].fallbacks == {}

    on_virtual_time(main)
