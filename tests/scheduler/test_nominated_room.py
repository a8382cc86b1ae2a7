"""Random histories of nominated pods: nobody of lower or equal priority takes the room of one, who has a higher priority may, and
it is free once the nomination ends. Kept beside a model that knows the commands and the watch alone.

As kube-scheduler's `RunFilterPluginsWithNominatedPods`: a node has to have room beside the pods of equal or higher priority
that are nominated to it.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import pytest

from policysched.cluster.nominations import Nominations
from policysched.model.identifiers import NodeName, PodUid
from policysched.model.pod_status import ObservedPod
from policysched.model.pods import Pod
from policysched.scheduler import attempt
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.policy_membership import PolicyMembership
from policysched.scheduler.preemption import default_preemption
from policysched.scheduler.preemption.eviction_tracker import EvictionTracker
from policysched.scheduler.preemption.nominations import competing_nominations
from policysched.scheduler.queue.scheduling_queue import SchedulingQueue
from tests.builders import node, pending, placed, pod
from tests.scheduler.rig import Rig
from tests.seeded_random import SeededRandom

POLICY = """\
policy test version 1
filter node_resources_fit
preemption { victims = any }
"""
OF_OTHERS = """\
policy other version 1
filter node_resources_fit
preemption never
"""
THEIRS = "somebody-else"
CORES = 4
STEPS = 60
SEEDS = range(40)


@dataclass(slots=True)
class Nomination:
    """What was written to `nominatedNodeName`, and how much of that the watch has shown. `own`: by the scheduler. Of several
    writes on their way it cannot tell which one the watch shows, as kube-scheduler cannot: nothing is known until all are shown."""

    values: list[str | None] = field(default_factory=lambda: [None])
    own: list[bool] = field(default_factory=lambda: [True])
    shown: int = 0
    is_known: bool = True

    def write(self, node: str | None, *, own: bool) -> None:
        self.values.append(node)
        self.own.append(own)
        self.is_known = self.is_known and self.unseen <= 1

    def show(self) -> None:
        self.shown += 1
        self.is_known = self.is_known or not self.unseen

    @property
    def unseen(self) -> int:
        return len(self.values) - 1 - self.shown

    @property
    def node(self) -> str | None:
        """What counts now: own decisions at once, others when the watch shows them."""
        return self.values[-1] if self.unseen and self.own[-1] else self.values[self.shown]


class World:
    """The scheduler, and what it should know: `waiting` are pending pods, `placed` those on nodes or on their way."""

    def __init__(self, seed: int) -> None:
        self.random = SeededRandom(seed)
        self.rig = Rig({"test.policy": POLICY, "other.policy": OF_OTHERS})
        self.nodes: dict[str, int] = {}
        self.waiting: dict[str, Pod] = {}
        self.placed: dict[str, tuple[Pod, str]] = {}
        self.ending: set[str] = set()
        self.nominations: dict[str, Nomination] = {}
        self.unanswered: dict[str, c.Evict] = {}
        self.created = 0
        scheduler = self.rig.scheduler
        scheduler.decide = self._watched(scheduler.decide)  # type: ignore[method-assign]
        scheduler.handle = self._watched(scheduler.handle)  # type: ignore[method-assign]
        for name in ("a", "b", "c"):
            self.add_node(name)

    def _watched(self, work: Callable[..., list[c.Command]]) -> Callable[..., list[c.Command]]:
        def watched(*arguments: object) -> list[c.Command]:
            commands = work(*arguments)
            for command in commands:
                self._apply(command)
            return commands

        return watched

    # ── the model ────────────────────────────────────────────────────────────────────────────────────────────────

    def used(self, name: str) -> int:
        return sum(cores(each) for each, on in self.placed.values() if on == name)

    def promised(self, name: str, than: Pod) -> int:
        """The room of others on this node that the pod has to leave."""
        return sum(
            cores(self.waiting[uid])
            for uid, nomination in self.nominations.items()
            if uid in self.waiting and uid != than.uid and nomination.is_known
            if nomination.node == name and self.waiting[uid].priority >= than.priority
        )

    def is_known(self, name: str) -> bool:
        """Whether all nominations are, that may be to this node."""
        return all(
            each.is_known or name not in each.values[each.shown :]
            for uid, each in self.nominations.items()
            if uid in self.waiting
        )

    def has_room(self, name: str, for_pod: Pod, without: int = 0) -> bool:
        used = self.used(name) + self.promised(name, for_pod)
        return used + cores(for_pod) - without <= self.nodes[name]

    def _apply(self, command: c.Command) -> None:
        match command:
            case c.Bind(uid=uid, node=on):
                own = self.waiting.pop(uid)
                assert self.has_room(on, own), f"{own.name} takes the room of a nominated pod on {on}"
                self.placed[uid] = own, on
            case c.Evict(uid=uid, node=on) if on is not None:
                self._check_eviction(command, self.waiting[uid], on)
                self.nominations[uid].write(on, own=True)
                self.unanswered[uid] = command
            case c.ClearNomination(uid=uid):
                self.nominations[uid].write(None, own=True)

    def _check_eviction(self, evict: c.Evict, own: Pod, on: str) -> None:
        if not all(map(self.is_known, self.nodes)):
            return
        fits = [name for name in self.nodes if self.has_room(name, own)]
        assert not fits, f"{own.name} evicts pods on {on} and fits on {fits}"
        gone = self.ending | {
            victim.uid for each in (evict, *self.unanswered.values()) for victim in each.victims
        }
        free = sum(cores(each) for uid, (each, where) in self.placed.items() if uid in gone and where == on)
        assert self.has_room(on, own, free), f"{own.name} evicts pods on {on} and does not fit there"
        for victim in evict.victims:
            each, _ = self.placed[victim.uid]
            assert each.priority < own.priority, f"{own.name} evicts {each.name}"

    def overlooked(self) -> Iterator[str]:
        """At rest: pods that wait although a node has room for them, and nominations without a pod that ends."""
        for uid, own in self.waiting.items():
            if own.scheduler == THEIRS:
                continue
            for name in self.nodes:
                if self.has_room(name, own):
                    yield f"{own.name} waits, and {name} has room"
            nomination = self.nominations[uid]
            if nomination.node is not None and nomination.own[-1]:
                yield f"{own.name} is nominated to {nomination.node} for nothing"

    # ── what happens ─────────────────────────────────────────────────────────────────────────────────────────────

    def add_node(self, name: str, size: int = CORES) -> None:
        self.nodes[name] = size
        self.rig.observe(node(name, cpu=str(size)))

    def step(self) -> None:
        actions: list[Callable[[], None]] = [
            self.create,
            self.create,
            self.create,
            self.place_another,
            self.answer_eviction,
            self.answer_eviction,
            self.end_a_victim,
            self.end_a_victim,
            self.show,
            self.show,
            self.delete,
            self.nominate_another,
            self.clear,
            self.change,
            self.change_node,
            self.refuse_a_bind,
            self.confirm,
        ]
        self.random.choice(actions)()
        if self.random.one_in(3):
            self.rig.pass_time(self.random.choice((0.5, 2, 15)))
        else:
            self.rig.settle()

    def _pick(self, uids: object) -> str | None:
        known = sorted(uids)  # type: ignore[call-overload]
        return self.random.choice(known) if known else None

    def create(self) -> None:
        self.created += 1
        own = pod(
            f"p{self.created}",
            cpu=str(self.random.randint(1, CORES)),
            priority=self.random.choice((0, 10, 20)),
            scheduler=self.random.choice(("test", "test", "test", "other", THEIRS)),
        )
        self.waiting[own.uid], self.nominations[own.uid] = own, Nomination()
        self.rig.observe(own)

    def place_another(self) -> None:
        """Another scheduler, which may overcommit the node."""
        name = self._pick(self.nodes)
        if name is None:
            return
        self.created += 1
        other = pod(f"p{self.created}", cpu="1", priority=self.random.choice((0, 10)), scheduler=THEIRS)
        self.placed[other.uid] = other, name
        self.rig.observe(placed(other, name))

    def answer_eviction(self) -> None:
        uid = self._pick(self.unanswered)
        if uid is None:
            return
        evict = self.unanswered.pop(uid)
        victims = [victim.uid for victim in evict.victims if victim.uid in self.placed]
        if self.random.one_in(4):
            gone = victims[: len(victims) // 2]
            refused = victims[-1] if victims and self.random.one_in(2) else None
            self.ending.update(gone)
            self.rig.handle(
                e.EvictionRefused(
                    evict.uid, "no", forbidden=False, victims=tuple(map(PodUid, gone)), refused=refused
                )
            )
        else:
            self.ending.update(victims)
            unbound = [victim.uid for victim in evict.victims if victim.uid in self.waiting]
            self.rig.handle(e.Evicted(evict.uid, tuple(map(PodUid, victims))))
            for victim in unbound:  # its bind was refused meanwhile
                self._gone(victim)
        for victim in victims:
            if victim in self.ending and victim in self.placed and self.random.one_in(2):
                own, on = self.placed[victim]
                self.rig.handle(e.PodUpdated(replace(placed(own, on), deleting=True, preempted=True)))

    def end_a_victim(self) -> None:
        uid = self._pick(self.ending & self.placed.keys())
        if uid is not None:
            self._gone(uid)

    def delete(self) -> None:
        uid = self._pick(self.waiting.keys() | self.placed.keys())
        if uid is not None:
            self._gone(uid)

    def _gone(self, uid: str) -> None:
        self.waiting.pop(uid, None)
        self.placed.pop(uid, None)
        self.ending.discard(uid)
        self.rig.handle(e.PodDeleted(PodUid(uid)))

    def _observed(self, uid: str) -> ObservedPod:
        nomination = self.nominations[uid]
        value = nomination.values[nomination.shown]
        by_other = value is not None and not nomination.own[nomination.shown]
        return replace(
            pending(self.waiting[uid]),
            nominated_node=None if value is None else NodeName(value),
            nominated_by_other=by_other,
        )

    def show(self) -> None:
        """The watch shows the next write of a nomination."""
        uid = self._pick({uid for uid in self.waiting if self.nominations[uid].unseen})
        if uid is not None:
            self.nominations[uid].show()
            self.rig.observe(self._observed(uid))

    def nominate_another(self) -> None:
        """Another component nominates a pod, of any scheduler."""
        self._write(self._pick(self.waiting), self._pick(self.nodes))

    def clear(self) -> None:
        nominated = {uid for uid in self.waiting if self.nominations[uid].values[-1] is not None}
        self._write(self._pick(nominated), None)

    def _write(self, uid: str | None, node: str | None) -> None:
        if uid is not None:
            self.nominations[uid].write(node, own=False)

    def change(self) -> None:
        """A pending pod is resized."""
        uid = self._pick(self.waiting)
        if uid is not None:
            self.waiting[uid] = replace(self.waiting[uid], requests={"cpu": self.random.randint(1, 4) * 1000})
            self.rig.observe(self._observed(uid))

    def change_node(self) -> None:
        name = self.random.choice("abcd")
        if name in self.nodes and self.random.one_in(2) and len(self.nodes) > 1:
            del self.nodes[name]
            self.rig.handle(e.NodeDeleted(NodeName(name)))
        else:
            self.add_node(name, self.random.randint(2, 6))

    def refuse_a_bind(self) -> None:
        bind = self._a_bind()
        if bind is not None and bind.uid not in self.ending:
            own, _ = self.placed.pop(bind.uid)
            self.waiting[bind.uid] = own
            self.rig.handle(e.BindRefused(bind.uid, "no"))

    def confirm(self) -> None:
        bind = self._a_bind()
        if bind is not None:
            self._confirm(bind)

    def _confirm(self, bind: c.Bind) -> None:
        own, on = self.placed[bind.uid]
        self.rig.handle(e.BindConfirmed(bind.uid, bind.node), e.PodUpdated(placed(own, on)))

    def _a_bind(self) -> c.Bind | None:
        binds = [bind for bind in self.rig.in_flight_binds() if bind.uid in self.placed]
        return self.random.choice(binds) if binds else None

    def come_to_rest(self) -> None:
        """Everything is answered and shown, victims end, and backoffs are over."""
        for _ in range(100):
            self.rig.pass_time(60)
            moves = bool(self.unanswered)
            while self.unanswered:
                self.answer_eviction()
            for uid in sorted(self.ending & self.placed.keys()):
                moves = True
                self._gone(uid)
            while (bind := self._a_bind()) is not None:
                moves = True
                self._confirm(bind)
            while any(self.nominations[uid].unseen for uid in self.waiting):
                moves = True
                self.show()
            if not moves:
                return
        raise AssertionError("evictions do not end")


def cores(of: Pod) -> int:
    return of.requests["cpu"] // 1000


def play(seed: int) -> None:
    world = World(seed)
    for _ in range(STEPS):
        world.step()
    world.come_to_rest()
    assert list(world.overlooked()) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_nominated_room_is_kept_from_lower_priority_alone_and_while_the_nomination_lasts(seed: int) -> None:
    play(seed)


# ── bugs ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

Competing = list[tuple[Pod, NodeName]]
Patch = pytest.MonkeyPatch


def _plant_competing(patch: Patch, found: Callable[[SchedulerCore, Pod], Competing]) -> None:
    for module in (attempt, default_preemption):
        patch.setattr(module, "competing_nominations", lambda core, of, *_, **__: found(core, of))


def nominations_reserve_nothing(patch: Patch) -> None:
    _plant_competing(patch, lambda *_: [])


def equal_priority_takes_the_room(patch: Patch) -> None:
    _plant_competing(
        patch,
        lambda core, of: [each for each in competing_nominations(core, of) if each[0].priority > of.priority],
    )


def higher_priority_is_kept_from_the_room(patch: Patch) -> None:
    _plant_competing(patch, lambda core, of: competing_nominations(core, replace(of, priority=-1)))


def a_nomination_outlives_its_pod(patch: Patch) -> None:
    patch.setattr(Nominations, "forget", lambda *_: None)


def a_nomination_keeps_the_requests_of_its_beginning(patch: Patch) -> None:
    put = Nominations._put

    def put_first(self: Nominations, observed: ObservedPod) -> None:
        known = self.by_pod.get(observed.pod.uid)
        put(self, observed if known is None else replace(observed, pod=known.pod))

    patch.setattr(Nominations, "_put", put_first)


def the_watch_withdraws_no_nomination(patch: Patch) -> None:
    put = Nominations.put_observed

    def put_nominated(self: Nominations, observed: ObservedPod) -> None:
        known = self.by_pod.get(observed.pod.uid)
        if known is not None and observed.nominated_node is None:
            observed = replace(observed, nominated_node=known.nominated_node)
        put(self, observed)

    patch.setattr(Nominations, "put_observed", put_nominated)


def nominations_are_never_withdrawn(patch: Patch) -> None:
    patch.setattr(SchedulerCore, "withdraw_nomination", lambda *_: None)


def a_refusal_wakes_nobody_else(patch: Patch) -> None:
    refused = EvictionTracker.on_eviction_refused

    def quietly(self: EvictionTracker, event: e.EvictionRefused, now_ns: int) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(SchedulingQueue, "requeue", lambda *_, **__: None)
            refused(self, event, now_ns)

    patch.setattr(EvictionTracker, "on_eviction_refused", quietly)


def a_nominated_pod_stays_in_its_class(patch: Patch) -> None:
    patch.setattr(PolicyMembership, "leave_parked_group", lambda *_: None)


@pytest.mark.parametrize(
    ("bug", "seeds", "message"),
    [
        (nominations_reserve_nothing, SEEDS, "takes the room"),
        (equal_priority_takes_the_room, SEEDS, "takes the room"),
        (higher_priority_is_kept_from_the_room, SEEDS, "evicts pods on . and fits on"),
        (a_nomination_outlives_its_pod, SEEDS, "waits, and . has room"),
        (a_nomination_keeps_the_requests_of_its_beginning, [96], "takes the room|has room"),
        (the_watch_withdraws_no_nomination, SEEDS, "waits, and . has room"),
        (nominations_are_never_withdrawn, SEEDS, "for nothing"),
        (a_refusal_wakes_nobody_else, [263], "for nothing"),
        (a_nominated_pod_stays_in_its_class, [219], "waits, and . has room"),
    ],
)
def test_a_planted_bug_is_found(
    bug: Callable[[Patch], None], seeds: Sequence[int], message: str, monkeypatch: Patch
) -> None:
    bug(monkeypatch)
    for seed in seeds:
        try:
            play(seed)
        except AssertionError as problem:
            if re.search(message, str(problem)):
                return
    pytest.fail("no seed finds it")
