"""Pods whose binds are refused again and again, at the expense of those that they evict each time."""

from collections.abc import Iterator
from dataclasses import replace

from policysched.model.identifiers import PodUid
from policysched.model.pods import Pod
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.queue.refused_binds import BINDS_REFUSED, WAIT_INITIAL_S, WAIT_MAX_S
from tests.builders import node, pending, pod
from tests.scheduler.rig import Rig
from tests.scheduler.test_gang_placement import ANY as GANG
from tests.scheduler.test_gang_placement import member
from tests.scheduler.test_preemption import ANY, high, low
from tests.scheduler.test_quota_preemption import TEAMS, pods, running

HOUR_S = 3600
SOME = 2 + HOUR_S // WAIT_MAX_S + (WAIT_MAX_S // WAIT_INITIAL_S).bit_length()
"""The first two, those after waits that double, and then one after each of the longest waits."""


class Refusing:
    """Binds in the namespace `refusing` are refused, and whoever is evicted comes back: placed by somebody else where it was, or
    pending. `evicted` has the times in seconds."""

    def __init__(self, rig: Rig, *, stalled: bool = False) -> None:
        self._rig = rig
        self._stalled = stalled
        self._seen = 0
        self._names: Iterator[str] = (f"again-{number}" for number in range(100_000))
        self._gone: list[e.PodUpdated] = []
        self.evicted: list[int] = []

    def play(self, seconds: int) -> None:
        rig = self._rig
        for _ in range(seconds):
            rig.pass_time(1)
            commands, self._seen = rig.commands[self._seen :], len(rig.commands)
            for command in commands:
                if isinstance(command, c.Evict):
                    self._evict(command)
                elif isinstance(command, c.Bind) and command.namespace == "refusing":
                    rig.handle(e.BindRefused(command.uid, "a webhook denied it", stalled=self._stalled))
                elif isinstance(command, c.Bind):
                    rig.handle(e.BindConfirmed(command.uid, command.node))
                    rig.handle(e.PodUpdated(replace(rig.observed_pod(command.uid), node=command.node)))
            if any(isinstance(command, c.Bind) for command in commands):
                rig.handle(*self._gone)
                self._gone.clear()

    def _evict(self, evict: c.Evict) -> None:
        rig = self._rig
        self.evicted += [rig.now_ns // 10**9] * len(evict.victims)
        rig.handle(e.Evicted(evict.uid, tuple(victim.uid for victim in evict.victims)))
        for victim in evict.victims:
            observed, name = rig.observed_pod(victim.uid), next(self._names)
            again = replace(observed.pod, uid=f"uid-{name}", name=name, created_ns=rig.now_ns)
            is_ours = observed.pod.scheduler == "test"
            self._gone.append(e.PodUpdated(pending(again) if is_ours else replace(observed, pod=again)))
            rig.handle(e.PodDeleted(victim.uid))


def test_a_pod_whose_binds_are_refused_evicts_others_ever_more_seldom() -> None:
    """It evicted one every half a minute, for ever, until the owner of the victims was evicted too often."""
    rig = Rig(ANY, node("a"), low(), high(namespace="refusing"))
    refusing = Refusing(rig)

    refusing.play(HOUR_S)

    assert 5 < len(refusing.evicted) <= SOME
    assert any(
        str(report.message).endswith(f"preemption: {BINDS_REFUSED}") for report in rig.of(c.ReportPending)
    )


def test_binds_that_were_not_sent_after_stalls_of_this_process_are_no_refusals() -> None:
    """After the second stall its pod evicted nobody for 20 s, as if a webhook of its namespace had refused its binds."""
    rig = Rig(ANY, node("a"), low(), high(namespace="refusing"))
    refusing = Refusing(rig, stalled=True)

    refusing.play(150)

    assert len(refusing.evicted) > 6


def test_a_bind_that_is_refused_once_changes_nothing() -> None:
    rig = Rig(ANY, node("a"), low(), high(namespace="refusing"))
    refusing = Refusing(rig)

    refusing.play(20)

    first, second = refusing.evicted
    assert second - first < WAIT_INITIAL_S


def test_an_equal_pod_whose_binds_are_not_refused_evicts_at_once() -> None:
    """It failed together with the other one, and waited for that one's turn to evict: 309 s here."""
    rig = Rig(ANY, node("a"), node("b"), low(), low("dearer", "b", priority=2), high(namespace="refusing"))
    Refusing(rig).play(WAIT_MAX_S // 2)
    before = len(rig.of(c.Evict))

    rig.observe(high("equal", namespace="refusing"))
    rig.pass_time(2)

    assert [evict.name for evict in rig.of(c.Evict)[before:]] == ["equal"]


def test_it_is_bound_at_once_where_it_fits_without_an_eviction() -> None:
    rig = Rig(ANY, node("a"), low(), high(namespace="refusing"))
    Refusing(rig).play(HOUR_S)
    before = len(rig.of(c.Bind))

    rig.observe(node("b"))
    rig.pass_time(15)

    assert [bind.node for bind in rig.of(c.Bind)[before:]] == ["b"]


def test_a_gang_whose_binds_are_refused_evicts_others_ever_more_seldom() -> None:
    rig = Rig(GANG, node("a"), node("b"), low(), low("other", "b"))
    rig.observe(*[member(number, namespace="refusing") for number in (1, 2)])
    refusing = Refusing(rig)

    refusing.play(HOUR_S)

    assert 5 < len(refusing.evicted) // 2 <= SOME


def test_a_gang_whose_members_are_refused_in_turns_evicts_others_ever_more_seldom() -> None:
    """The bound member was evicted for the refused one, and created again without its refusals: 484 evictions of others in an hour
    for a gang of four, 44 now."""
    rig = Rig(
        GANG.replace("min = least", "min = least on_bind_failure = evict"),
        node("a"),
        node("b"),
        low(),
        low("other", "b"),
    )
    rig.observe(*[member(number, namespace="refusing") for number in (1, 2)])
    evicted, refused, back = [0, 0], set[str](), list[Pod]()
    for second in range(HOUR_S):
        rig.observe(*back)
        back.clear()
        seen = len(rig.commands)
        rig.pass_time(1)
        for command in rig.commands[seen:]:
            if isinstance(command, c.Bind):
                if command.uid not in refused and len(refused) == evicted[1]:
                    refused.add(command.uid)
                    rig.handle(e.BindRefused(command.uid, "a webhook denied it"))
                else:
                    rig.handle(e.BindConfirmed(command.uid, command.node))
                    rig.handle(
                        e.PodUpdated(replace(rig.observed_pod(command.uid), node=command.node)),
                        e.PodUpdated(low(f"{command.node}-{second}", command.node)),
                    )
            elif isinstance(command, c.Evict):
                rig.handle(e.Evicted(command.uid, tuple(victim.uid for victim in command.victims)))
                for victim in command.victims:
                    own, observed = victim.namespace == "refusing", rig.observed_pod(victim.uid)
                    evicted[own] += 1
                    rig.handle(e.PodDeleted(victim.uid))
                    if own:
                        name = f"again-{evicted[1]}"
                        back.append(replace(observed.pod, uid=PodUid(f"uid-{name}"), name=name))

    assert 3 < len(refused) <= SOME
    assert evicted[0] <= 2 * SOME


def test_an_owner_whose_binds_are_refused_takes_quota_back_ever_more_seldom() -> None:
    rig = Rig(TEAMS.replace('"c"', '"refusing"'), node("n", cpu="100"))
    running(rig, pods("a", 8), pods("b", 4))
    rig.observe(pod("own", namespace="refusing", cpu="3"))
    refusing = Refusing(rig)

    refusing.play(HOUR_S)

    assert 5 < len(refusing.evicted) // 3 <= SOME
