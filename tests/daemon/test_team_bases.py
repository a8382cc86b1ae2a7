"""Whatever happens to the texts of a team and of the operator: no policy of a team runs on another base than the operator's
last one that passes the check."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from hashlib import sha256
from random import Random
from typing import TypeVar

import orjson
import pytest

from policysched.daemon import team_policy_feed
from policysched.daemon.policy_checker import check_texts, unchecked_bundle
from policysched.lang.check.bundle import PolicyBundle
from policysched.lang.check.limits import TextLimitExceeded
from policysched.lang.ir.program import Program, TeamSource
from policysched.scheduler.events import PoliciesUpdated
from policysched.scheduler.policies.saved_texts import saved_form, with_saved_team
from policysched.scheduler.policy_permissions import AllowedPolicy, PolicyPermissions
from tests.daemon.test_team_policy_feed import BASE, MAIN, OPERATOR, SETTINGS, World, own
from tests.kube.world import on_virtual_time

T = TypeVar("T")

BROKEN = own("ml-a", "filter x require y")


def base_of(limit: int, *lines: str) -> dict[str, str]:
    """The operator's texts with a locked rule that shows which base it is."""
    text = (
        BASE + f"locked filter limited require node.pods < {limit}\n" + "".join(f"{line}\n" for line in lines)
    )
    return {"base.policy": text, "main.policy": MAIN}


LOCKED_PORTS = "replace locked filter node_ports"


def on_time(script: Callable[[], Awaitable[T]]) -> T:
    """What the script returns, on virtual time."""
    results: list[T] = []

    async def main() -> None:
        results.append(await script())

    on_virtual_time(main)
    return results[0]


class Cluster(World):
    """A world whose feed can be restarted from what its last delivery would save."""

    version = 0

    def set_base(self, texts: Mapping[str, str], last_good: PolicyBundle | None = None) -> None:
        self.version += 1
        self.operator_texts = texts
        self.feed.on_operator_update(
            PoliciesUpdated(check_texts(texts, "here"), str(self.version), last_good)
        )

    def programs(self) -> dict[str, Program]:
        """What the scheduler would run of the teams, by name."""
        event = self.delivered[-1]
        assert event.bundle is not None
        first = self.delivered[0].last_good
        saved = (
            {} if first is None else {s.program.name: s.program for s in first.sources.values() if s.program}
        )
        valid = {
            s.program.name: s.program for s in event.bundle.sources.values() if s.program and s.program.team
        }
        return {**saved, **event.fallbacks, **valid}

    def restarted(self) -> tuple["Cluster", PolicyBundle]:
        texts = {f"{name}.policy": saved_form(program) for name, program in self.programs().items()}
        sources = check_texts(texts, "last known good").sources
        return Cluster(), PolicyBundle(
            {key: with_saved_team(source, texts[key]) for key, source in sources.items()}
        )


async def settled(cluster: Cluster) -> None:
    running = asyncio.create_task(cluster.feed.run())
    await asyncio.sleep(100)
    running.cancel()


@pytest.mark.parametrize("text", [None, {}, {"a.policy": BROKEN}], ids=["no ConfigMap", "no key", "broken"])
@pytest.mark.parametrize("params", [{}, {"ml-a.params.yaml": "few: 5"}], ids=["", "params"])
@pytest.mark.parametrize("restart", [False, True])
def test_a_text_without_a_successor_is_checked_again_on_a_changed_base(
    text: Mapping[str, str] | None, params: Mapping[str, str], restart: bool
) -> None:
    async def script() -> Program:
        cluster = Cluster()
        cluster.feed.on_listed()
        cluster.set_base(base_of(50))
        cluster.put("ml", {"a.policy": own("ml-a", "filter few_pods require node.pods < few"), **params})
        await settled(cluster)
        last_good = None
        if restart:
            cluster, last_good = cluster.restarted()
            cluster.feed.on_listed()
        cluster.put("ml", None if text is None else {**text, **params})
        cluster.set_base(base_of(40), last_good)
        await settled(cluster)
        return cluster.programs()["ml-a"]

    program = on_time(script)

    assert "node.pods < 40" in program.text and not program.removed
    assert program.parameters["few"].value.value == (5 if params else 3)


def test_a_saved_text_of_a_version_with_other_limits_is_checked_again() -> None:
    text = own("ml-a", 'filter calm require (node.annotations["heat"] else "") == "low"')
    program = check_texts({"a.policy": text, **OPERATOR}, "here").sources["a.policy"].program
    assert program is not None
    before = sha256(orjson.dumps(["base.policy", {"base.policy": BASE}], option=orjson.OPT_SORT_KEYS))
    saved = saved_form(replace(program, team=TeamSource(text, "", before.hexdigest())))

    async def script() -> Program:
        source = check_texts({"ml-a.policy": saved}, "last known good").sources["ml-a.policy"]
        cluster = Cluster()
        cluster.feed.on_listed()
        cluster.set_base(OPERATOR, PolicyBundle({"ml-a.policy": with_saved_team(source, saved)}))
        await settled(cluster)
        return cluster.programs()["ml-a"]

    program = on_time(script)

    assert program.removed is not None and "is suspended" in program.removed and "PS914" in program.removed


def test_a_text_that_does_not_pass_with_the_changed_base_is_suspended_until_it_does() -> None:
    async def script() -> list[Program]:
        cluster = Cluster()
        cluster.feed.on_listed()
        cluster.set_base(base_of(50))
        cluster.put("ml", {"a.policy": own("ml-a", "drop node_ports")})
        await settled(cluster)
        programs = []
        for texts in (base_of(40, LOCKED_PORTS), base_of(30)):
            cluster.set_base(texts)
            await settled(cluster)
            programs.append(cluster.programs()["ml-a"])
        return programs

    suspended, back = on_time(script)

    assert suspended.removed.startswith(
        "policy ml-a is suspended: neither its text nor its last known good text"
    )
    assert "PS230" in suspended.removed and suspended.text, "the text stays saved"
    assert not back.removed and "node.pods < 30" in back.text


@contextmanager
def no_time_left(_key: str) -> Iterator[None]:
    raise TextLimitExceeded("checking the texts of this ConfigMap took longer than 5 s")
    yield


@pytest.mark.parametrize(
    "check",
    [
        partial(check_texts, guard=no_time_left),
        lambda texts, place, base: unchecked_bundle(texts, place, f"no answer, with {base.required}"),
    ],
    ids=["no time", "no answer"],
)
def test_a_text_whose_header_is_not_read_on_the_changed_base_is_suspended(
    check: Callable[..., PolicyBundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script() -> Program:
        cluster = Cluster()
        cluster.feed.on_listed()
        cluster.set_base(base_of(50))
        cluster.put("ml", {"a.policy": own("ml-a")})
        await settled(cluster)
        cluster.put("ml", {})
        await settled(cluster)
        monkeypatch.setattr("tests.daemon.test_team_policy_feed.check_texts", check)
        cluster.set_base(base_of(40))
        await settled(cluster)
        return cluster.programs()["ml-a"]

    assert on_time(script).removed.startswith("policy ml-a is suspended")


@pytest.mark.parametrize(
    "texts",
    [{}, {"base.policy": BASE + "filter x require y\n"}, {"base.policy": "???"}],
    ids=["gone", "broken", "no text"],
)
def test_a_base_that_is_broken_or_gone_changes_nothing_also_at_a_restart(texts: Mapping[str, str]) -> None:
    async def script() -> list[Program]:
        cluster = Cluster()
        cluster.feed.on_listed()
        cluster.set_base(base_of(50))
        cluster.put("ml", {"a.policy": own("ml-a")})
        await settled(cluster)
        cluster.set_base({**texts, "main.policy": "policy main version 1\n"})
        await settled(cluster)
        before = cluster.programs()["ml-a"]
        cluster, last_good = cluster.restarted()
        cluster.set_base({**texts, "main.policy": "policy main version 1\n"}, last_good)
        await settled(cluster)
        return [before, cluster.programs()["ml-a"]]

    assert ["node.pods < 50" in program.text and not program.removed for program in on_time(script)] == [
        True,
        True,
    ]


def test_the_text_of_a_policy_that_the_operator_removed_does_not_come_back() -> None:
    async def script() -> dict[str, Program]:
        cluster = Cluster()
        cluster.feed.on_listed()
        cluster.set_base(OPERATOR)
        cluster.put("ml", {"a.policy": own("ml-a")})
        await settled(cluster)
        cluster.set_base({**OPERATOR, "ml-a.removed": ""})
        cluster.put("ml", {})
        await settled(cluster)
        cluster.set_base(OPERATOR)
        await settled(cluster)
        return cluster.programs()

    assert on_time(script) == {}


def test_the_saved_text_of_a_team_is_no_text_of_the_team_that_gets_its_name() -> None:
    async def script() -> list[Mapping[str, Program]]:
        cluster = Cluster()
        cluster.feed.on_listed()
        cluster.set_base(OPERATOR)
        cluster.put("ml", {"a.policy": own("ml-a")})
        await settled(cluster)
        fallbacks = []
        for owner in ("ml", "web"):
            again, last_good = cluster.restarted()
            again.feed._permissions = PolicyPermissions(
                (AllowedPolicy("*"), AllowedPolicy("ml-*", owner=owner))
            )
            again.feed.on_listed()
            again.set_base(OPERATOR, last_good)
            await settled(again)
            fallbacks.append(again.delivered[-1].fallbacks)
        return fallbacks

    of_ml, of_web = on_time(script)

    assert list(of_ml) == ["ml-a"] and not of_web


def names_after_renames(renames: int) -> tuple[list[str], list[str]]:
    """The policies that run, and those that are removed, after a team renamed its only policy again and again."""

    async def script() -> tuple[list[str], list[str]]:
        cluster = Cluster()
        cluster.feed.on_listed()
        cluster.set_base(OPERATOR)
        for number in range(renames):
            cluster.put("ml", {"a.policy": own(f"ml-{number:02}")})
            await settled(cluster)
        removed = [n for event in cluster.delivered for n, p in event.fallbacks.items() if p.removed]
        return sorted(cluster.programs()), removed

    return on_time(script)


def test_a_team_that_renames_its_policy_keeps_no_more_of_them_than_it_may_have_texts() -> None:
    running, removed = names_after_renames(12)

    assert running == [f"ml-{number:02}" for number in range(3, 12)][-len(running) :]
    assert len([name for name in running if name not in removed]) == SETTINGS.texts_max
    assert removed == [f"ml-{number:02}" for number in range(4)], "the oldest, each once"


def run_history(seed: int) -> None:
    """Random edits of both sides and restarts; after each, what runs has the locked rule of the operator's last valid base."""
    random = Random(f"team bases {seed}")

    async def script() -> None:
        cluster, limit, last_good = Cluster(), 0, None
        cluster.feed.on_listed()
        for step in range(8):
            match random.choice(["base", "base", "broken base", "text", "text", "restart"]):
                case "base":
                    limit = 90 - step
                    lines = (LOCKED_PORTS,) if random.random() < 0.4 else ()
                    cluster.set_base(base_of(limit, *lines))
                case "broken base":
                    cluster.set_base(
                        {"base.policy": "filter x require y\n", "main.policy": "policy main version 1\n"}
                    )
                case "text":
                    text = random.choice(
                        [own("ml-a"), own("ml-a", "drop node_ports"), own("ml-b"), BROKEN, None]
                    )
                    cluster.put("ml", None if text is None else {"a.policy": text})
                case "restart" if cluster.delivered:
                    texts, content = cluster.operator_texts, cluster.feed._content.get("ml")
                    cluster, last_good = cluster.restarted()
                    cluster.feed.on_listed()
                    cluster.put("ml", None if content is None else content.data)
                    cluster.set_base(texts, last_good)
            await settled(cluster)
            for program in cluster.programs().values() if cluster.delivered else ():
                assert program.removed or f"node.pods < {limit}" in program.text, (seed, step, program.text)

    on_time(script)


def test_locked_rules_of_the_base_hold_in_random_histories() -> None:
    for seed in range(40):
        run_history(seed)


@pytest.mark.parametrize("bug", ["any base will do", "the old text runs on"])
def test_a_feed_that_runs_texts_of_an_old_base_is_caught(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if bug == "any base will do":
        monkeypatch.setattr(team_policy_feed, "_has_base", lambda *_: True)
    else:
        monkeypatch.setattr(team_policy_feed, "suspended_program", lambda program, _message: program)

    with pytest.raises(AssertionError):
        test_locked_rules_of_the_base_hold_in_random_histories()
