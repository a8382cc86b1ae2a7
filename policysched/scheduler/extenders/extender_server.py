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

from policysched.cluster.devices.availability import AvailableDevices
from policysched.cluster.ledger import PlacementState
from policysched.evaluate import Overlay, Plan
from policysched.lang.ir.declarations import Metric
from policysched.lang.ir.program import Program
from policysched.lang.ir.verdict import NodeSubsetVerdict
from policysched.model.identifiers import NodeName, PodUid
from policysched.model.nodes import Node
from policysched.model.pod_status import ObservedPod
from policysched.model.pods import Pod, QueuedPodInfo
from policysched.scheduler import events as e
from policysched.scheduler.commands import Bind, Command
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.limits import SchedulerLimits
from policysched.scheduler.policies.first_samples import SourceNameOf
from policysched.scheduler.policies.metric_outages import MetricOutages
from policysched.scheduler.policies.registry import PolicyStatus, ReloadResult
from policysched.scheduler.policies.reload import PolicyReload
from policysched.scheduler.preemption.nominations import competing_nominations
from policysched.scheduler.queue.pre_enqueue import PreEnqueueResult

EXTENDER_SCORE_MAX = 10
UNKNOWN_NODE = "node(s) that the extender does not know yet"

ScoreScale = Literal["policy", "candidates"]
"""What the greatest score stands for: the most that the policy can give, or the best of the nodes asked about."""


class ExtenderServerError(Exception):
    """Why there is no answer, in words for whoever asked. `ready` False: there may be one in a moment."""

    def __init__(self, why: str, *, ready: bool) -> None:
        super().__init__(why)
        self.ready = ready


@dataclass(frozen=True, slots=True)
class ExtenderQuery:
    """`nodes` None: only names were sent."""

    policy: str
    pod: Pod
    node_names: tuple[NodeName, ...]
    nodes: tuple[Node, ...] | None


@dataclass(frozen=True, slots=True)
class FilterResponse:
    """Each node asked about is in one of the three. `unresolvable`: evicting pods would not help there. The words are those
    that our own events have, in which a value that differs from node to node is written `…`."""

    passed: tuple[NodeName, ...]
    failed: Mapping[NodeName, str]
    unresolvable: Mapping[NodeName, str]


@dataclass(frozen=True, slots=True)
class NodeVictims:
    """Who is to go from one node; `pods` has those that were sent whole."""

    uids: tuple[PodUid, ...]
    pods: Mapping[PodUid, Pod]


class _NoPendingPods:
    """No pod of ours waits for anything here."""

    def precompute_pre_enqueue(
        self, program: Program, plan: Plan, now_ns: int
    ) -> Iterator[dict[PodUid, PreEnqueueResult]]:
        del program, plan, now_ns
        return iter(())

    def readmit_pods(self, policy: str, now_ns: int) -> None:
        del policy, now_ns


class ExtenderServer:
    """`handle` what happened; between that, ask. Raises NoAnswer from each question."""

    def __init__(
        self,
        limits: SchedulerLimits | None = None,
        *,
        first_samples_s: float = 0.0,
        source_name_of: SourceNameOf = attrgetter("source"),
    ) -> None:
        """`first_samples_s` and `source_name_of`: as `Scheduler` has them."""
        self._core = SchedulerCore(
            limits or SchedulerLimits(), first_samples_s=first_samples_s, source_name_of=source_name_of
        )
        self._outages = MetricOutages(self._core)
        self._reload = PolicyReload(self._core, _NoPendingPods())
        self._synced = False
        self._has_answered = False
        self._in_flight_binds: dict[PodUid, NodeName] = {}

    # ── events ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def handle(self, event: e.Event, now_ns: int) -> list[Command]:
        """Apply one event."""
        core, cache = self._core, self._core.cache
        match event:
            case e.PodUpdated(pod):
                self._pod_updated(pod, now_ns)
            case e.PodDeleted(uid):
                cache.drop_pod(uid)
                core.policy_states.pod_deleted(uid)
                core.assumed_load.pod_removed(uid)
            case e.NodeUpdated(node):
                cache.put_node(node)
            case e.NodeDeleted(name):
                cache.drop_node(name)
            case e.NodeObjectUpdated(kind, name, text):
                cache.put_node_object(kind, name, text)
            case e.NodeObjectDeleted(kind, name):
                cache.drop_node_object(kind, name)
            case e.NamespaceUpdated(namespace):
                cache.put_namespace(namespace)
            case e.NamespaceDeleted(name):
                cache.drop_namespace(name)
            case e.PodSetUpdated(pod_set):
                cache.put_pod_set(pod_set)
            case e.PodSetDeleted(kind, namespace_name, name):
                cache.drop_pod_set(kind, namespace_name, name)
            case e.StorageObjectUpdated(seen):
                cache.put_storage(seen)
            case e.StorageObjectDeleted(storage_kind, namespace_name, name):
                cache.drop_storage(storage_kind, namespace_name, name)
            case e.Synced():
                self._synced = True
            case e.PoliciesUpdated():
                self._reload.apply_update(
                    event, now_ns, synced=self._synced, has_attempted=self._has_answered
                )
            case e.SavedPolicyStatesLoaded(texts):
                core.restore_states(texts)
            case e.SamplesArrived(policy, metric, samples):
                core.put_samples(policy, metric, samples)
                self._reload.metric_polled(policy, metric)
                self._outages.recount(policy, now_ns)
            case e.SamplesFailed(policy, metric):
                self._reload.metric_polled(policy, metric)
                self._outages.recount(policy, now_ns)
            case e.BindConfirmed(uid, node_name):
                self._bind_confirmed(uid, node_name, now_ns)
            case e.BindRefused(uid) | e.BindLost(uid):
                self._bind_failed(uid)
            case _:
                raise AssertionError(f"nobody asked for {event}")
        return self._take_commands()

    @property
    def busy(self) -> bool:
        """Whether a policy is being prepared that is to replace another: `advance` does a slice of that."""
        return self._reload.busy

    def advance(self, now_ns: int) -> list[Command]:
        """What time has made due, and one slice of what `busy` means."""
        self._outages.advance(now_ns)
        self._core.commands += self._core.first_samples.advance(now_ns)
        self._core.save_states(now_ns)
        if self._reload.busy:
            self._reload.step(now_ns)
        return self._take_commands()

    def _take_commands(self) -> list[Command]:
        out, self._core.commands = self._core.commands, []
        return out

    def _pod_updated(self, seen: ObservedPod, now_ns: int) -> None:
        core, uid = self._core, seen.pod.uid
        before = core.cache.ledger.placement(uid)
        core.update_states(seen, now_ns)
        core.cache.put_pod(seen)
        if self._synced:
            core.update_assumed_load(uid, before, now_ns)

    # ── filter and prioritize ──────────────────────────────────────────────────────────────────────────────────────

    def filter(self, question: ExtenderQuery, now_ns: int) -> FilterResponse:
        """Which of the nodes the policy lets the pod go to, and why not to the others."""
        found = self._judge(question, now_ns)
        if found.pod_refusal is not None:
            return FilterResponse((), {}, dict.fromkeys(question.node_names, found.pod_refusal))
        passed, failed, hopeless = [], dict[NodeName, str](), dict[NodeName, str]()
        for name in question.node_names:
            refusal = found.refusals.get(name)
            if name in found.totals:
                passed.append(name)
            elif refusal is None:
                failed[name] = UNKNOWN_NODE
            else:
                (failed if refusal.resolvable else hopeless)[name] = ", ".join(refusal.event_reasons)
        return FilterResponse(tuple(passed), failed, hopeless)

    def scores(self, question: ExtenderQuery, scale: ScoreScale, now_ns: int) -> dict[NodeName, int]:
        """0 to 10 for each node: the policy's total in whole numbers, rounded once, halves up. A node that the policy
        refuses, or that is not known, gets 0 and sets no scale."""
        totals = self._judge(question, now_ns)
        found = _scaled(totals, scale)
        return {name: found.get(name, 0) for name in question.node_names}

    def _judge(self, question: ExtenderQuery, now_ns: int) -> NodeSubsetVerdict:
        core, plan = self._core, self._plan(question.policy)
        pod = _without_foreign_features(question.pod, plan, AvailableDevices(core.cache.devices))
        with self._request_nodes(question.nodes or ()):
            return core.evaluator.evaluate_nodes(
                plan,
                pod,
                question.node_names,
                now_ns=now_ns,
                facts=_facts(pod, now_ns),
                samples=core.samples.get(question.policy, {}),
                overlay=self._overlay(pod),
                nominated_pods=competing_nominations(core, pod),
            )

    @contextmanager
    def _request_nodes(self, nodes: tuple[Node, ...]) -> Iterator[None]:
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
        overlay.remove_pod(pod.uid)
        return overlay

    # ── preempt ────────────────────────────────────────────────────────────────────────────────────────────────────

    def preempt(
        self, policy: str, pod: Pod, victims: Mapping[NodeName, NodeVictims], now_ns: int
    ) -> tuple[NodeName, ...]:
        """The nodes where the policy lets the pod evict every one of the victims and would have the pod once they are
        gone. A node that is not known, or a victim sent by a UID that is not, leaves the node out: nobody goes
        for what cannot be judged."""
        core, plan = self._core, self._plan(policy)
        pod = _without_foreign_features(pod, plan, AvailableDevices(core.cache.devices))
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
            nominated_pods=competing_nominations(core, pod),
        )
        kept = []
        for node, those in victims.items():
            pods = [self._victim(uid, node, those) for uid in those.uids]
            if node not in core.cache.nodes or not all(one is not None and may_evict(one) for one in pods):
                continue
            here = [uid for uid in those.uids if core.cache.ledger.placement(uid) is not None]
            for uid in here:
                dry_run.overlay.remove_pod(uid)
            if not dry_run.refusals([node])[0]:
                kept.append(node)
            for uid in here:
                dry_run.overlay.restore_pod(uid)
        return tuple(kept)

    def _victim(self, uid: PodUid, node: NodeName, those: NodeVictims) -> Pod | None:
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
        under_way = self._in_flight_binds.get(uid)
        if under_way is not None:
            raise ExtenderServerError(f"an earlier bind to {under_way} is not answered yet", ready=True)
        self._in_flight_binds[uid] = node
        seen, before = core.cache.pods.get(uid), core.cache.ledger.placement(uid)
        if seen is not None and before is None:
            core.cache.assume(seen.pod, node)
            core.update_assumed_load(uid, None, now_ns)
        return Bind(uid, namespace, name, node, policy, plan.program.sha256)

    def _bind_confirmed(self, uid: PodUid, node: NodeName, now_ns: int) -> None:
        core = self._core
        self._in_flight_binds.pop(uid, None)
        seen = core.cache.pods.get(uid)
        if seen is None or seen.node is not None:
            return  # the watch will show it, or has
        before = core.cache.ledger.placement(uid)
        core.cache.confirm(seen.pod, node)
        core.update_assumed_load(uid, before, now_ns)

    def _bind_failed(self, uid: PodUid) -> None:
        self._in_flight_binds.pop(uid, None)
        if self._core.cache.ledger.state(uid) is PlacementState.ASSUMED:
            self._core.cache.withdraw(uid)
            self._core.assumed_load.pod_removed(uid)

    # ── looking in ─────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def synced(self) -> bool:
        return self._synced

    @property
    def startup_error(self) -> str | None:
        """Why there is nothing to answer by at all."""
        return self._core.policies.startup_error

    @property
    def binds_in_flight(self) -> int:
        return len(self._in_flight_binds)

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
            raise ExtenderServerError("the first lists of nodes and pods are not in yet", ready=False)
        if not self._core.policies.running:
            raise ExtenderServerError("no policy is active yet", ready=False)
        if running is None:
            there = ", ".join(sorted(self._core.policies.running))
            raise ExtenderServerError(f"there is no policy `{policy}` (active: {there})", ready=True)
        if policy in self._core.first_samples.held_policies:
            raise ExtenderServerError(
                f"policy `{policy}` {self._core.first_samples.message(policy)}", ready=False
            )
        self._has_answered = True
        return running.plan


def _without_foreign_features(pod: Pod, plan: Plan, stock: AvailableDevices) -> Pod:
    """What no built-in of ours covers is kube-scheduler's here, which has its own plugins for it; so are claims, where the
    policy has no rule that sees to them, and devices, which it gives claims and extended resources itself."""
    left = {one.resource for one in pod.extended if stock.class_of_resource(one.resource) is not None}
    return replace(
        pod,
        uncovered=(),
        claims=pod.claims if plan.covers_claims else (),
        requests={name: amount for name, amount in pod.requests.items() if name not in left},
        device_claims=(),
        extended=(),
    )


def _facts(pod: Pod, now_ns: int) -> QueuedPodInfo:
    """How long it has waited is known from its creation; how often it was tried, the other scheduler does not say."""
    return QueuedPodInfo(pod.created_ns or now_ns, 0)


def _scaled(found: NodeSubsetVerdict, scale: ScoreScale) -> dict[str, int]:
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
