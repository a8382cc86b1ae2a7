"""Simulates the placement of the pending pods of a cluster file: the real scheduler, with every bind confirmed at once.

The scheduler core gets the objects as watch events and decides until nothing is left, while the clock stands still. A
pod without a feasible node stays pending with the message of its event. Evicted pods disappear at once and no controller
recreates them; a pod placed here may be evicted for a later one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from policysched.cluster.metric_samples import MetricSamples
from policysched.from_files.cluster_files import ClusterFiles
from policysched.from_files.inputs import queued_at_creation
from policysched.from_files.simulated_prebind import simulate_prebind
from policysched.lang.check.bundle import CheckedSource, PolicyBundle
from policysched.lang.ir.program import Program
from policysched.model.identifiers import PodUid
from policysched.model.namespaces import Namespace
from policysched.model.pod_status import ObservedPod
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.limits import SchedulerLimits
from policysched.scheduler.policy_permissions import ANY_POLICY_NAME, PolicyPermissions
from policysched.scheduler.scheduler import Scheduler

Scope = Literal["named", "all"]
RequestedScope = Literal["auto", "named", "all"]

Observe = Callable[[Scheduler, c.Command], None]
"""Sees each bind and each report of a pending pod before it takes effect; a bound pod is assumed on its node already."""


def observe_nothing(_scheduler: Scheduler, _command: c.Command) -> None:
    return


_DECISIONS_KEPT_MAX = 10**7  # all of them: the scores are read from the records at the end


@dataclass(frozen=True, slots=True)
class SimulatedPlacement:
    order: int
    pod: str
    node: str
    score: int


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """`placements` in decision order; `pending` sorted by pod, with the event's message; `preempted` in eviction order;
    `first_messages` is the first message of each pod that had to wait, even if it was placed later."""

    program: Program
    placements: tuple[SimulatedPlacement, ...]
    pending: tuple[tuple[str, str], ...]
    preempted: tuple[str, ...]
    scope: Scope
    first_messages: Mapping[str, str] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """The JSON output; schema: `schemas/simulate.json`."""
        return {
            "format_version": 1,
            "policy": {"name": self.program.name, "sha256": self.program.sha256},
            "placements": [
                {
                    "order": placement.order,
                    "pod": placement.pod,
                    "node": placement.node,
                    "score": placement.score,
                }
                for placement in self.placements
            ],
            "pending": [{"pod": pod, "message": message} for pod, message in self.pending],
            "preempted": list(self.preempted),
            "considered": self.scope,
        }


def choose_scope(files: ClusterFiles, policy: str, requested: RequestedScope) -> Scope:
    """`auto`: `named` if a pending pod has the policy as its `schedulerName`, otherwise `all` pending pods."""
    if requested != "auto":
        return requested
    is_named = any(_is_pending(observed) and observed.pod.scheduler == policy for observed in files.pods)
    return "named" if is_named else "all"


def with_placed_pods_pending(
    files: ClusterFiles, scheduler: str | None, most: int | None = None
) -> tuple[ClusterFiles, int]:
    """The same cluster before the pods of this scheduler (None: of any) were placed, but those of DaemonSets, and how many
    these are. `most`: at most this number, the last ones."""
    placed = [
        observed.pod.uid
        for observed in files.pods
        if observed.node is not None
        and not observed.finished
        and not observed.deleting
        and observed.pod.owner_kind not in ("DaemonSet", "Node")
        and scheduler in (None, observed.pod.scheduler)
    ]
    taken = set(placed if most is None else placed[-most:])
    pods = [
        replace(observed, node=None, phase="Pending", started_ns=None)
        if observed.pod.uid in taken
        else observed
        for observed in files.pods
    ]
    return replace(files, pods=pods), len(taken)


def simulate(
    program: Program,
    files: ClusterFiles,
    *,
    samples: Mapping[str, MetricSamples],
    saved_states: str | None = None,
    permissions: PolicyPermissions = ANY_POLICY_NAME,
    scope: Scope,
    now_ns: int,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
    observe: Observe = observe_nothing,
) -> SimulationResult:
    """Decides every pending pod in the scope. `saved_states` are saved values of the policy's states (None: their start values);
    container events in the files do not change them. `progress` gets the decided and the total number of pods."""
    scheduler = load_cluster(files, program.name, scope, permissions=permissions, now_ns=now_ns)
    return place_pending(
        scheduler,
        program,
        files,
        samples=samples,
        saved_states=saved_states,
        scope=scope,
        now_ns=now_ns,
        progress=progress,
        observe=observe,
    )


def load_cluster(
    files: ClusterFiles, policy: str, scope: Scope, *, permissions: PolicyPermissions, now_ns: int
) -> Scheduler:
    """A scheduler core with the objects of the files, and no policy yet."""
    scheduler = Scheduler(
        SchedulerLimits(binds_in_flight_max=2**31, decision_records_max=_DECISIONS_KEPT_MAX),
        permissions=permissions,
        queued_ns_of=queued_at_creation,
    )
    for event in _initial_events(files, [_with_policy(observed, policy, scope) for observed in files.pods]):
        scheduler.handle(event, now_ns)
    return scheduler


def place_pending(
    scheduler: Scheduler,
    program: Program,
    files: ClusterFiles,
    *,
    samples: Mapping[str, MetricSamples],
    saved_states: str | None,
    scope: Scope,
    now_ns: int,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
    observe: Observe = observe_nothing,
) -> SimulationResult:
    """Activate the policy on the loaded files, and decide every pending pod in the scope."""
    pods = [_with_policy(observed, program.name, scope) for observed in files.pods if _is_pending(observed)]
    waiting = {observed.pod.uid: observed for observed in pods if observed.pod.scheduler == program.name}
    for event in _policy_events(program, samples, saved_states):
        scheduler.handle(event, now_ns)

    messages: dict[PodUid, str] = {}
    binds: list[c.Bind] = []
    preempted: list[str] = []
    first_messages: dict[str, str] = {}
    while scheduler.ready(now_ns):
        commands = scheduler.decide(now_ns)
        while commands:
            match commands.pop(0):
                case c.Bind(uid=uid, node=node) as bind:
                    observe(scheduler, bind)
                    del waiting[uid]
                    binds.append(bind)
                    commands += scheduler.handle(e.BindConfirmed(uid, node), now_ns)
                case c.Prebind() as prebind:
                    for event in simulate_prebind(prebind, scheduler.cache):
                        commands += scheduler.handle(event, now_ns)
                case c.Evict(uid=uid, victims=victims):
                    preempted += [f"{victim.namespace}/{victim.name}" for victim in victims]
                    victim_uids = tuple(victim.uid for victim in victims)
                    for victim_uid in victim_uids:
                        commands += scheduler.handle(e.PodDeleted(victim_uid), now_ns)
                    commands += scheduler.handle(e.Evicted(uid, victim_uids), now_ns)
                case c.ReportPending(uid=uid, message=message) as report:
                    observe(scheduler, report)
                    messages[uid] = message
                    first_messages.setdefault(f"{report.namespace}/{report.name}", message)
                case _:
                    pass
        progress(len(binds), len(binds) + len(waiting))
    scores = {
        decision.uid: decision.score or 0 for decision in scheduler.decisions if decision.node is not None
    }
    placements = [
        SimulatedPlacement(order, f"{bind.namespace}/{bind.name}", bind.node, scores[bind.uid])
        for order, bind in enumerate(binds, start=1)
    ]
    pending = sorted(
        (observed.pod.full_name, pending_message(scheduler, observed, messages))
        for observed in waiting.values()
    )
    return SimulationResult(
        program, tuple(placements), tuple(pending), tuple(preempted), scope, first_messages
    )


def _initial_events(files: ClusterFiles, pods: list[ObservedPod]) -> list[e.Event]:
    named = {space.name for space in files.namespaces}
    implied = sorted({observed.pod.namespace for observed in pods} - named)
    return [
        *(e.NamespaceUpdated(space) for space in files.namespaces),
        *(e.NamespaceUpdated(Namespace(name, {}, {})) for name in implied),
        *(e.NodeUpdated(node) for node in files.nodes),
        *files.node_objects,
        *(e.DisruptionBudgetUpdated(budget) for budget in files.budgets),
        *(e.SelectorOwnerUpdated(selector_owner) for selector_owner in files.selector_owners),
        *(e.StorageObjectUpdated(storage_object) for storage_object in files.storage),
        *(e.DeviceObjectUpdated(device_object) for device_object in files.devices),
        *files.pod_group_events(),
        *(e.PodUpdated(observed) for observed in pods),
    ]


def _policy_events(
    program: Program, samples: Mapping[str, MetricSamples], saved_states: str | None
) -> list[e.Event]:
    without_extenders = replace(program, extenders=())  # not called offline; callers note this
    key = f"{program.name}.policy"
    source = CheckedSource(key, is_library=False, program=without_extenders, diagnostics=())
    return [
        *([] if saved_states is None else [e.SavedPolicyStatesLoaded({program.name: saved_states})]),
        e.PoliciesUpdated(PolicyBundle({key: source}), resource_version=""),
        *(e.SamplesArrived(program.name, metric, values) for metric, values in samples.items()),
        e.Synced(),
    ]


def _is_pending(observed: ObservedPod) -> bool:
    return observed.node is None and not observed.finished and not observed.deleting


def _with_policy(observed: ObservedPod, policy: str, scope: Scope) -> ObservedPod:
    if observed.container_events:
        observed = replace(observed, container_events=())
    if scope == "all" and _is_pending(observed):
        return replace(observed, pod=replace(observed.pod, scheduler=policy))
    return observed


def pending_message(scheduler: Scheduler, observed: ObservedPod, messages: Mapping[PodUid, str]) -> str:
    """The last reported message of a pod, or the reason it waits if there is none (gated, an incomplete gang)."""
    if observed.pod.uid in messages:
        return messages[observed.pod.uid]
    if observed.pod.gates:
        return f"Scheduling is blocked due to non-empty scheduling gates: {', '.join(observed.pod.gates)}"
    status = scheduler.pending_status(observed.pod.uid)
    return status.message if status is not None and status.message else "waiting"
