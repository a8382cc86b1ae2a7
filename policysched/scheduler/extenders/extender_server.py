"""The policies asked from outside: what another scheduler wants to know through the extender protocol.

It sees the same events as the scheduler, so policies reload and metrics age in the same way, but it has no queue and
decides nothing. Every answer is of the cluster as it stands at that moment:

    Question ──► the nodes that were sent whole take the place of those that we know, for the length of this answer
             ──► Evaluator.judge: refusals and totals of the nodes asked about, all others set aside
             ──► Filtered, scores 0..10, or the nodes that are kept for preemption

What is placed is known from the watch, so a pod that the other scheduler has just decided counts a moment late, unless
it binds through us: then `assume` counts it at once.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Literal

from policysched.cluster.devices.availability import DeviceStock
from policysched.cluster.ledger import PlacementState
from policysched.evaluate import Overlay, Plan
from policysched.lang.ir.program import Metric, Program
from policysched.lang.ir.verdict import Judgement
from policysched.model.objects import Node, NodeName, ObservedPod, Pod, PodFacts, PodUid
from policysched.scheduler import events as e
from policysched.scheduler.commands import Bind, Command
from policysched.scheduler.core import Core
from policysched.scheduler.limits import Limits
from policysched.scheduler.policies.first_samples import SourceOf
from policysched.scheduler.policies.outages import Outages
from policysched.scheduler.policies.policies import PolicyStatus, ReloadResult
from policysched.scheduler.policies.reload import Reload
from policysched.scheduler.preemption.nominated import reserved_for_others
from policysched.scheduler.queue.standing import Standing

EXTENDER_SCORE_MAX = 10
UNKNOWN_NODE = "node(s) that the extender does not know yet"

Scale = Literal["policy", "candidates"]
"""What the greatest score stands for: the most that the policy can give, or the best of the nodes asked about."""


class NoAnswer(Exception):
    """Why there is no answer, in words for whoever asked. `ready` False: there may be one in a moment."""

    def __init__(self, why: str, *, ready: bool) -> None:
        super().__init__(why)
        self.ready = ready


@dataclass(frozen=True, slots=True)
class Question:
    """`nodes` None: only names were sent."""

    policy: str
    pod: Pod
    names: tuple[NodeName, ...]
    nodes: tuple[Node, ...] | None


@dataclass(frozen=True, slots=True)
class Filtered:
    """Each node asked about is in one of the three. `hopeless`: evicting pods would not help there. The words are those
    that our own events have, in which a value that differs from node to node is written `…`."""

    passed: tuple[NodeName, ...]
    failed: Mapping[NodeName, str]
    hopeless: Mapping[NodeName, str]


@dataclass(frozen=True, slots=True)
class Victims:
    """Who is to go from one node; `pods` has those that were sent whole."""

    uids: tuple[PodUid, ...]
    pods: Mapping[PodUid, Pod]


class _NobodyWaits:
    """No pod of ours waits for anything here."""

    def prepare(self, program: Program, plan: Plan, now_ns: int) -> Iterator[dict[PodUid, Standing]]:
        del program, plan, now_ns
        return iter(())

    def gather(self, policy: str, now_ns: int) -> None:
        del policy, now_ns


class Answering:
    """`handle` what happened; between that, ask. Raises NoAnswer from each question."""

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        first_samples_s: float = 0.0,
        source_of: SourceOf = attrgetter("source"),
    ) -> None:
        """`first_samples_s` and `source_of`: as `Scheduler` has them."""
        self._core = Core(limits or Limits(), first_samples_s=first_samples_s, source_of=source_of)
        self._outages = Outages(self._core)
        self._reload = Reload(self._core, _NobodyWaits())
        self._synced = False
        self._asked = False
        self._binding: dict[PodUid, NodeName] = {}

    # ── events ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def handle(self, event: e.Event, now_ns: int) -> list[Command]:
        """Apply one event."""
        core, cache = self._core, self._core.cache
        match event:
            case e.PodSeen(pod):
                self._pod_seen(pod, now_ns)
            case e.PodGone(uid):
                cache.drop_pod(uid)
                core.states.gone(uid)
                core.assumed.left(uid)
            case e.NodeSeen(node):
                cache.put_node(node)
            case e.NodeGone(name):
                cache.drop_node(name)
            case e.NodeObjectSeen(kind, name, text):
                cache.put_node_object(kind, name, text)
            case e.NodeObjectGone(kind, name):
                cache.drop_node_object(kind, name)
            case e.NamespaceSeen(namespace):
                cache.put_namespace(namespace)
            case e.NamespaceGone(name):
                cache.drop_namespace(name)
            case e.PodSetSeen(pod_set):
                cache.put_pod_set(pod_set)
            case e.PodSetGone(kind, namespace_name, name):
                cache.drop_pod_set(kind, namespace_name, name)
            case e.StorageSeen(seen):
                cache.put_storage(seen)
            case e.StorageGone(storage_kind, namespace_name, name):
                cache.drop_storage(storage_kind, namespace_name, name)
            case e.Synced():
                self._synced = True
            case e.PoliciesOffered():
                self._reload.offer(event, now_ns, synced=self._synced, decided=self._asked)
            case e.StatesKept(texts):
                core.restore_states(texts)
            case e.SamplesArrived(policy, metric, samples):
                core.take_samples(policy, metric, samples)
                self._reload.asked(policy, metric)
                self._outages.look(policy, now_ns)
            case e.SamplesFailed(policy, metric):
                self._reload.asked(policy, metric)
                self._outages.look(policy, now_ns)
            case e.BindConfirmed(uid, node_name):
                self._bound(uid, node_name, now_ns)
            case e.BindRefused(uid) | e.BindLost(uid):
                self._not_bound(uid)
            case _:
                raise AssertionError(f"nobody asked for {event}")
        return self._commands()

    @property
    def busy(self) -> bool:
        """Whether a policy is being prepared that is to replace another: `advance` does a slice of that."""
        return self._reload.busy

    def advance(self, now_ns: int) -> list[Command]:
        """What time has made due, and one slice of what `busy` means."""
        self._outages.advance(now_ns)
        self._core.out += self._core.first_samples.advance(now_ns)
        self._core.keep_states(now_ns)
        if self._reload.busy:
            self._reload.step(now_ns)
        return self._commands()

    def _commands(self) -> list[Command]:
        out, self._core.out = self._core.out, []
        return out

    def _pod_seen(self, seen: ObservedPod, now_ns: int) -> None:
        core, uid = self._core, seen.pod.uid
        before = core.cache.ledger.placement(uid)
        core.feed_states(seen, now_ns)
        core.cache.put_pod(seen)
        if self._synced:
            core.follow_placement(uid, before, now_ns)

    # ── filter and prioritize ──────────────────────────────────────────────────────────────────────────────────────

    def filter(self, question: Question, now_ns: int) -> Filtered:
        """Which of the nodes the policy lets the pod go to, and why not to the others."""
        found = self._judge(question, now_ns)
        if found.pod_refusal is not None:
            return Filtered((), {}, dict.fromkeys(question.names, found.pod_refusal))
        passed, failed, hopeless = [], dict[NodeName, str](), dict[NodeName, str]()
        for name in question.names:
            refusal = found.refusals.get(name)
            if name in found.totals:
                passed.append(name)
            elif refusal is None:
                failed[name] = UNKNOWN_NODE
            else:
                (failed if refusal.resolvable else hopeless)[name] = ", ".join(refusal.groups)
        return Filtered(tuple(passed), failed, hopeless)

    def scores(self, question: Question, scale: Scale, now_ns: int) -> dict[NodeName, int]:
        """0 to 10 for each node: the policy's total in whole numbers, rounded once, halves up. A node that the policy
        refuses, or that is not known, gets 0 and sets no scale."""
        totals = self._judge(question, now_ns)
        found = _scaled(totals, scale)
        return {name: found.get(name, 0) for name in question.names}

    def _judge(self, question: Question, now_ns: int) -> Judgement:
        core, plan = self._core, self._plan(question.policy)
        pod = _less_what_others_see_to(question.pod, plan, DeviceStock(core.cache.devices))
        with self._sent(question.nodes or ()):
            return core.evaluator.judge(
                plan,
                pod,
                question.names,
                now_ns=now_ns,
                facts=_facts(pod, now_ns),
                samples=core.samples.get(question.policy, {}),
                overlay=self._overlay(pod),
                reserved=reserved_for_others(core, pod),
            )

    @contextmanager
    def _sent(self, nodes: tuple[Node, ...]) -> Iterator[None]:
        """What was sent counts, for the length of one answer."""
        cache, before = self._core.cache, dict[NodeName, Node | None]()
        for node in nodes:
            known = cache.nodes.get(node.name)
            if known is not node and known != node:
                before[node.name] = known
                cache.put_node(node)
        try:
            yield
        finally:
            for name, known in before.items():
                if known is None:
                    cache.drop_node(name)
                else:
                    cache.put_node(known)

    def _overlay(self, pod: Pod) -> Overlay | None:
        """Where the pod itself is bound already (asked again after an answer was lost), its own room is free for it."""
        core = self._core
        if core.cache.ledger.placement(pod.uid) is None:
            return None
        overlay = core.evaluator.overlay()
        overlay.remove(pod.uid)
        return overlay

    # ── preempt ────────────────────────────────────────────────────────────────────────────────────────────────────

    def preempt(
        self, policy: str, pod: Pod, victims: Mapping[NodeName, Victims], now_ns: int
    ) -> tuple[NodeName, ...]:
        """The nodes where the policy lets the pod evict every one of the victims and would have the pod once they are
        gone. A node that is not known, or a victim sent by a UID that is not, leaves the node out: nobody goes
        for what cannot be judged."""
        core, plan = self._core, self._plan(policy)
        pod = _less_what_others_see_to(pod, plan, DeviceStock(core.cache.devices))
        space, facts = core.namespace_of(pod), _facts(pod, now_ns)
        if plan.admission(pod, space) is not None:
            return ()
        may_evict = plan.may_evict(pod, space, facts, now_ns)
        dry_run = core.evaluator.dry_run(
            plan,
            pod,
            now_ns=now_ns,
            facts=facts,
            samples=core.samples.get(policy, {}),
            overlay=self._overlay(pod),
            reserved=reserved_for_others(core, pod),
        )
        kept = []
        for node, those in victims.items():
            pods = [self._victim(uid, node, those) for uid in those.uids]
            if node not in core.cache.nodes or not all(one is not None and may_evict(one) for one in pods):
                continue
            here = [uid for uid in those.uids if core.cache.ledger.placement(uid) is not None]
            for uid in here:
                dry_run.overlay.remove(uid)
            if not dry_run.refusals([node])[0]:
                kept.append(node)
            for uid in here:
                dry_run.overlay.put_back(uid)
        return tuple(kept)

    def _victim(self, uid: PodUid, node: NodeName, those: Victims) -> Pod | None:
        """None: not known. One that was sent whole and is not on the node any more is gone already."""
        placement = self._core.cache.ledger.placement(uid)
        if placement is not None:
            return placement.pod if placement.node == node else None
        return those.pods.get(uid)

    # ── bind ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def assume(
        self, policy: str, uid: PodUid, namespace: str, name: str, node: NodeName, now_ns: int
    ) -> Bind:
        """Count the pod on the node from now on; the command is to be carried out and its outcome told."""
        core = self._core
        plan = self._plan(policy)
        under_way = self._binding.get(uid)
        if under_way is not None:
            raise NoAnswer(f"an earlier bind to {under_way} is not answered yet", ready=True)
        self._binding[uid] = node
        seen, before = core.cache.pods.get(uid), core.cache.ledger.placement(uid)
        if seen is not None and before is None:
            core.cache.assume(seen.pod, node)
            core.follow_placement(uid, None, now_ns)
        return Bind(uid, namespace, name, node, policy, plan.program.sha256)

    def _bound(self, uid: PodUid, node: NodeName, now_ns: int) -> None:
        core = self._core
        self._binding.pop(uid, None)
        seen = core.cache.pods.get(uid)
        if seen is None or seen.node is not None:
            return  # the watch will show it, or has
        before = core.cache.ledger.placement(uid)
        core.cache.confirm(seen.pod, node)
        core.follow_placement(uid, before, now_ns)

    def _not_bound(self, uid: PodUid) -> None:
        self._binding.pop(uid, None)
        if self._core.cache.ledger.state(uid) is PlacementState.ASSUMED:
            self._core.cache.withdraw(uid)
            self._core.assumed.left(uid)

    # ── looking in ─────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def synced(self) -> bool:
        return self._synced

    @property
    def fatal_at_start(self) -> str | None:
        """Why there is nothing to answer by at all."""
        return self._core.policies.fatal_at_start

    @property
    def binds_under_way(self) -> int:
        return len(self._binding)

    def programs(self) -> dict[str, Program]:
        return {name: running.program for name, running in self._core.policies.running.items()}

    def metrics(self) -> dict[str, Mapping[str, Metric]]:
        """What samples are wanted of, by policy and metric."""
        return self._reload.metrics()

    def policies(self) -> list[PolicyStatus]:
        return self._core.policies.status()

    def reloads(self) -> dict[ReloadResult, int]:
        """Offers of policies by what became of them."""
        return dict(self._core.policies.reloads)

    @property
    def policies_resource_version(self) -> str | None:
        return self._core.policies.resource_version

    def nodes(self) -> Mapping[NodeName, Node]:
        """To be looked at, not to be changed."""
        return self._core.cache.nodes

    def node_count(self) -> int:
        return len(self._core.cache.nodes)

    def check(self) -> list[str]:
        """One sentence for each thing inside that does not agree with another."""
        return self._core.cache.ledger.check()

    def _plan(self, policy: str) -> Plan:
        running = self._core.policies.running.get(policy)
        if not self._synced:
            raise NoAnswer("the first lists of nodes and pods are not in yet", ready=False)
        if not self._core.policies.running:
            raise NoAnswer("no policy is active yet", ready=False)
        if running is None:
            there = ", ".join(sorted(self._core.policies.running))
            raise NoAnswer(f"there is no policy `{policy}` (active: {there})", ready=True)
        if policy in self._core.first_samples.held:
            raise NoAnswer(f"policy `{policy}` {self._core.first_samples.words(policy)}", ready=False)
        self._asked = True
        return running.plan


def _less_what_others_see_to(pod: Pod, plan: Plan, stock: DeviceStock) -> Pod:
    """What no built-in of ours covers is kube-scheduler's here, which has its own plugins for it; so are claims, where the
    policy has no rule that sees to them, and devices, which it gives claims and extended resources itself."""
    left = {one.resource for one in pod.extended if stock.class_of(one.resource) is not None}
    return replace(
        pod,
        uncovered=(),
        claims=pod.claims if plan.sees_to_claims else (),
        requests={name: amount for name, amount in pod.requests.items() if name not in left},
        device_claims=(),
        extended=(),
    )


def _facts(pod: Pod, now_ns: int) -> PodFacts:
    """How long it has waited is known from its creation; how often it was tried, the other scheduler does not say."""
    return PodFacts(pod.created_ns or now_ns, 0)


def _scaled(found: Judgement, scale: Scale) -> dict[str, int]:
    if not found.totals:
        return {}
    least, most = 0, found.total_max
    if scale == "candidates":
        least, most = min(found.totals.values()), max(found.totals.values())
    span = most - least
    if span == 0:
        return dict.fromkeys(found.totals, 0)  # no opinion: none is better than another
    # floor(x + 1/2) in whole numbers.
    return {
        name: (2 * EXTENDER_SCORE_MAX * (total - least) + span) // (2 * span)
        for name, total in found.totals.items()
    }
