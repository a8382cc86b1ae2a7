"""Runs a recording again with another policy: the scheduler core gets the recorded outside events, and decides again.

What the recorded scheduler itself caused is left out or adapted: a bound pod is on the node that it has here, answers of
binds and evictions are not taken over, and a pod that was evicted there is evicted here only by a decision of this run. Every
bind is confirmed at once. The core is called as often as it was recorded, so that pods compete for the same attempts; where
the recorded scheduler was idle, everything that is due here is done.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from policysched.cluster.metric_samples import MetricSamples, Samples
from policysched.comparison.outcomes import Outcomes, PodOutcome
from policysched.from_files.cluster_files import ClusterFiles
from policysched.from_files.inputs import with_assumed_load
from policysched.from_files.simulate import Observe, observe_nothing, pending_message
from policysched.from_files.simulated_prebind import simulate_prebind
from policysched.lang.check.bundle import CheckedSource, PolicyBundle
from policysched.lang.ir.program import Program
from policysched.model.identifiers import NodeName, PodUid
from policysched.model.pod_status import ObservedPod
from policysched.recording.format import SchedulerState
from policysched.recording.reader import (
    FileStarted,
    Item,
    RecordedDecide,
    RecordedDecision,
    RecordedEvent,
    RecordedRequeue,
    RecordingGap,
    RunEnded,
    SnapshotEnded,
)
from policysched.recording.recorded_order import restore
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.limits import SECOND_NS
from policysched.scheduler.scheduler import Scheduler

IDLE_NS = SECOND_NS // 10
"""If a recorded scheduler was not called for this long, it had nothing to decide."""

_ANSWERS = (
    *(e.BindConfirmed, e.BindRefused, e.BindLost, e.BindDelayed, e.PrebindWritten, e.PrebindRefused),
    *(e.Evicted, e.EvictionRefused, e.ExtendersAnswered, e.ExtendedClaimDeleted),
)
"""Answers to commands of the recorded scheduler."""


@dataclass(slots=True)
class _Pod:
    """A pod that is decided here. `node` is the one it gets here, `recorded` that of the recording; `waited_ns` is from its
    queueing to its bind."""

    recorded: NodeName | None = None
    node: NodeName | None = None
    outcome: PodOutcome | None = None
    waited_ns: int | None = None


class Rerun:
    """`apply` takes the items of a recording in order; `finish` decides what is left. `program` has the name of a policy of
    the recording; `since_ns`: what was decided before is taken over."""

    def __init__(
        self, program: Program, *, since_ns: int | None = None, observe: Observe = observe_nothing
    ) -> None:
        self._program = replace(program, extenders=())
        self._since_ns = since_ns
        self._observe = observe
        self.scheduler = Scheduler()
        self._pods: dict[PodUid, _Pod] = {}
        self._labels: dict[PodUid, str] = {}
        self._names: Counter[str] = Counter()
        self._evicted: set[PodUid] = set()
        self._spared: set[PodUid] = set()
        self._kept: list[ObservedPod] = []  # of those, across the restart of the recorded process
        self._messages: dict[PodUid, str] = {}
        self._last: FileStarted | None = None
        self._skips_snapshot = False
        self._snapshot: list[e.Event] = []
        self._queued_ns: dict[PodUid, int] = {}
        self._timer_at_ns = self._decided_ns = 0
        self._is_shadow = False
        self._order = 0
        self.samples: dict[tuple[str, str], MetricSamples] = {}
        self.now_ns = 0

    # ── the recording ──────────────────────────────────────────────────────────────────────────────────────────────

    def apply(self, item: Item) -> None:
        match item:
            case FileStarted():
                self._start_file(item)
            case RecordingGap():
                self._begin()
            case RecordedEvent(at_ns, event, True):
                self._catch_up(at_ns)
                if not self._skips_snapshot:
                    self._snapshot.append(event)
            case RecordedEvent(at_ns, event, _, decisions):
                self._catch_up(at_ns)
                self._note_decisions(decisions)
                self._handle(event)
            case SnapshotEnded(_, state):
                if not self._skips_snapshot:
                    self._restore(state)
                self._skips_snapshot = False
            case RecordedDecide(at_ns):
                self._decide_as_recorded(item, at_ns)
            case RecordedRequeue(at_ns):
                self._catch_up(at_ns)
                self._execute(self.scheduler.requeue_current_attempt(at_ns))
            case RunEnded():
                pass

    def _handle(self, event: e.Event) -> None:
        if isinstance(event, e.Synced):
            for observed in self._kept:
                self._execute(self.scheduler.handle(e.PodUpdated(observed), self.now_ns))
            self._kept = []
        adapted = self._adapt(event)
        if adapted is not None:
            self._execute(self.scheduler.handle(adapted, self.now_ns))

    def _restore(self, state: SchedulerState) -> None:
        """The cluster of a snapshot. It says only at its end since when its pods wait."""
        self._queued_ns = {queued.uid: queued.queued_ns for queued in state.queued}
        events, self._snapshot = self._snapshot, []
        for event in events:
            self._handle(event)
        for assumed in state.assumed:
            self._pods.pop(assumed.uid, None)
        restore(self.scheduler, state, self.now_ns)

    def _start_file(self, item: FileStarted) -> None:
        before, self._last = self._last, item
        if before is not None and (item.header.run, item.header.number) == (
            before.header.run,
            before.header.number + 1,
        ):
            self._skips_snapshot = True
        else:
            self._begin()

    def _begin(self) -> None:
        """An empty cluster; the snapshot or the first lists follow. Pods keep the nodes that they have here."""
        assert self._last is not None, "no file was started"
        settings = self._last.header.settings
        self._kept += [observed for observed in self._present_pods() if observed.pod.uid in self._spared]
        self._is_shadow = self._last.header.is_shadow
        self._skips_snapshot, self._timer_at_ns, self._snapshot, self._queued_ns = False, 0, [], {}
        self.scheduler = Scheduler(
            settings.limits,
            permissions=settings.permissions,
            first_samples_s=settings.first_samples_s if self._last.header.is_start else 0.0,
            queued_ns_of=lambda pod, now_ns: self._queued_ns.get(pod.uid, now_ns),
        )

    def _decide_as_recorded(self, item: RecordedDecide, at_ns: int) -> None:
        self._catch_up(at_ns)
        self._note_decisions(item.decisions)
        if not self._is_compared():
            return
        for evict in item.evictions:
            self._spared.update(victim.uid for victim in evict.victims)
        if self.scheduler.ready(self.now_ns):
            self._execute(self.scheduler.decide(self.now_ns))
            if item.elapsed_ns is not None:
                self.scheduler.account_time(item.elapsed_ns)

    def _note_decisions(self, decisions: Iterable[RecordedDecision]) -> None:
        """Keep what the recorded scheduler decided, to say how much of it is the same; before `since_ns` take it over."""
        for recorded in decisions:
            uid, node = recorded.decision.uid, recorded.decision.node
            pod = self._pods.get(uid)
            if pod is None or node is None:
                continue
            if self._is_compared():
                pod.recorded = node
                continue
            del self._pods[uid]
            observed = self.scheduler.cache.pods.get(uid)
            if observed is not None and observed.node is None:
                self.scheduler.handle(e.PodUpdated(replace(observed, node=node)), self.now_ns)

    def _is_compared(self) -> bool:
        return self._since_ns is None or self.now_ns >= self._since_ns

    def _catch_up(self, next_ns: int) -> None:
        """Decide what was due while the recorded scheduler was idle. A shadow never decides: it is done all the time."""
        idle_since_ns = self._decided_ns if self._is_shadow else self.now_ns
        if next_ns - idle_since_ns > IDLE_NS and self._is_compared():
            self._decided_ns = next_ns
            while True:
                self._decide_all()
                if not self.now_ns < self._timer_at_ns < next_ns:
                    break
                self.now_ns = self._timer_at_ns
        self.now_ns = max(self.now_ns, next_ns)

    def _decide_all(self) -> None:
        while self.scheduler.ready(self.now_ns):
            self._execute(self.scheduler.decide(self.now_ns))

    def finish(self) -> None:
        """Decide what is left at the end of the recording."""
        self._decide_all()

    # ── what happened outside ──────────────────────────────────────────────────────────────────────────────────────

    def _adapt(self, event: e.Event) -> e.Event | None:
        """The event as it would be here; None: it would not be."""
        match event:
            case e.PodUpdated(observed):
                return self._adapt_pod(observed)
            case e.PodDeleted(uid):
                pod = self._pods.get(uid)
                if pod is not None and pod.outcome is None and uid in self.scheduler.core.pods:
                    pod.outcome = PodOutcome("pending", message="it was deleted before it was tried")
                return None if uid in self._evicted or uid in self._spared else event
            case e.PoliciesUpdated():
                return self._with_program(event)
            case e.SamplesArrived(policy, metric, arrived):
                # A scheduler changes the assumed load of its samples: each gets its own.
                samples = MetricSamples(arrived.values, arrived.polled_ns, pairs=arrived.pairs)
                self.samples[policy, metric] = samples
                return e.SamplesArrived(policy, metric, samples)
            case _:
                return None if isinstance(event, _ANSWERS) else event

    def _adapt_pod(self, observed: ObservedPod) -> e.PodUpdated | None:
        uid = observed.pod.uid
        if uid not in self._labels:
            self._names[name := observed.pod.full_name] += 1
            count = self._names[name]
            self._labels[uid] = name if count == 1 else f"{name} ({count})"
        if uid in self._evicted:
            return None
        if self._is_shadow and observed.preempted:
            self._spared.add(uid)
        if uid in self._spared:
            if observed.deleting:  # its kubelet gives it a last phase before it is gone
                return None
            observed = replace(observed, preempted=False)
        pod = self._pods.get(uid)
        if pod is None:
            if observed.node is None and not observed.finished:
                self._pods[uid] = _Pod()
            return e.PodUpdated(observed)
        if observed.pod.scheduler not in self.scheduler.core.policies.running or not self._is_compared():
            if observed.node is not None:
                del self._pods[uid]
            return e.PodUpdated(observed)
        if observed.node is not None and pod.recorded is None:
            pod.recorded = observed.node
        if observed.node != pod.node:
            runs = pod.node is not None
            observed = replace(
                observed,
                node=pod.node,
                phase=observed.phase if runs or observed.finished else "Pending",
                started_ns=observed.started_ns if runs else None,
                rejection=None,
                container_events=(),
            )
        if not observed.nominated_by_other:
            observed = replace(observed, nominated_node=None)
        return e.PodUpdated(replace(observed, refused_bind=""))

    def _with_program(self, event: e.PoliciesUpdated) -> e.PoliciesUpdated:
        def adapt(bundle: PolicyBundle | None) -> PolicyBundle | None:
            if bundle is None:
                return None
            return PolicyBundle({key: self._adapt_source(source) for key, source in bundle.sources.items()})

        fallbacks = {
            name: self._program if name == self._program.name else replace(program, extenders=())
            for name, program in event.fallbacks.items()
        }
        return replace(
            event, bundle=adapt(event.bundle), last_good=adapt(event.last_good), fallbacks=fallbacks
        )

    def _adapt_source(self, source: CheckedSource) -> CheckedSource:
        program = source.program
        name = source.policy_name if program is None else program.name
        if name == self._program.name and not (program is not None and program.removed):
            ours = self._program if program is None else replace(self._program, team=program.team)
            return CheckedSource(source.key, is_library=False, program=ours, diagnostics=(), policy_name=name)
        return source if program is None else replace(source, program=replace(program, extenders=()))

    # ── what is decided here ───────────────────────────────────────────────────────────────────────────────────────

    def _execute(self, commands: list[c.Command]) -> None:
        scheduler, now_ns = self.scheduler, self.now_ns
        while commands:
            match commands.pop(0):
                case c.Bind() as bind:
                    self._observe(scheduler, bind)
                    self._bound(bind)
                    commands += scheduler.handle(e.BindConfirmed(bind.uid, bind.node), now_ns)
                case c.Prebind() as prebind:
                    for event in simulate_prebind(prebind, scheduler.cache):
                        commands += scheduler.handle(event, now_ns)
                case c.Evict(uid=uid, victims=victims):
                    victim_uids = tuple(victim.uid for victim in victims)
                    for victim_uid in victim_uids:
                        self._pods.setdefault(victim_uid, _Pod()).outcome = PodOutcome("evicted")
                        self._evicted.add(victim_uid)
                        commands += scheduler.handle(e.PodDeleted(victim_uid), now_ns)
                    commands += scheduler.handle(e.Evicted(uid, victim_uids), now_ns)
                case c.ReportPending(uid=uid, message=message) as report:
                    self._observe(scheduler, report)
                    pod = self._pods.get(uid)
                    if pod is not None:
                        pod.outcome = PodOutcome("pending", message=message)
                    self._messages[uid] = message
                case c.SetTimer(at_ns):
                    self._timer_at_ns = at_ns
                case _:
                    pass

    def _bound(self, bind: c.Bind) -> None:
        pod = self._pods.setdefault(bind.uid, _Pod())
        decision = next(
            (made for made in reversed(self.scheduler.core.records.decisions) if made.uid == bind.uid), None
        )
        self._order += 1
        pod.node = bind.node
        pod.outcome = PodOutcome("placed", bind.node, self._order, decision.score or 0 if decision else 0)
        pod.waited_ns = self.now_ns - decision.queued_ns if decision else None
        self._messages.pop(bind.uid, None)

    # ── results ────────────────────────────────────────────────────────────────────────────────────────────────────

    def outcomes(self) -> Outcomes:
        """Of the pods that were decided here, or that wait for a policy of the recording, by label."""
        outcomes = {
            self._labels[uid]: pod.outcome for uid, pod in self._pods.items() if pod.outcome is not None
        }
        for uid, pending in self.scheduler.core.pods.items():
            pod = self._pods.get(uid)
            observed = pending.observed
            if pod is not None and pod.outcome is None and observed.node is None:
                message = pending_message(self.scheduler, observed, self._messages)
                outcomes[self._labels[uid]] = PodOutcome("pending", message=message)
        return outcomes

    def as_recorded(self) -> tuple[int, int]:
        """How many pods got the node that they got in the recording, of how many that got one there."""
        nodes = [(pod.recorded, pod.node) for pod in self._pods.values() if pod.recorded is not None]
        return sum(recorded == node for recorded, node in nodes), len(nodes)

    def waits_ns(self) -> list[int]:
        """Of the pods that were placed here."""
        return [pod.waited_ns for pod in self._pods.values() if pod.waited_ns is not None]

    def cluster(self) -> tuple[ClusterFiles, Outcomes]:
        """The cluster at the end, and the outcomes of the pods that are still in it, by name."""
        cache, pods = self.scheduler.cache, self._present_pods()
        present: dict[str, PodOutcome] = {}
        for observed in pods:
            pod = self._pods.get(observed.pod.uid)
            if pod is not None and pod.outcome is not None:
                present[observed.pod.full_name] = pod.outcome
        files = ClusterFiles(
            nodes=list(cache.nodes.values()), pods=pods, namespaces=list(cache.namespaces.values())
        )
        return files, present

    def _present_pods(self) -> list[ObservedPod]:
        """On the nodes that they have here."""
        placement_of = self.scheduler.cache.ledger.placement
        return [
            replace(observed, node=None if (placement := placement_of(uid)) is None else placement.node)
            for uid, observed in self.scheduler.cache.pods.items()
        ]

    def samples_of(self, program: Program) -> Samples:
        """The latest samples of the metrics of a policy, under the name that both policies have here."""
        name = self._program.name
        latest: Mapping[str, MetricSamples] = {
            metric: self.samples[name, metric] for metric in program.metrics if (name, metric) in self.samples
        }
        return with_assumed_load(latest)
