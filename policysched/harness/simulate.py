"""Where the pending pods of a cluster file would go: the scheduler itself, with every bind answered at once.

Nothing is added to the core for this: the objects are shown to it as a watch would show them, it decides until nothing
is left to decide, and no time passes meanwhile. A pod that finds no node stays pending with the words of its event. Who
is evicted is gone at once, and is not made anew by any controller; a pod placed here may be evicted for a later one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from policysched.cluster.samples import MetricSamples
from policysched.harness.cluster_files import ClusterFiles
from policysched.harness.simulated_prebind import simulate_prebind
from policysched.lang.check.bundle import CheckedSource, PolicyBundle
from policysched.lang.ir.program import Program
from policysched.model.identifiers import PodUid
from policysched.model.namespaces import Namespace
from policysched.model.pod_status import ObservedPod
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.limits import SchedulerLimits
from policysched.scheduler.scheduler import Scheduler

Scope = Literal["named", "all"]

_DECISIONS_KEPT_MAX = 10**7  # all of them: the scores are read from the records at the end


@dataclass(frozen=True, slots=True)
class SimulatedPlacement:
    order: int
    pod: str
    node: str
    score: int


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """`placements` in the order in which they were decided; `pending` sorted by pod, with the event's message;
    `preempted` in the order in which they were evicted; `first_messages` what was first said of each pod that had to wait,
    those included that went somewhere afterwards."""

    program: Program
    placements: tuple[SimulatedPlacement, ...]
    pending: tuple[tuple[str, str], ...]
    preempted: tuple[str, ...]
    scope: Scope
    first_messages: Mapping[str, str] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """As `schemas/simulate.json` describes it."""
        return {
            "format_version": 1,
            "policy": {"name": self.program.name, "sha256": self.program.sha256},
            "placements": [
                {"order": one.order, "pod": one.pod, "node": one.node, "score": one.score}
                for one in self.placements
            ],
            "pending": [{"pod": pod, "message": message} for pod, message in self.pending],
            "preempted": list(self.preempted),
            "considered": self.scope,
        }


def choose_scope(files: ClusterFiles, policy: str) -> Scope:
    """Pods that name the policy in `schedulerName`; where no pending pod does, every pending pod, since the question
    is then what the policy would do with them."""
    return (
        "named" if any(_is_pending(seen) and seen.pod.scheduler == policy for seen in files.pods) else "all"
    )


def simulate(
    program: Program,
    files: ClusterFiles,
    *,
    samples: Mapping[str, MetricSamples],
    kept: str | None = None,
    scope: Scope,
    now_ns: int,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> SimulationResult:
    """Decide for every pending pod in the scope. `kept` are the values of the policy's states as a scheduler keeps them (None: all are
    as they start); what the files say of containers moves none. `progress` is told how many of how many are decided."""
    scheduler = Scheduler(SchedulerLimits(binds_in_flight_max=2**31, decisions_kept=_DECISIONS_KEPT_MAX))
    pods = [_with_policy(seen, program.name, scope) for seen in files.pods]
    waiting = {
        seen.pod.uid: seen for seen in pods if _is_pending(seen) and seen.pod.scheduler == program.name
    }
    alone = replace(program, extenders=())  # there is nobody to ask; who shows the answer says so
    if kept is not None:
        scheduler.handle(e.SavedPolicyStatesLoaded({program.name: kept}), now_ns)
    for event in _initial_events(files, pods, alone, samples):
        scheduler.handle(event, now_ns)

    messages: dict[PodUid, str] = {}
    binds: list[c.Bind] = []
    preempted: list[str] = []
    first_words: dict[str, str] = {}
    while scheduler.ready(now_ns):
        commands = scheduler.decide(now_ns)
        while commands:
            match commands.pop(0):
                case c.Bind(uid=uid, node=node) as bind:
                    del waiting[uid]
                    binds.append(bind)
                    commands += scheduler.handle(e.BindConfirmed(uid, node), now_ns)
                case c.Prebind() as prepare:
                    for happened in simulate_prebind(prepare, scheduler.cache):
                        commands += scheduler.handle(happened, now_ns)
                case c.Evict(uid=uid, victims=victims):
                    preempted += [f"{one.namespace}/{one.name}" for one in victims]
                    told = tuple(one.uid for one in victims)
                    for one in told:
                        commands += scheduler.handle(e.PodDeleted(one), now_ns)
                    commands += scheduler.handle(e.Evicted(uid, told), now_ns)
                case c.ReportPending(uid=uid, message=message) as words:
                    messages[uid] = message
                    first_words.setdefault(f"{words.namespace}/{words.name}", message)
                case _:
                    pass
        progress(len(binds), len(binds) + len(waiting))
    scores = {one.uid: one.score or 0 for one in scheduler.decisions if one.node is not None}
    placements = [
        SimulatedPlacement(order, f"{bind.namespace}/{bind.name}", bind.node, scores[bind.uid])
        for order, bind in enumerate(binds, start=1)
    ]
    pending = sorted(
        (seen.pod.full_name, pending_message(scheduler, seen, messages)) for seen in waiting.values()
    )
    return SimulationResult(program, tuple(placements), tuple(pending), tuple(preempted), scope, first_words)


def _initial_events(
    files: ClusterFiles, pods: list[ObservedPod], program: Program, samples: Mapping[str, MetricSamples]
) -> list[e.Event]:
    named = {space.name for space in files.namespaces}
    implied = sorted({seen.pod.namespace for seen in pods} - named)
    key = f"{program.name}.policy"
    bundle = PolicyBundle({key: CheckedSource(key, is_library=False, program=program, diagnostics=())})
    return [
        *(e.NamespaceUpdated(space) for space in files.namespaces),
        *(e.NamespaceUpdated(Namespace(name, {}, {})) for name in implied),
        *(e.NodeUpdated(node) for node in files.nodes),
        *files.node_objects,
        *(e.DisruptionBudgetUpdated(budget) for budget in files.budgets),
        *(e.PodSetUpdated(one) for one in files.pod_sets),
        *(e.StorageObjectUpdated(one) for one in files.storage),
        *(e.DeviceObjectUpdated(one) for one in files.devices),
        *(e.PodUpdated(seen) for seen in pods),
        e.PoliciesUpdated(bundle, resource_version=""),
        *(e.SamplesArrived(program.name, metric, found) for metric, found in samples.items()),
        e.Synced(),
    ]


def _is_pending(seen: ObservedPod) -> bool:
    return seen.node is None and not seen.finished and not seen.deleting


def _with_policy(seen: ObservedPod, policy: str, scope: Scope) -> ObservedPod:
    seen = replace(seen, container_events=())
    if scope == "all" and _is_pending(seen):
        return replace(seen, pod=replace(seen.pod, scheduler=policy))
    return seen


def pending_message(scheduler: Scheduler, seen: ObservedPod, messages: Mapping[PodUid, str]) -> str:
    """What was last said of it, or what it waits for where nothing was said (gated, a gang still gathering)."""
    if seen.pod.uid in messages:
        return messages[seen.pod.uid]
    if seen.pod.gates:
        return f"Scheduling is blocked due to non-empty scheduling gates: {', '.join(seen.pod.gates)}"
    why = scheduler.pending_status(seen.pod.uid)
    return why.message if why is not None and why.message else "waiting"
