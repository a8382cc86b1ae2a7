"""State machine test: a model of the API server, a lagging watch, and late or lost answers. The model
keeps its own accounts, independent of the state of the scheduler."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from policysched.cluster.cache import ClusterCache
from policysched.cluster.ledger import Ledger
from policysched.cluster.node_usage import NodeUsage
from policysched.model.identifiers import NodeName, PodUid
from policysched.model.pod_status import ObservedPod
from policysched.model.pods import Pod
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.bind_tracker import BindTracker
from policysched.scheduler.policies.registry import PolicyRegistry
from policysched.scheduler.policy_text_events import PolicyTextEvents
from policysched.scheduler.queue.gang_registry import QueuedGang
from policysched.scheduler.queue.parked_entries import ParkedEntries
from policysched.scheduler.queue.scheduling_queue import SchedulingQueue
from policysched.scheduler.scheduler import Scheduler
from tests.builders import node, pending, placed, pod
from tests.scheduler.rig import GANG, START_NS, bundle

WHOLE = ""  # the clauses of the gang besides its minimum
CLAUSES = (
    "mode = gate",
    "max = 3",
    "\n timeout = 5s\n on_timeout = requeue",
    "\n timeout = 5s\n on_timeout = fail",
    "\n timeout = 5s\n on_timeout = best_effort",
    "mode = gate\n timeout = 5s\n on_timeout = fail",
)
NODES = ("a", "b", "c")
LEAST = 2


@dataclass
class OnServer:
    """A pod as the API server has it. CPU in whole cores."""

    observed: ObservedPod
    cpu: int
    group: str | None


class Cluster(RuleBasedStateMachine):
    """The server's truth, and what of it is still on its way to the scheduler."""

    clauses = WHOLE

    def __init__(self) -> None:
        super().__init__()
        good = GANG.format(more=self.clauses)
        self.texts: dict[str, str | None] = {
            "good": good,
            "closed": good + 'filter closed reject pod.priority >= 0 says "closed"\n',
            "broken": good + "filter wrong require nothing < 3\n",
            "deleted": None,
        }
        self.scheduler = Scheduler()
        self.now_ns = START_NS
        self.nodes: dict[str, int] = {}
        self.pods: dict[PodUid, OnServer] = {}
        self.watch: list[e.Event] = []
        self.binds: dict[PodUid, c.Bind] = {}  # on their way
        self.answers: list[e.Event] = []  # on their way back
        self.leaving: dict[PodUid, str | None] = {}  # gone, and the watch has not said so yet
        self.serial = 0
        self.offers = 0
        self.offer("good")
        self.handle(e.Synced())

    # ── between the two ────────────────────────────────────────────────────────────────────────────────────────────

    def handle(self, event: e.Event) -> None:
        self.obey(self.scheduler.handle(event, self.now_ns))

    def obey(self, commands: list[c.Command]) -> None:
        batch = [command for command in commands if isinstance(command, c.Bind)]
        for bind in batch:
            assert bind.uid not in self.binds, f"{bind.name} is bound twice at once"
            assert self.scheduler._core.cache.ledger.placement(bind.uid) is not None, (
                "bound before it was assumed"
            )
            self.binds[bind.uid] = bind
        for group in {self.group_of(bind.uid) for bind in batch} - {None} if self.clauses == WHOLE else ():
            together = [uid for uid, state in self.pods.items() if state.group == group and self.counts(uid)]
            together += [uid for uid, left in self.leaving.items() if left == group]
            assert len(together) >= LEAST, f"half a gang: {together} of {LEAST}"

    def group_of(self, uid: PodUid) -> str | None:
        return self.pods[uid].group if uid in self.pods else None

    def counts(self, uid: PodUid) -> bool:
        """Whether a member is alive and on a node, or about to be."""
        observed = self.pods[uid].observed
        return not observed.deleting and (observed.node is not None or uid in self.binds)

    def free(self, name: str) -> int:
        """Cores that neither a bound pod nor a bind under way takes."""
        return self.nodes[name] - sum(
            state.cpu for uid, state in self.pods.items() if name in (state.observed.node, self.target(uid))
        )

    def target(self, uid: PodUid) -> str | None:
        return self.binds[uid].node if uid in self.binds else None

    def offer(self, which: str) -> None:
        self.offers += 1
        text = self.texts[which]
        offered = None if text is None else bundle({"main.policy": text})
        self.handle(e.PoliciesUpdated(offered, resource_version=str(self.offers)))

    def change(self, uid: PodUid, observed: ObservedPod) -> None:
        self.pods[uid].observed = observed
        self.watch.append(e.PodUpdated(observed))

    # ── what happens in the cluster ────────────────────────────────────────────────────────────────────────────────

    @rule(name=st.sampled_from(NODES), cpu=st.integers(0, 4))
    def a_node_appears(self, name: str, cpu: int) -> None:
        if name not in self.nodes:
            self.nodes[name] = cpu
            self.watch.append(e.NodeUpdated(node(name, cpu=str(cpu))))

    @rule(name=st.sampled_from(NODES))
    def an_empty_node_goes(self, name: str) -> None:
        if name in self.nodes and self.free(name) == self.nodes[name]:
            self.deliver_all()  # else the scheduler may choose it meanwhile
            if self.free(name) == self.nodes.get(name):
                del self.nodes[name]
                self.handle(e.NodeDeleted(NodeName(name)))

    @rule(cpu=st.integers(0, 3), priority=st.integers(0, 2), gated=st.booleans())
    def a_pod_is_created(self, cpu: int, priority: int, gated: bool) -> None:
        self.create(cpu=cpu, priority=priority, gates=["wait"] if gated else [])

    @rule(group=st.sampled_from(["x", "y"]), cpu=st.integers(1, 2))
    def a_member_is_created(self, group: str, cpu: int) -> None:
        self.create(cpu=cpu, group=group, labels={"group": group, "least": str(LEAST)})

    def create(self, *, cpu: int, group: str | None = None, **more: Any) -> None:
        self.serial += 1
        observed = pending(replace(pod(f"p{self.serial}", cpu=str(cpu), **more), created_ns=self.now_ns))
        self.pods[observed.pod.uid] = OnServer(observed, cpu, group)
        self.watch.append(e.PodUpdated(observed))

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def a_pod_is_deleted(self, data: st.DataObject) -> None:
        self.delete(data.draw(st.sampled_from(sorted(self.pods))))

    def delete(self, uid: PodUid) -> None:
        self.leaving[uid] = self.pods.pop(uid).group
        self.watch.append(e.PodDeleted(uid))

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def a_pod_begins_to_terminate(self, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(sorted(self.pods)))
        self.leaving[uid] = self.pods[uid].group
        self.change(uid, replace(self.pods[uid].observed, deleting=True))

    @precondition(lambda self: any(pod.observed.node for pod in self.pods.values()))
    @rule(data=st.data())
    def a_pod_finishes(self, data: st.DataObject) -> None:
        uid = data.draw(
            st.sampled_from(sorted(uid for uid, state in self.pods.items() if state.observed.node))
        )
        finished = self.pods.pop(uid)
        self.leaving[uid] = finished.group
        self.watch.append(e.PodUpdated(replace(finished.observed, phase="Succeeded")))

    @precondition(lambda self: any(state.observed.pod.gates for state in self.pods.values()))
    @rule(data=st.data())
    def gates_are_removed(self, data: st.DataObject) -> None:
        uid = data.draw(
            st.sampled_from(sorted(uid for uid, state in self.pods.items() if state.observed.pod.gates))
        )
        observed = self.pods[uid].observed
        self.change(uid, replace(observed, pod=replace(observed.pod, gates=())))

    @precondition(lambda self: self.nodes)
    @rule(data=st.data(), cpu=st.integers(0, 2))
    def another_scheduler_places_a_pod(self, data: st.DataObject, cpu: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.nodes)))
        self.deliver_all()
        if self.free(name) >= cpu:
            self.serial += 1
            observed = placed(pod(f"f{self.serial}", cpu=str(cpu), scheduler="default-scheduler"), name)
            self.pods[observed.pod.uid] = OnServer(observed, cpu, None)
            self.handle(e.PodUpdated(observed))

    @rule(which=st.sampled_from(["good", "closed", "broken", "deleted"]))
    def the_policy_is_edited(self, which: str) -> None:
        self.offer(which)

    @rule(seconds=st.sampled_from([0, 1, 3, 20]))
    def time_passes(self, seconds: int) -> None:
        self.now_ns += seconds * 10**9

    # ── what reaches the scheduler, and what it does ───────────────────────────────────────────────────────────────

    @precondition(lambda self: self.watch)
    @rule(count=st.integers(1, 4))
    def the_watch_delivers(self, count: int) -> None:
        for _ in range(min(count, len(self.watch))):
            self.deliver()

    def deliver_all(self) -> None:
        while self.watch:
            self.deliver()

    def deliver(self) -> None:
        event = self.watch.pop(0)
        match event:
            case e.PodDeleted(uid):
                self.leaving.pop(uid, None)
            case e.PodUpdated(observed) if observed.finished or observed.deleting:
                self.leaving.pop(observed.pod.uid, None)
            case _:
                pass
        self.handle(event)

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def a_relist_shows_a_pod_again(self, data: st.DataObject) -> None:
        self.deliver_all()
        uid = data.draw(st.sampled_from(sorted(self.pods)))
        self.handle(e.PodUpdated(self.pods[uid].observed))

    def decide(self) -> None:
        """Everything arrives and everything is decided; answers stay on their way."""
        self.deliver_all()
        while self.scheduler.ready(self.now_ns):
            self.obey(self.scheduler.decide(self.now_ns))

    @rule(steps=st.integers(1, 5))
    def the_scheduler_decides(self, steps: int) -> None:
        for _ in range(steps):
            if self.scheduler.ready(self.now_ns):
                self.obey(self.scheduler.decide(self.now_ns))

    @precondition(lambda self: self.binds)
    @rule(data=st.data(), refuse=st.booleans())
    def a_bind_reaches_the_server(self, data: st.DataObject, refuse: bool) -> None:
        uid = data.draw(st.sampled_from(sorted(self.binds)))
        if refuse:
            del self.binds[uid]
            self.answers.append(e.BindRefused(uid, "the server is not well"))
        else:
            self.carry_out(uid)

    def carry_out(self, uid: PodUid) -> None:
        bind, pending_pod = self.binds.pop(uid), self.pods.get(uid)
        if pending_pod is None or pending_pod.observed.deleting:
            self.answers.append(e.BindLost(uid, "gone"))
        else:
            self.change(uid, replace(pending_pod.observed, node=bind.node))
            self.answers.append(e.BindConfirmed(uid, bind.node))

    @precondition(lambda self: self.answers)
    @rule(data=st.data())
    def an_answer_comes_back(self, data: st.DataObject) -> None:
        self.handle(self.answers.pop(data.draw(st.integers(0, len(self.answers) - 1))))

    # ── what always holds ──────────────────────────────────────────────────────────────────────────────────────────

    @invariant()
    def no_node_is_over_capacity(self) -> None:
        for name in self.nodes:
            assert self.free(name) >= 0, f"{name} is over capacity by {-self.free(name)}"

    @invariant()
    def the_parts_agree(self) -> None:
        assert self.scheduler.check() == []

    @invariant()
    def the_last_valid_text_is_active(self) -> None:
        running = [
            policy.sha256 for policy in self.scheduler.policies() if policy.name == "test" and policy.sha256
        ]
        assert running in ([sha(self.texts["good"])], [sha(self.texts["closed"])])

    # ── what finally holds ─────────────────────────────────────────────────────────────────────────────────────────

    def teardown(self) -> None:
        self.offer("good")
        for _ in range(20):
            self.deliver_all()
            for uid in list(self.binds):
                self.carry_out(uid)
            while self.answers:
                self.handle(self.answers.pop())
            self.now_ns += 11 * 10**9
            self.decide()
            self.no_node_is_over_capacity()
            self.the_parts_agree()
        assert not self.binds and self.scheduler.binds_in_flight == 0
        self.no_pod_that_fits_waits()

    def no_pod_that_fits_waits(self) -> None:
        for state in self.pods.values():
            observed = state.observed
            waits = observed.node is None and not observed.deleting and not observed.pod.gates
            if not waits or observed.pod.scheduler != "test":
                continue
            bound = [
                other
                for other in self.pods.values()
                if other.group == state.group and other.observed.node and not other.observed.deleting
            ]
            if state.group is None or (self.clauses == WHOLE and len(bound) >= LEAST - 1):
                room = [name for name in self.nodes if self.free(name) >= state.cpu]
                assert not room, f"{observed.pod.name} of {state.cpu} waits, and {room} have room"


@cache
def sha(text: str | None) -> str:
    program = bundle({"main.policy": text or ""}).sources["main.policy"].program
    assert program is not None
    return program.sha256


SEARCH = settings(
    max_examples=80,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
HUNT = settings(SEARCH, max_examples=300, phases=[Phase.generate])


def test_invariants_hold_and_no_pod_that_fits_waits_forever() -> None:
    run_state_machine_as_test(Cluster, settings=SEARCH)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("clauses", CLAUSES)
def test_invariants_hold_for_every_kind_of_gang(clauses: str) -> None:
    kind = type("ClusterWithSuchGangs", (Cluster,), {"clauses": clauses})

    run_state_machine_as_test(kind, settings=settings(SEARCH, max_examples=15))  # type: ignore[no-untyped-call]


# ── histories: what the search would find in time, written down ────────────────────────────────────────────────────


def a_bind_is_refused(cluster: Cluster) -> None:
    cluster.a_node_appears(name="a", cpu=1)
    cluster.create(cpu=1)
    cluster.decide()
    cluster.binds.clear()
    cluster.handle(e.BindRefused(PodUid("uid-default-p1"), "the server is not well"))


def a_pod_is_deleted_between_its_bind_and_the_answer(cluster: Cluster) -> None:
    cluster.a_node_appears(name="a", cpu=1)
    cluster.create(cpu=1)
    cluster.decide()
    cluster.carry_out(PodUid("uid-default-p1"))
    cluster.delete(PodUid("uid-default-p1"))
    cluster.decide()
    cluster.create(cpu=1)


def room_comes_for_pods_that_agree(cluster: Cluster) -> None:
    cluster.a_node_appears(name="a", cpu=0)
    for _ in range(3):
        cluster.create(cpu=1)
    cluster.decide()
    cluster.a_node_appears(name="b", cpu=4)


def a_policy_that_rejected_all_pods_is_corrected(cluster: Cluster) -> None:
    cluster.a_node_appears(name="a", cpu=1)
    cluster.offer("closed")
    cluster.create(cpu=1)
    cluster.decide()
    assert not cluster.binds, "the edited text lets nobody through"


def a_placed_pod_is_deleted(cluster: Cluster) -> None:
    cluster.a_node_appears(name="a", cpu=1)
    cluster.create(cpu=1)
    cluster.decide()
    cluster.carry_out(PodUid("uid-default-p1"))
    cluster.decide()
    cluster.create(cpu=1)
    cluster.decide()
    cluster.delete(PodUid("uid-default-p1"))


History = Callable[[Cluster], None]
HISTORIES: tuple[History, ...] = (
    a_bind_is_refused,
    a_pod_is_deleted_between_its_bind_and_the_answer,
    room_comes_for_pods_that_agree,
    a_policy_that_rejected_all_pods_is_corrected,
    a_placed_pod_is_deleted,
)


def replay(history: History) -> None:
    """The history, and then everything that finally holds."""
    cluster = Cluster()
    history(cluster)
    cluster.teardown()


@pytest.mark.parametrize("history", HISTORIES, ids=lambda history: history.__name__)
def test_a_history_ends_well(history: History) -> None:
    replay(history)


# ── planted bugs: the search or a history catches each ─────────────────────────────────────────────────────────────


def gives(result: object) -> Callable[..., object]:
    return lambda *_args, **_more: result


def forgets_its_status(policies: PolicyRegistry, name: str, *_more: object) -> None:
    del policies._status[name]


def accepts_every_confirmation(binding: BindTracker, uid: PodUid, node_name: NodeName, now_ns: int) -> None:
    flight, _ = binding._core.binds.remove(uid, now_ns)
    assert flight is not None
    binding._core.cache.confirm(flight.pod.pod, node_name)
    binding._enqueuer.remove(flight.pod, now_ns)


def adds_no_requests(usage: NodeUsage, pod: Pod) -> None:
    usage.pods[pod.uid] = pod


@pytest.mark.parametrize(
    ("owner", "name", "bug", "message"),
    [
        (NodeUsage, "add", adds_no_requests, "is over capacity|ledger has .*, recounted"),
        (QueuedGang, "needed_count", property(gives(0)), "half a gang"),
        (PolicyRegistry, "_fall_back", forgets_its_status, r"is active without a status|assert \[\] in"),
    ],
    ids=["requests are not counted", "half a gang is enough", "a broken text ends the running one"],
)
def test_a_planted_bug_is_found_by_the_search(
    owner: type, name: str, bug: object, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, bug)

    with pytest.raises(AssertionError, match=message):
        run_state_machine_as_test(Cluster, settings=HUNT)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    ("owner", "name", "bug", "history", "message"),
    [
        (ClusterCache, "withdraw", gives(frozenset()), a_bind_is_refused, "no bind is in flight"),
        (Ledger, "remove", gives(None), a_placed_pod_is_deleted, "have room"),
        (
            BindTracker,
            "on_confirmed",
            accepts_every_confirmation,
            a_pod_is_deleted_between_its_bind_and_the_answer,
            "have room",
        ),
        (SchedulingQueue, "requeue", gives(None), room_comes_for_pods_that_agree, "have room"),
        (
            ParkedEntries,
            "return_representative",
            gives(None),
            room_comes_for_pods_that_agree,
            "no requeued one",
        ),
        (
            PolicyTextEvents,
            "enqueue_again",
            gives(None),
            a_policy_that_rejected_all_pods_is_corrected,
            "have room",
        ),
    ],
    ids=[
        "a withdrawn promise is not given back",
        "a deleted pod keeps its room",
        "a confirmation for a deleted pod is believed",
        "an event wakes nobody",
        "kin do not follow one another",
        "a new text wakes nobody",
    ],
)
def test_a_planted_bug_is_found_by_a_history(
    owner: type, name: str, bug: object, history: History, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, bug)

    with pytest.raises(AssertionError, match=message):
        replay(history)
