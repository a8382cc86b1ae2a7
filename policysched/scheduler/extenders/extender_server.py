"""Extender server: evaluates policies for another scheduler through the extender protocol.

It handles the same events as the scheduler, so policies reload and metrics age in the same way, but
it has no queue and schedules nothing itself. Each query is answered on the current cluster:

    ExtenderQuery ──► full node objects in the query replace the cached ones, for this query only
                  ──► Evaluator.evaluate_nodes: rejections and totals of the queried nodes
                  ──► FilterResponse, scores 0..10, or the nodes kept for preemption

Placements come from the watch, so a pod that the other scheduler has just placed counts a moment
late, unless it is bound through this server: then `assume` counts it at once.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
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
from policysched.scheduler.blame import pod_id, raises_for
from policysched.scheduler.commands import Bind, Command
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.extenders.delegated_features import without_delegated_features
from policysched.scheduler.extenders.no_pending_pods import NoPendingPods
from policysched.scheduler.extenders.queries import (
    ExtenderQuery,
    ExtenderServerError,
    FilterResponse,
    NodeVictims,
)
from policysched.scheduler.internal_errors import InternalErrors
from policysched.scheduler.limits import SchedulerLimits
from policysched.scheduler.metric_outages import MetricOutages
from policysched.scheduler.policies.first_samples import SourceNameOf
from policysched.scheduler.policies.policy_status import PolicyStatus, ReloadResult
from policysched.scheduler.policy_permissions import PolicyPermissions
from policysched.scheduler.policy_reload import PolicyReload
from policysched.scheduler.preemption.eviction_rights import EvictionRights
from policysched.scheduler.preemption.nominations import competing_nominations
from policysched.scheduler.sample_events import SampleEvents
from policysched.scheduler.timers import FirstSampleTimeouts, PolicyStateSaves, ReportTimer

EXTENDER_SCORE_MAX = 10
UNKNOWN_NODE = "node(s) not yet in the extender's cache"

ScoreScale = Literal["policy", "candidates"]
"""What the maximum score stands for: the policy's highest possible total, or the best queried node."""


class ExtenderServer:
    """`handle` applies events; queries run in between. Each query may raise ExtenderServerError."""

    def __init__(
        self,
        limits: SchedulerLimits | None = None,
        *,
        permissions: PolicyPermissions | None = None,
        first_samples_s: float = 0.0,
        source_name_of: SourceNameOf = attrgetter("source"),
        bindable_scheduler_names: Collection[str] = (),
    ) -> None:
        """`permissions`, `first_samples_s` and `source_name_of`: as `Scheduler` has them. Only pods with one of the
        `bindable_scheduler_names` are bound."""
        self._core = SchedulerCore(
            limits or SchedulerLimits(),
            permissions=permissions,
            first_samples_s=first_samples_s,
            source_name_of=source_name_of,
        )
        self._core.canaries.can_measure = False
        outages, errors = MetricOutages(self._core), InternalErrors(self._core)
        self._timers = (
            ReportTimer(outages, errors),
            FirstSampleTimeouts(self._core),
            ReportTimer(PolicyStateSaves(self._core), errors),
        )
        self._reload = PolicyReload(self._core, NoPendingPods())
        self._sample_events = SampleEvents(self._core, self._reload, outages)
        self._synced = False
        self._has_answered = False
        self._in_flight_binds: dict[PodUid, NodeName] = {}
        self._bindable_scheduler_names = frozenset(bindable_scheduler_names)

    # ── events ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def handle(self, event: e.Event, now_ns: int) -> list[Command]:
        """Apply one event."""
        core, cache = self._core, self._core.cache
        match event:
            case e.PodUpdated(pod):
                self._pod_updated(pod, now_ns)
            case e.PodDeleted(uid):
                cache.drop_pod(uid)
                core.samples.policy_states.pod_deleted(uid)
                core.samples.assumed_load.pod_removed(uid)
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
            case e.SelectorOwnerUpdated(selector_owner):
                cache.put_selector_owner(selector_owner)
            case e.SelectorOwnerDeleted(kind, namespace_name, name):
                cache.drop_selector_owner(kind, namespace_name, name)
            case e.StorageObjectUpdated(storage_object):
                cache.put_storage(storage_object)
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
                self._sample_events.arrived(policy, metric, samples, now_ns)
            case e.SamplesFailed(policy, metric):
                self._sample_events.failed(policy, metric, now_ns)
            case e.BindConfirmed(uid, node_name):
                self._bind_confirmed(uid, node_name, now_ns)
            case e.BindRefused(uid) | e.BindLost(uid):
                self._bind_failed(uid)
            case _:
                raise AssertionError(f"unexpected event: {event}")
        return self._take_commands()

    @property
    def busy(self) -> bool:
        """Whether a new policy version is in preparation; `advance` runs a slice of it."""
        return self._reload.busy

    def advance(self, now_ns: int) -> list[Command]:
        """Handle what is due, and run one slice of preparation while `busy`."""
        for part in self._timers:
            part.advance(now_ns)
        if self._reload.busy:
            self._reload.take_slice(now_ns)
        return self._take_commands()

    def _take_commands(self) -> list[Command]:
        out, self._core.commands = self._core.commands, []
        return out

    def _pod_updated(self, observed: ObservedPod, now_ns: int) -> None:
        core, uid = self._core, observed.pod.uid
        before = core.cache.ledger.placement(uid)
        core.update_states(observed, now_ns)
        core.cache.put_pod(observed)
        if self._synced:
            core.samples.update_assumed_load(uid, before, now_ns)

    # ── filter and prioritize ──────────────────────────────────────────────────────────────────────────────────────

    def filter(self, query: ExtenderQuery, now_ns: int) -> FilterResponse:
        """Filter the nodes by the policy, with the reasons for those that fail."""
        verdict = self._judge(query, now_ns)
        refusal = self._core.namespace_rejection(query.policy, query.pod) or verdict.pod_rejection
        if refusal is not None:
            return FilterResponse((), {}, dict.fromkeys(query.node_names, refusal))
        passed, failed, unresolvable = [], dict[NodeName, str](), dict[NodeName, str]()
        for name in query.node_names:
            rejection = verdict.rejections.get(name)
            if name in verdict.totals:
                passed.append(name)
            elif rejection is None:
                failed[name] = UNKNOWN_NODE
            else:
                (failed if rejection.resolvable else unresolvable)[name] = ", ".join(rejection.event_reasons)
        return FilterResponse(tuple(passed), failed, unresolvable)

    def scores(self, query: ExtenderQuery, scale: ScoreScale, now_ns: int) -> dict[NodeName, int]:
        """Score each node from 0 to 10: the policy's total, rounded once, halves up.

        A node that the policy rejects, or that is not cached, gets 0 and does not affect the scale.
        """
        verdict = self._judge(query, now_ns)
        scores = _scaled(verdict, scale)
        return {name: scores.get(name, 0) for name in query.node_names}

    def _judge(self, query: ExtenderQuery, now_ns: int) -> NodeSubsetVerdict:
        core, plan = self._core, self._plan(query.policy)
        pod = without_delegated_features(query.pod, plan, AvailableDevices(core.cache.devices))
        with self._request_nodes(query.nodes or ()):
            return core.evaluator.evaluate_nodes(
                plan,
                pod,
                query.node_names,
                now_ns=now_ns,
                facts=_facts(pod, now_ns),
                samples=core.samples.of_policy(query.policy),
                overlay=self._overlay(pod),
                nominated_pods=competing_nominations(core, pod),
            )

    @contextmanager
    def _request_nodes(self, nodes: tuple[Node, ...]) -> Iterator[None]:
        """Put the sent nodes into the cache for one query."""
        cache, before = self._core.cache, dict[NodeName, Node | None]()
        for node in nodes:
            cached = cache.nodes.get(node.name)
            if cached is not node and cached != node:
                before[node.name] = cached
                cache.put_node(node)
        try:
            yield
        finally:
            for name, cached in before.items():
                if cached is None:
                    cache.drop_node(name)
                else:
                    cache.put_node(cached)

    def _overlay(self, pod: Pod) -> Overlay | None:
        """An overlay without the pod itself, if it is bound already (a retry after a lost response)."""
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
        """Nodes where the policy and the settings allow the pod to evict all victims, and it fits without them.

        A node that is not cached, or has a victim with an unknown UID, is left out: it cannot be
        evaluated, so no pod is evicted there. Nor is one for a pod that is too expensive to decide about.
        """
        core, plan, facts = self._core, self._plan(policy), _facts(pod, now_ns)
        pod = without_delegated_features(pod, plan, AvailableDevices(core.cache.devices))
        if core.evaluator.over_budget_message(pod) or core.pre_enqueue_rejection(policy, pod):
            return ()
        selects = plan.may_evict(pod, core.namespace_of(pod), facts, now_ns, core.cache.shares)
        may_evict = EvictionRights(core, policy, selects)
        dry_run = core.evaluator.dry_run(
            plan,
            pod,
            now_ns=now_ns,
            facts=facts,
            samples=core.samples.of_policy(policy),
            overlay=self._overlay(pod),
            nominated_pods=competing_nominations(core, pod),
        )
        accepted = []
        for node, node_victims in victims.items():
            pods = [self._victim(uid, node, node_victims) for uid in node_victims.uids]
            if node not in core.cache.nodes or not all(
                victim is not None and may_evict(victim) for victim in pods
            ):
                continue
            placed_uids = [uid for uid in node_victims.uids if core.cache.ledger.placement(uid) is not None]
            for uid in placed_uids:
                dry_run.overlay.remove_pod(uid)
            if not dry_run.rejections([node])[0]:
                accepted.append(node)
            for uid in placed_uids:
                dry_run.overlay.restore_pod(uid)
        return tuple(accepted)

    def _victim(self, uid: PodUid, node: NodeName, node_victims: NodeVictims) -> Pod | None:
        """The victim, or None if unknown. One sent as a full object and not placed is gone already."""
        placement = self._core.cache.ledger.placement(uid)
        if placement is not None:
            return placement.pod if placement.node == node else None
        return node_victims.pods.get(uid)

    # ── bind ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def assume(
        self, policy: str, uid: PodUid, namespace: str, name: str, node: NodeName, now_ns: int
    ) -> Bind:
        """Assume the pod on the node; the caller executes the command and reports its result as an event.

        Only pods that the policy serves are bound. Our permissions allow any bind, and the caller's may not.
        """
        core = self._core
        plan = self._plan(policy)
        self._require_bindable(plan, uid, namespace, name)
        in_flight_node = self._in_flight_binds.get(uid)
        if in_flight_node is not None:
            raise ExtenderServerError(f"an earlier bind to {in_flight_node} is still in flight", ready=True)
        self._in_flight_binds[uid] = node
        observed, before = core.cache.pods.get(uid), core.cache.ledger.placement(uid)
        if observed is not None and before is None:
            with raises_for(pod_id(observed.pod)):
                core.cache.assume(observed.pod, node)
                core.samples.update_assumed_load(uid, None, now_ns)
        return Bind(uid, namespace, name, node, policy, plan.program.sha256)

    def _require_bindable(self, plan: Plan, uid: PodUid, namespace: str, name: str) -> None:
        """Raises ExtenderServerError."""
        core, observed = self._core, self._core.cache.pods.get(uid)
        if observed is None or (observed.pod.namespace, observed.pod.name) != (namespace, name):
            raise ExtenderServerError(f"no pod {namespace}/{name} with uid {uid} is known", ready=True)
        if observed.pod.scheduler not in self._bindable_scheduler_names:
            raise ExtenderServerError(
                f"the pod's schedulerName is `{observed.pod.scheduler}`: this extender does not bind it"
                f" (`scheduler_names` has {', '.join(sorted(self._bindable_scheduler_names))})",
                ready=True,
            )
        pod = without_delegated_features(observed.pod, plan, AvailableDevices(core.cache.devices))
        refusal = core.pre_enqueue_rejection(plan.program.name, pod)
        if refusal is not None:
            raise ExtenderServerError(f"the policy rejects the pod: {refusal}", ready=True)

    def knows_pod(self, uid: PodUid) -> bool:
        return uid in self._core.cache.pods

    def _bind_confirmed(self, uid: PodUid, node: NodeName, now_ns: int) -> None:
        core = self._core
        self._in_flight_binds.pop(uid, None)
        observed = core.cache.pods.get(uid)
        if observed is None or observed.node is not None:
            return  # not cached yet, or the watch shows it as bound
        before = core.cache.ledger.placement(uid)
        core.cache.confirm(observed.pod, node)
        core.samples.update_assumed_load(uid, before, now_ns)

    def _bind_failed(self, uid: PodUid) -> None:
        self._in_flight_binds.pop(uid, None)
        if self._core.cache.ledger.state(uid) is PlacementState.ASSUMED:
            self._core.cache.withdraw(uid)
            self._core.samples.assumed_load.pod_removed(uid)

    # ── status ─────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def synced(self) -> bool:
        return self._synced

    @property
    def startup_error(self) -> str | None:
        """Why there is no policy to run, or None."""
        return self._core.policies.startup_error

    @property
    def binds_in_flight(self) -> int:
        return len(self._in_flight_binds)

    def programs(self) -> dict[str, Program]:
        return self._core.policies.programs()

    def metrics(self) -> dict[str, Mapping[str, Metric]]:
        """Metrics to poll, by policy and name."""
        return self._reload.metrics()

    def policies(self) -> list[PolicyStatus]:
        return self._core.policies.status()

    def reloads(self) -> dict[ReloadResult, int]:
        """Counts of policy reloads by result."""
        return dict(self._core.policies.reloads)

    @property
    def policies_resource_version(self) -> str | None:
        return self._core.policies.resource_version

    def nodes(self) -> Mapping[NodeName, Node]:
        """Cached nodes; read-only."""
        return self._core.cache.nodes

    def pods(self) -> Mapping[PodUid, ObservedPod]:
        """Cached pods; read-only."""
        return self._core.cache.pods

    @property
    def limits(self) -> SchedulerLimits:
        return self._core.limits

    def node_count(self) -> int:
        return len(self._core.cache.nodes)

    def check(self) -> list[str]:
        """Broken invariants, one message each."""
        return self._core.cache.ledger.check()

    def _plan(self, policy: str) -> Plan:
        running = self._core.policies.running.get(policy)
        if not self._synced:
            raise ExtenderServerError("waiting for the first lists of nodes and pods", ready=False)
        if not self._core.policies.running:
            raise ExtenderServerError("no policy is active yet", ready=False)
        if running is None or running.program.removed:
            unknown = f"unknown policy `{policy}` (active: {', '.join(sorted(self.programs()))})"
            raise ExtenderServerError(running.program.removed if running else unknown, ready=True)
        if policy in self._core.samples.first_samples.held_policies:
            raise ExtenderServerError(
                f"policy `{policy}` {self._core.samples.first_samples.message(policy)}", ready=False
            )
        self._has_answered = True
        return running.plan


def _facts(pod: Pod, now_ns: int) -> QueuedPodInfo:
    """Queue information: waiting since creation; the other scheduler does not report attempts."""
    return QueuedPodInfo(pod.created_ns or now_ns, 0)


def _scaled(verdict: NodeSubsetVerdict, scale: ScoreScale) -> dict[str, int]:
    if not verdict.totals:
        return {}
    least, most = 0, verdict.total_max
    if scale == "candidates":
        least, most = min(verdict.totals.values()), max(verdict.totals.values())
    span = most - least
    if span == 0:
        return dict.fromkeys(verdict.totals, 0)  # no preference
    # floor(x + 1/2) in integers.
    return {
        name: (2 * EXTENDER_SCORE_MAX * (total - least) + span) // (2 * span)
        for name, total in verdict.totals.items()
    }
