"""Compares each bind of another scheduler with the policy, on the cluster as it was just before the bind.

kube-scheduler decides pod by pod, but binds in parallel, so a bind can become visible before that of a pod which was decided
earlier. Where the policy's choice differs, it is therefore also asked with binds that were in flight at the time: in the order
of the queue, then with the nearest of them before or after. The caller passes the events that follow within a second, and the
observer remembers the binds of the second before. An agreement that needs other orders says how many binds it moved.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Literal

from policysched.cluster.devices.search_limits import SearchAllowance
from policysched.evaluate import Overlay, Plan
from policysched.explanations.node_comparison import preference, rejection_of, rule_locations
from policysched.lang.check.bundle import CheckedSource, PolicyBundle
from policysched.lang.ir.program import Program
from policysched.lang.ir.verdict import PlacementExplanation
from policysched.model.identifiers import NodeName, PodUid
from policysched.model.pod_status import ObservedPod
from policysched.model.pods import Pod
from policysched.recording.recorder import RecordedScheduler, Recorder
from policysched.scheduler import events as e
from policysched.scheduler.commands import Command
from policysched.scheduler.core import EvaluationInputs
from policysched.scheduler.internal_errors import InternalErrors
from policysched.scheduler.limits import SECOND_NS, SchedulerLimits
from policysched.scheduler.pending_status import pending_status
from policysched.scheduler.policy_permissions import ANY_POLICY_NAME, PolicyPermissions
from policysched.scheduler.preemption.nominations import competing_nominations
from policysched.scheduler.queue.entries import PendingPod, QueueState
from policysched.scheduler.scheduler import Scheduler

IN_FLIGHT_NS = SECOND_NS
EARLIER_NS = SECOND_NS
"""A pod that the policy would have placed at least this long before the other did, would have been earlier."""

Result = Literal["agrees", "agrees among equals", "differs", "rejects"]
RESULTS: tuple[Result, ...] = ("agrees", "agrees among equals", "differs", "rejects")

_TRIED_MAX = 6
_PENDING_CHECKED_MAX = 200


@dataclass(frozen=True, slots=True)
class BindComparison:
    """`node` is the other scheduler's, `choice` the policy's (None: none). `rule` with its `location` decides where they
    differ, by `points` if by scores. `in_flight`: binds counted, or not yet counted, out of their order to agree.
    `earlier_ns`: for how long the policy would have had a node for the pod; 0: no longer than a second."""

    at_ns: int
    pod: str
    node: str
    choice: str | None
    result: Result
    rule: str = ""
    location: str = ""
    points: int = 0
    text: str = ""
    in_flight: int = 0
    earlier_ns: int = 0

    def record(self) -> dict[str, Any]:
        return {
            "at_ns": self.at_ns,
            "pod": self.pod,
            "node": self.node,
            "choice": self.choice,
            "result": self.result,
            "rule": self.rule or None,
            "location": self.location or None,
            "points": self.points,
            "text": self.text or None,
            "binds_in_flight": self.in_flight,
            "earlier_s": round(self.earlier_ns / SECOND_NS, 3),
        }


@dataclass(frozen=True, slots=True)
class _OtherBind:
    """A bind shortly before or after the one that is compared. `sort_key`: the position of its pod in the queue."""

    at_ns: int
    pod: Pod
    node: NodeName
    sort_key: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class _Choice:
    """`total` of the selected node; None: none is feasible."""

    node: NodeName | None
    total: int


class Observer:
    """`handle` applies an event; a bind of the other scheduler yields a comparison before it is applied."""

    def __init__(
        self,
        program: Program,
        other: str,
        *,
        now_ns: int,
        permissions: PolicyPermissions = ANY_POLICY_NAME,
        recorder: Recorder | None = None,
    ) -> None:
        """The policy is evaluated under the name `other`, so that `preemption own`, quotas and gangs mean the pods of the
        scheduler that is observed. Extenders are not called. `recorder` gets every event."""
        self._other = other
        self._locations = rule_locations(program)
        self._scheduler = (
            Scheduler(SchedulerLimits(), permissions=permissions)
            if recorder is None
            else RecordedScheduler(
                recorder,
                SchedulerLimits(),
                {},
                permissions=permissions,
                first_samples_s=0.0,
                source_name_of=attrgetter("source"),
            )
        )
        self._recent: deque[_OtherBind] = deque()
        self._fits_since: dict[PodUid, int] = {}
        self._synced = False
        self.unseen = self.late = self.failed = 0
        self._errors = InternalErrors(self._scheduler.core)
        key = f"{other}.policy"
        named = replace(program, name=other, extenders=())
        bundle = PolicyBundle({key: CheckedSource(key, is_library=False, program=named, diagnostics=())})
        self._scheduler.handle(e.PoliciesUpdated(bundle, resource_version=""), now_ns)

    def continue_counts(self, before: "Observer") -> None:
        """Take over the counts of an observer that ended because an event raised."""
        self.unseen, self.late, self.failed = before.unseen, before.late, before.failed + 1

    @property
    def scheduler(self) -> Scheduler:
        """The state. It never decides."""
        return self._scheduler

    def handle(
        self, event: e.Event, now_ns: int, following: Sequence[e.Event] | None = ()
    ) -> tuple[BindComparison | None, list[Command]]:
        """`following` are the events of the next second, as far as they are known. None: the caller is late, and has no time for a
        comparison."""
        self._finish_changes(now_ns)
        comparison = None
        if isinstance(event, e.PodUpdated):
            try:
                comparison = self._compare(event.pod, following, now_ns)
            except Exception as error:  # noqa: BLE001 - of the program: the bind is applied all the same
                self.failed += 1
                self._note_failure(event.pod.pod, error, now_ns)
        elif isinstance(event, e.PodDeleted):
            self._fits_since.pop(event.uid, None)
        elif isinstance(event, e.Synced):
            self._synced = True
        return comparison, self._scheduler.handle(event, now_ns)

    def _note_failure(self, pod: Pod, error: Exception, now_ns: int) -> None:
        """Nothing was applied, but what is kept of evaluations may be incomplete."""
        self._fits_since.pop(pod.uid, None)
        self._scheduler.core.evaluator.forget(self._plan())
        self._errors.note_report(f"the evaluation of {pod.full_name}", error, now_ns)

    def _finish_changes(self, now_ns: int) -> None:
        """Those of many pods go on where a scheduler decides, which this one never does. So does what is held back of nodes expire."""
        self._scheduler.kubelet_rejections.advance(now_ns)
        self._scheduler.core.groups_due_ns.clear()  # no status is written
        changes = self._scheduler.slices.changes
        while self._synced and (at_ns := changes.next_time_ns()) is not None and at_ns <= now_ns:
            changes.take_slice(now_ns)

    # ── a bind of the other scheduler ──────────────────────────────────────────────────────────────────────────────

    def _compare(
        self, observed: ObservedPod, following: Sequence[e.Event] | None, now_ns: int
    ) -> BindComparison | None:
        pod = observed.pod
        if not self._synced or pod.scheduler != self._other or observed.node is None or observed.finished:
            return None
        core = self._scheduler.core
        if core.cache.ledger.placement(pod.uid) is not None:
            return None  # bound earlier
        pending = core.pods.get(pod.uid)
        if pending is None:
            self.unseen += 1
            return None
        if following is None:
            self.late += 1
            self._fits_since.pop(pod.uid, None)
            return None
        sort_key = pending.sort_key
        comparison = self._judge(pending, observed.node, following, now_ns)
        since_ns = self._fits_since.pop(pod.uid, now_ns)
        if now_ns - since_ns >= EARLIER_NS and comparison.result != "rejects":
            comparison = replace(comparison, earlier_ns=now_ns - since_ns)
        while self._recent and self._recent[0].at_ns < now_ns - IN_FLIGHT_NS:
            self._recent.popleft()
        self._recent.append(_OtherBind(now_ns, pod, observed.node, sort_key))
        return comparison

    def _judge(
        self, pending: PendingPod, node: NodeName, following: Sequence[e.Event], now_ns: int
    ) -> BindComparison:
        name = pending.pod.full_name
        waits = self._waits(pending)
        if waits is not None:
            return BindComparison(now_ns, name, node, None, "rejects", text=waits)
        choice = self._choose(pending, None, now_ns)
        if choice.node == node:
            return BindComparison(now_ns, name, node, node, "agrees")
        explanation = self._explain(pending, None, now_ns)
        if self._is_best(explanation, choice, node):
            return BindComparison(now_ns, name, node, choice.node, "agrees among equals")
        for overlay, moved in self._other_orders(pending, following, now_ns):
            reordered = self._choose(pending, overlay, now_ns)
            if reordered.node == node:
                return BindComparison(now_ns, name, node, node, "agrees", in_flight=moved)
            if self._is_best(self._explain(pending, overlay, now_ns), reordered, node):
                return BindComparison(
                    now_ns, name, node, reordered.node, "agrees among equals", in_flight=moved
                )
        return self._difference(pending, node, choice, explanation, now_ns)

    def _difference(
        self,
        pending: PendingPod,
        node: NodeName,
        choice: _Choice,
        explanation: PlacementExplanation,
        now_ns: int,
    ) -> BindComparison:
        name = pending.pod.full_name
        rejected = rejection_of(explanation, node)
        if rejected is not None:
            return BindComparison(
                now_ns,
                name,
                node,
                choice.node,
                "rejects",
                rejected.rule,
                self._locations.get(rejected.rule, ""),
                text=rejected.text,
            )
        lead = None if choice.node is None else preference(explanation, choice.node, node)
        if lead is None:
            text = (
                f"{node} is not known"
                if node not in self._scheduler.cache.nodes
                else "decided by a nomination"
            )
            return BindComparison(now_ns, name, node, choice.node, "differs", text=text)
        return BindComparison(
            now_ns,
            name,
            node,
            choice.node,
            "differs",
            lead.rule,
            self._locations.get(lead.rule, ""),
            lead.points,
            lead.text,
        )

    @staticmethod
    def _is_best(explanation: PlacementExplanation, choice: _Choice, node: NodeName) -> bool:
        return choice.node is not None and explanation.totals.get(node) == choice.total

    def _waits(self, pending: PendingPod) -> str | None:
        """Why the policy would not try the pod at all: its gang, a quota, or what the policy reads of the pod."""
        core = self._scheduler.core
        refusal = core.quotas.refusal(pending.pod)
        if refusal is not None:
            return refusal.message
        gang = core.gangs.gang_of(pending.uid)
        state = pending.state if gang is None else gang.state
        if state is QueueState.GATED:
            status = pending_status(core, pending.uid)
            message = "" if status is None else status.message
            return message or (f"gang {gang.name} is incomplete" if gang is not None else "it is gated")
        return None

    # ── evaluation ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _plan(self) -> Plan:
        return self._scheduler.core.plan(self._other)

    def _inputs(self, pending: PendingPod, now_ns: int) -> EvaluationInputs:
        return self._scheduler.core.evaluation_inputs(pending, now_ns)

    def _choose(self, pending: PendingPod, overlay: Overlay | None, now_ns: int) -> _Choice:
        core = self._scheduler.core
        nominated = core.cache.nominated.get(pending.uid)
        with core.cache.devices.allocation_cache.limited(SearchAllowance()):
            verdict = core.evaluator.evaluate(
                self._plan(),
                pending.pod,
                **self._inputs(pending, now_ns),
                overlay=overlay,
                nominated_node=None if nominated is None else nominated.nominated_node,
                nominated_pods=competing_nominations(core, pending.pod),
            )
        return _Choice(verdict.selected, verdict.score)

    def _explain(self, pending: PendingPod, overlay: Overlay | None, now_ns: int) -> PlacementExplanation:
        core = self._scheduler.core
        with core.cache.devices.allocation_cache.limited(SearchAllowance()):
            return core.evaluator.explain(
                self._plan(), pending.pod, **self._inputs(pending, now_ns), overlay=overlay
            )

    def _other_orders(
        self, pending: PendingPod, following: Sequence[e.Event], now_ns: int
    ) -> Iterator[tuple[Overlay, int]]:
        """The cluster if binds just before this one were decided after it, or some just after it before it, with the number of
        these binds: first the order of the queue, then the fewest."""
        core = self._scheduler.core
        before = [
            recent
            for recent in reversed(self._recent)
            if recent.at_ns >= now_ns - IN_FLIGHT_NS
            and core.cache.ledger.placement(recent.pod.uid) is not None
        ]
        after = [
            _OtherBind(now_ns, event.pod.pod, event.pod.node, core.pods[event.pod.pod.uid].sort_key)
            for event in following
            if isinstance(event, e.PodUpdated)
            and event.pod.node is not None
            and event.pod.node in core.cache.nodes  # they are watched apart: it may be new, or gone
            and event.pod.pod.uid in core.pods
            and event.pod.pod.uid != pending.uid
            and event.pod.pod.scheduler == self._other
        ]
        own_key = pending.sort_key
        in_queue_order = (
            [bind for bind in before if bind.sort_key > own_key],
            [bind for bind in after if bind.sort_key < own_key],
        )
        nearest = (
            ([before[number] for number in later], [after[number] for number in earlier])
            for later, earlier in _subsets(min(len(before), _TRIED_MAX), min(len(after), _TRIED_MAX))
        )
        for later_binds, earlier_binds in (in_queue_order, *nearest):
            moved = len(later_binds) + len(earlier_binds)
            if not moved:
                continue
            overlay = core.evaluator.overlay()
            for bind in later_binds:
                overlay.remove_pod(bind.pod.uid)
            for bind in {bind.pod.uid: bind for bind in earlier_binds}.values():
                overlay.add_pod(bind.pod, bind.node)
            yield overlay, moved

    # ── pods that wait for the other scheduler ─────────────────────────────────────────────────────────────────────

    def check_pending(self, now_ns: int) -> None:
        """Note which pending pods the policy has a node for now, each after those before it in the queue. Preemption is
        left out: it is the other scheduler that evicts."""
        self._finish_changes(now_ns)
        core = self._scheduler.core
        waiting = sorted(core.pods.values(), key=lambda pod: pod.sort_key)[:_PENDING_CHECKED_MAX]
        overlay = core.evaluator.overlay() if waiting else None
        for pending in waiting:
            node = None
            try:
                if self._waits(pending) is None:
                    node = self._choose(pending, overlay, now_ns).node
            except Exception as error:  # noqa: BLE001 - likewise
                self._note_failure(pending.pod, error, now_ns)
            if node is None:
                self._fits_since.pop(pending.uid, None)
                continue
            self._fits_since.setdefault(pending.uid, now_ns)
            if overlay is not None:
                overlay.add_pod(pending.pod, node)

    @property
    def pending_count(self) -> int:
        return len(self._scheduler.core.pods)


def _subsets(before: int, after: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The last binds before and the first after it, and each alone; the smallest first."""
    subsets = {
        (tuple(range(later)), tuple(range(earlier)))
        for later in range(before + 1)
        for earlier in range(after + 1)
    }
    subsets |= {((number,), ()) for number in range(before)} | {((), (number,)) for number in range(after)}
    return sorted(subsets, key=lambda pair: (len(pair[0] + pair[1]), pair))
