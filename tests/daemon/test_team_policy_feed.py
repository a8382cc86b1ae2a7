"""Policies that teams own: what is checked with what, and what reaches the scheduler."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256

import pytest

from policysched.config.team_settings import TeamPolicySettings
from policysched.daemon import policy_checker, team_policy_feed
from policysched.daemon.policy_checker import PolicyTexts, TeamBase, check_texts
from policysched.daemon.team_policy_feed import TeamPolicyFeed
from policysched.kube.watch.resources import ConfigMapUpdated, TeamConfigMapUpdated
from policysched.lang.check.bundle import CheckedSource, PolicyBundle
from policysched.scheduler.events import PoliciesUpdated
from policysched.scheduler.policies.rejection_message import errors_of, rejection_message
from policysched.scheduler.policy_permissions import AllowedPolicy, PolicyPermissions
from tests.kube.world import on_virtual_time

METRIC = 'metric load: ratio { query = "load", unit = "1", join = instance, every = 15s, stale = 2m }'
BASE = f"""library base version 1
include kube_default
replace locked filter node_resources_fit
locked param most: int = 100 range 1..110
param few: int = 3 range 1..9
{METRIC}
locked filter crowded require node.pods < most
"""
MAIN = 'policy main version 1\ninclude "base.policy"\n'
OPERATOR = {"base.policy": BASE, "main.policy": MAIN}
PERMISSIONS = PolicyPermissions(
    (AllowedPolicy("*"), AllowedPolicy("ml-*", owner="ml"), AllowedPolicy("web-*", owner="web"))
)
SETTINGS = TeamPolicySettings("base.policy")
PLACE = "ConfigMap ns/policies"


def own(name: str, *lines: str, first: str = 'include "base.policy"') -> str:
    return "\n".join((f"policy {name} version 1", first, *lines, ""))


@dataclass
class World:
    """A feed, with the texts of the operator and what it delivers."""

    settings: TeamPolicySettings = SETTINGS
    delivered: list[PoliciesUpdated] = field(default_factory=list)
    checks: list[tuple[str, ...]] = field(default_factory=list)
    operator_texts: PolicyTexts = field(default_factory=lambda: OPERATOR)
    check_duration_s: Callable[[PolicyTexts], float] = field(default=lambda _: 0.0)
    delivered_at_s: list[float] = field(default_factory=list)
    permissions: PolicyPermissions = PERMISSIONS

    def __post_init__(self) -> None:
        self.feed = TeamPolicyFeed(
            self.settings, self.permissions, PLACE, self._check, lambda: self.operator_texts, self._deliver
        )

    async def _check(self, texts: PolicyTexts, place: str, base: TeamBase) -> PolicyBundle:
        self.checks.append(tuple(texts))
        await asyncio.sleep(self.check_duration_s(texts))
        return check_texts(texts, place, base=base)

    def _deliver(self, event: PoliciesUpdated) -> None:
        self.delivered.append(event)
        self.delivered_at_s.append(asyncio.get_running_loop().time())

    def offer(self, texts: PolicyTexts, version: str = "1") -> None:
        self.operator_texts = texts
        self.feed.on_operator_update(PoliciesUpdated(check_texts(texts, PLACE), version))

    def put(self, namespace: str, texts: Mapping[str, str] | None) -> None:
        content = None if texts is None else ConfigMapUpdated(texts, "1", f"uid of {namespace}")
        self.feed.on_config_map(TeamConfigMapUpdated(namespace, content))

    async def settle(self, seconds: float = 100.0) -> None:
        await asyncio.sleep(seconds)

    def run(self, script: Callable[[], object]) -> None:
        """Runs the script beside the feed, on virtual time, and lets the feed finish."""

        async def main() -> None:
            running = asyncio.create_task(self.feed.run())
            script()
            await self.settle()
            running.cancel()

        on_virtual_time(main)

    def codes(self) -> dict[str, list[str]]:
        """Of the last delivery: the errors of each key; none: it is valid."""
        bundle = self.delivered[-1].bundle
        assert bundle is not None
        for source in bundle.sources.values():
            assert source.is_library or (source.program is None) == bool(errors_of(source)), source
        return {key: [d.code for d in errors_of(source)] for key, source in bundle.sources.items()}


def codes_of(texts: Mapping[str, str], settings: TeamPolicySettings = SETTINGS) -> dict[str, list[str]]:
    """The errors of the texts of the team ml, by key."""
    world = World(settings)

    def script() -> None:
        world.put("ml", texts)
        world.feed.on_listed()
        world.offer(OPERATOR)

    world.run(script)
    return {key.removeprefix("ml/"): codes for key, codes in world.codes().items() if key.startswith("ml/")}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (own("ml-a"), []),
        (own("ml-a", "filter ready require node.ready"), []),
        (own("ml-a", "score cool weight 3 lower load normalize range(0, 1) missing worst"), []),
        (own("ml-a", "drop node_ports", "preemption { victims = any }"), []),
        (own("ml-a", first="include kube_default"), ["PS910"]),
        (own("ml-a", 'include "base.policy"', first="include kube_default"), ["PS910"]),
        (own("ml-a", first="filter ready require node.ready"), ["PS910"]),
        ("policy ml-a version 1\n", ["PS910"]),
        (own("ml-a", "drop crowded"), ["PS230"]),
        (own("ml-a", "layer all when pod.priority > 3 { amend crowded when false }"), ["PS230"]),
        (own("ml-a", "drop node_resources_fit"), ["PS230"]),
        (own("ml-a", METRIC.replace("load", "own")), ["PS911"]),
        (own("ml-a", "extender theirs"), ["PS911"]),
        (own("ml-a", 'include "ml/other.policy"'), ["PS911", "PS225"]),
        (BASE.replace("library base", "library mine"), ["PS910", "PS911", "PS911"]),
        (own("ml-a", "resource r { capacity = 1, request = 1 }"), ["PS911"]),
        (
            own("ml-a", 'filter few require count(placed pods where has other.annotations["a"]) < 9'),
            ["PS914"],
        ),
        (own("web-a"), ["PS912"]),
        (own("default-scheduler"), ["PS912"]),
        (own("main"), ["PS912"]),
    ],
)
def test_a_team_owns_what_its_names_and_the_base_allow(text: str, expected: list[str]) -> None:
    assert codes_of({"a.policy": text})["a.policy"] == expected


def test_a_team_whose_texts_raise_has_no_valid_text_and_others_have(monkeypatch: pytest.MonkeyPatch) -> None:
    check_team = TeamPolicyFeed._check_team

    async def planted(feed: TeamPolicyFeed, namespace: str) -> Mapping[str, CheckedSource]:
        if namespace == "ml" and feed._good.get("ml"):
            raise OverflowError("planted")
        return await check_team(feed, namespace)

    monkeypatch.setattr(TeamPolicyFeed, "_check_team", planted)

    async def script() -> None:
        world = World()
        task = asyncio.create_task(world.feed.run())
        world.put("ml", {"a.policy": own("ml-a")})
        world.feed.on_listed()
        world.offer(OPERATOR)
        await world.settle()
        world.put("ml", {"a.policy": own("ml-a", "filter ready require node.ready")})
        world.put("web", {"a.policy": own("web-a")})
        await world.settle()
        assert not task.done()
        codes = {key: codes for key, codes in world.codes().items() if "/" in key}
        assert codes == {"ml/": ["PS901"], "web/a.policy": []}
        fallbacks = world.delivered[-1].fallbacks
        assert [(name, program.removed) for name, program in fallbacks.items()] == [("ml-a", "")]
        world.offer({**OPERATOR, "base.policy": BASE.replace("1..9", "1..8")}, "2")
        await world.settle()
        assert "cannot be checked" in world.delivered[-1].fallbacks["ml-a"].removed
        task.cancel()

    on_virtual_time(script)


def test_a_team_sets_parameters_of_the_base_except_locked_ones() -> None:
    text = own("ml-a", "filter ready require node.pods < few")

    assert codes_of({"a.policy": text, "ml-a.params.yaml": "few: 5"})["a.policy"] == []
    assert codes_of({"a.policy": text, "ml-a.params.yaml": "most: 110"})["a.policy"] == ["PS263"]


def test_the_settings_set_a_locked_parameter_of_a_team_s_policy() -> None:
    world = World()

    def script() -> None:
        world.put("ml", {"a.policy": own("ml-a"), "b.policy": own("ml-b")})
        world.feed.on_listed()
        world.offer({**OPERATOR, "settings/ml-a.params.yaml": "most: 50"})

    world.run(script)

    bundle = world.delivered[-1].bundle
    assert bundle is not None
    programs = [bundle.sources[f"ml/{key}.policy"].program for key in ("a", "b")]
    assert [program and program.parameters["most"].value.value for program in programs] == [50, 100]


def test_a_key_of_a_team_hides_no_library_of_the_operator() -> None:
    empty = "library base version 1\n"

    codes = codes_of({"base.policy": empty, "a.policy": own("ml-a", "drop crowded")})

    assert codes == {"base.policy": ["PS910", "PS911"], "a.policy": ["PS230"]}


def test_texts_beyond_the_limits_are_rejected_unchecked() -> None:
    texts = {"a.policy": own("ml-a"), "b.policy": own("ml-b"), "c.policy": own("ml-c")}
    size = len(texts["a.policy"])

    by_count = codes_of(texts, TeamPolicySettings("base.policy", texts_max=2))
    by_bytes = codes_of(texts, TeamPolicySettings("base.policy", bytes_max=2 * size - 1))

    assert by_count == {"a.policy": [], "b.policy": [], "c.policy": ["PS913"]}
    assert by_bytes == {"a.policy": [], "b.policy": ["PS913"]}


def test_the_message_about_a_number_of_100_000_digits_is_short() -> None:
    """It goes to the log at each edit of the team."""
    text = own("ml-a", f"filter ready require node.pods < {'9' * 100_000}")

    source = check_texts(
        {"ml/a.policy": text}, "here", base=TeamBase(OPERATOR, PLACE, "base.policy")
    ).sources["ml/a.policy"]

    assert errors_of(source) and len(rejection_message(source)) < 2_000


def test_thousands_of_keys_make_one_rejection() -> None:
    """Each rejected text has a status, an event, a log line and metrics with its name."""
    codes = codes_of({f"k{number:05}.policy": "x" for number in range(20_000)})

    assert sorted(codes.values())[-1] == ["PS913"] and len(codes) == SETTINGS.texts_max + 1


def test_a_change_of_the_base_checks_every_team_again() -> None:
    world = World()

    def script() -> None:
        world.put("ml", {"a.policy": own("ml-a", "drop node_ports")})
        world.feed.on_listed()
        world.offer(OPERATOR)
        locked = BASE + "replace locked filter node_ports\n"
        asyncio.get_running_loop().call_later(30, world.offer, {**OPERATOR, "base.policy": locked}, "2")

    world.run(script)

    assert world.codes()["ml/a.policy"] == ["PS230"]
    assert len(world.checks) == 3, "the text, the text on the new base, and the last known good text"
    versions = [event.resource_version for event in world.delivered]
    assert len(versions) == len(set(versions)), "the registry ignores a version that it has seen"


def test_the_base_is_hashed_once_and_not_for_each_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have a mebibyte."""
    hashed, world = list[int](), World()

    def counting(content: bytes) -> object:
        hashed.append(len(content))
        return sha256(content)

    monkeypatch.setattr(policy_checker, "sha256", counting)

    def script() -> None:
        for team in ("ml", "web"):
            world.put(team, {f"{number}.policy": own(f"{team}-{number}") for number in range(5)})
        world.feed.on_listed()
        world.offer(OPERATOR)

    world.run(script)

    assert [key for key, codes in world.codes().items() if "/" in key and not codes]
    assert len(hashed) == 1


def test_the_operator_has_precedence_with_a_valid_a_broken_and_a_removed_policy() -> None:
    for texts in (
        {"x.policy": MAIN.replace("main", "ml-a", 1)},
        {"x.policy": MAIN.replace("main", "ml-a", 1) + "filter x require y\n"},
        {"ml-a.removed": "gone"},
    ):
        world = World()

        def script(world: World = world, texts: Mapping[str, str] = texts) -> None:
            world.put("ml", {"a.policy": own("ml-a"), "b.policy": own("ml-b")})
            world.feed.on_listed()
            world.offer({**OPERATOR, **texts})

        world.run(script)
        bundle = world.delivered[-1].bundle
        assert bundle is not None
        assert [d.code for d in bundle.sources["ml/a.policy"].diagnostics] == ["PS912"]
        assert bundle.sources["ml/b.policy"].program is not None


def slow_neighbour() -> World:
    """A team whose texts are slow to check and change all the time, beside another and the operator."""
    world = World(check_duration_s=lambda texts: 20.0 if "ml/a.policy" in texts else 0.1)

    def script() -> None:
        world.feed.on_listed()
        world.offer(OPERATOR)
        for second in range(90):
            edited = {"a.policy": own("ml-a", f"score s weight {second + 1} prefer node.ready")}
            asyncio.get_running_loop().call_later(second, world.put, "ml", edited)
        asyncio.get_running_loop().call_later(25, world.put, "web", {"b.policy": own("web-b")})

    world.run(script)
    return world


def loaded_at_s(world: World, key: str) -> float:
    return next(
        at_s
        for at_s, event in zip(world.delivered_at_s, world.delivered, strict=True)
        if event.bundle is not None and key in event.bundle.sources
    )


def test_a_slow_team_that_edits_all_the_time_delays_another_by_one_check_at_most() -> None:
    world = slow_neighbour()

    assert world.delivered_at_s[0] < 1, "the operator's texts wait for no team"
    assert loaded_at_s(world, "web/b.policy") <= 25 + 20 + 1


def test_a_team_that_edits_seldom_waits_for_none_of_those_that_edit_all_the_time() -> None:
    """It waited for one check of each."""
    slow = [f"slow{number}" for number in range(6)]
    world = World(
        check_duration_s=lambda texts: 5.0 if any(key.startswith("slow") for key in texts) else 0.1,
        permissions=PolicyPermissions(
            (AllowedPolicy("*"), *(AllowedPolicy(f"{name}-*", owner=name) for name in (*slow, "web")))
        ),
    )
    edits_at_s = (41, 47, 53)

    def script() -> None:
        world.feed.on_listed()
        world.offer(OPERATOR)
        for second in range(90):
            for name in slow:
                edited = {"a.policy": own(f"{name}-a", f"score s weight {second + 1} prefer node.ready")}
                asyncio.get_running_loop().call_later(second, world.put, name, edited)
        for second in edits_at_s:
            edited = {f"b{second}.policy": own("web-b", f"score s weight {second} prefer node.ready")}
            asyncio.get_running_loop().call_later(second, world.put, "web", edited)

    world.run(script)

    waited = [loaded_at_s(world, f"web/b{second}.policy") - second for second in edits_at_s]
    assert max(waited) <= 5.2, waited


def test_a_feed_that_checks_the_newest_edit_first_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: no turns and no pause, so the team that edits all the time is always next."""
    monkeypatch.setattr(team_policy_feed, "PAUSE_S", 0.0)
    monkeypatch.setattr(team_policy_feed, "PAUSE_FACTOR", 0.0)

    def request_check_first(feed: TeamPolicyFeed, namespace: str) -> None:
        feed._due = {namespace: None, **feed._due} if namespace == "ml" else {**feed._due, namespace: None}
        feed._changed.set()

    monkeypatch.setattr(TeamPolicyFeed, "_request_check", request_check_first)
    monkeypatch.setattr(TeamPolicyFeed, "_used_of", lambda *_: 0.0)

    with pytest.raises((AssertionError, StopIteration)):
        test_a_slow_team_that_edits_all_the_time_delays_another_by_one_check_at_most()


def test_without_a_policy_of_the_operator_the_first_delivery_waits_for_the_teams() -> None:
    world = World(check_duration_s=lambda _: 5.0)

    def script() -> None:
        world.offer({"base.policy": BASE})
        world.put("ml", {"a.policy": own("ml-a")})
        asyncio.get_running_loop().call_later(20, world.feed.on_listed)

    world.run(script)

    first = world.delivered[0].bundle
    assert first is not None and first.sources["ml/a.policy"].program is not None
    assert world.delivered[-1].unread_teams == frozenset()


def test_the_configmap_of_a_namespace_without_names_is_ignored() -> None:
    world = World()

    def script() -> None:
        world.put("other", {"a.policy": own("ml-a")})
        world.feed.on_listed()
        world.offer(OPERATOR)

    world.run(script)

    assert set(world.codes()) == set(OPERATOR) and world.feed.uid("other") == ""
    assert world.checks == []
