"""Invariants at rest: once the faults are over and the cluster had time to settle.

The cluster is rebuilt from the server's objects, and the reference implementation evaluates each
pod that is still pending.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

from policysched.cluster.cache import ClusterCache
from policysched.cluster.cache_differences import find_cache_differences
from policysched.cluster.pod_groups import PodGroups
from policysched.kube.decode import core_objects, devices, storage
from policysched.kube.decode.pod_groups import decode_pod_group
from policysched.kube.decode.pods import decode_pod
from policysched.lang.ir.program import GangMode, OnBindFailure, OnTimeout, Program
from policysched.lang.ir.verdict import PlacementExplanation
from policysched.model.devices import DeviceKind
from policysched.model.identifiers import NodeName, PodUid
from policysched.model.pod_groups import PodGroupApi
from policysched.model.pod_status import ObservedPod
from policysched.model.pods import Pod, QueuedPodInfo
from policysched.model.workloads import SelectorOwnerKind
from policysched.sandbox.apiserver.server import ApiServer
from policysched.sandbox.local_client import LocalClient
from policysched.scheduler.queue.entries import QueueEntry
from policysched.scheduler.scheduler import Scheduler
from tests.reference import GangTerms, evaluate, gang_terms, order_key, select_node
from tests.reference.quota import quotas_admit_in
from tests.simulation.churn import PROTECTED_LABEL, UNKNOWN_SCHEDULER
from tests.simulation.safety_checker import GANG_FAILED_MESSAGE, GangKey, scheduled_condition
from tests.simulation.starvation_checker import StarvationChecker

Json = dict[str, Any]

_SELECTOR_OWNERS: tuple[tuple[str, SelectorOwnerKind], ...] = (
    ("services", "Service"),
    ("replicationcontrollers", "ReplicationController"),
    ("replicasets", "ReplicaSet"),
    ("statefulsets", "StatefulSet"),
)
_STORAGE = {
    "persistentvolumes": "PersistentVolume",
    "persistentvolumeclaims": "PersistentVolumeClaim",
    "storageclasses": "StorageClass",
}
_GROUP_API: PodGroupApi = "scheduling.k8s.io"
_GROUP_VERSION = "v1beta1"
_DEVICES: dict[str, DeviceKind] = {
    "resourceclaims": "ResourceClaim",
    "resourceslices": "ResourceSlice",
    "deviceclasses": "DeviceClass",
}


class LivenessChecker:
    """One check of the server and of the leading scheduler. `problems` returns a message for each
    violation. `expected` are the hashes of the ConfigMap's policies; `disturbed` the gangs that
    lost members or binds after they were placed; `refused` those with a refused bind. `vetoes` tells whether an extender rejects a node
    for a pod's UID.
    """

    def __init__(
        self,
        server: ApiServer,
        scheduler: Scheduler,
        *,
        now_ns: int,
        expected: Mapping[str, str],
        disturbed: Iterable[GangKey],
        refused: Iterable[GangKey] = (),
        vetoes: Callable[[str, str], bool],
    ) -> None:
        self._server, self._local = server, LocalClient(server)
        self._scheduler = scheduler
        self._core = scheduler._core
        self._now_ns = now_ns
        self._expected_hashes = expected
        self._disturbed = frozenset(disturbed)
        self._refused = frozenset(refused)
        self._vetoes = vetoes
        self._programs = scheduler.programs()
        self._explanations: dict[PodUid, PlacementExplanation] = {}

    def problems(self) -> Iterator[str]:
        """Lazy: while the cluster comes to rest, the first one is enough. Those that the reference evaluates come last."""
        yield from self._unsettled_problems()
        yield from self._difference_problems()
        yield from self._policy_problems()
        yield from self._nomination_problems()
        yield from self._report_problems()
        yield from self._pending_problems()

    # ── scheduler ───────────────────────────────────────────────────────────────────────────────────────

    def _unsettled_problems(self) -> list[str]:
        """What tells without the server's objects that the cluster is not at rest yet."""
        core = self._core
        problems = self._scheduler.check()
        problems += [
            f"{placement.pod.full_name} is still assumed on {placement.node}"
            for placement in core.cache.ledger.unconfirmed
        ]
        problems += [
            f"capacity of {name} is still held" for name in self._scheduler.nodes_with_capacity_holds
        ]
        problems += [f"{key} is still reserved for a pod" for key in core.cache.volumes.reservations.by_key]
        problems += [
            f"devices of {key} are still reserved for {pod}"
            for key, pod, _ in core.cache.devices.unwritten_reservations()
        ]
        counts = self._scheduler.pending_counts()
        counts["backoff"] -= sum(
            entry.pod_count for entry in core.queue._backoff if self._may_back_off(entry)
        )
        return problems + [
            f"{counts[queue]} pods are {queue}" for queue in ("active", "backoff") if counts[queue]
        ]

    def _difference_problems(self) -> list[str]:
        core, problems = self._core, self._cache_problems()
        nodes = [core_objects.decode_node(obj) for obj in self._local.list("nodes")]
        problems += find_cache_differences(core.cache, pods=self._pods, nodes=nodes)
        spaces = {
            obj["metadata"]["name"]: core_objects.decode_namespace(obj)
            for obj in self._local.list("namespaces")
        }
        if core.cache.namespaces != spaces:
            problems.append(f"namespaces are {core.cache.namespaces}, should be {spaces}")
        return problems

    def _may_back_off(self, entry: QueueEntry) -> bool:
        """Whether samples can wake it all the time, and nothing cuts its backoff short. The reference decides about it, too."""
        is_overdrawn = self._core.queue.decision_time.is_overdrawn(entry.namespace)
        program = self._programs.get(entry.policy)
        return is_overdrawn and not entry.in_error_backoff and program is not None and bool(program.metrics)

    def _cache_problems(self) -> list[str]:
        known, fresh = self._core.cache, self._cache
        pairs: list[tuple[str, Mapping[Any, Any], Mapping[Any, Any]]] = [
            ("volume", known.volumes.volumes, fresh.volumes.volumes),
            ("claim", known.volumes.claims, fresh.volumes.claims),
            ("claim for devices", known.devices.claims, fresh.devices.claims),
            ("slice", known.devices.slices, fresh.devices.slices),
        ]
        return [
            f"{what} {key} is {cached.get(key)} in the cache and on the server {expected.get(key)}"
            for what, cached, expected in pairs
            for key in sorted(cached.keys() | expected.keys(), key=str)
            if cached.get(key) != expected.get(key)
        ]

    def _policy_problems(self) -> list[str]:
        runs = {name: program.sha256 for name, program in self._programs.items()}
        if runs != self._expected_hashes:
            return [f"policies {runs} run, the ConfigMap has {dict(self._expected_hashes)}"]
        return []

    @cached_property
    def _objects(self) -> list[Json]:
        return list(self._local.list("pods"))

    @cached_property
    def _pods(self) -> list[ObservedPod]:
        pods = [decode_pod(obj) for obj in self._objects]
        return list(map(self._groups_from_server(pods).attach, pods))

    @cached_property
    def _failed_gang_pods(self) -> set[PodUid]:
        return {
            obj["metadata"]["uid"]
            for obj in self._objects
            if GANG_FAILED_MESSAGE in scheduled_condition(obj).get("message", "")
        }

    def _groups_from_server(self, pods: Iterable[ObservedPod]) -> PodGroups:
        groups = PodGroups()
        for observed in pods:
            groups.put_pod(observed)
        if "podgroups" in {kind.plural for kind in self._server.kinds}:
            groups.set_served(_GROUP_API, _GROUP_VERSION)
            groups.set_workloads_served(served=True)
            for obj in self._local.list("podgroups"):
                groups.put(decode_pod_group(obj, _GROUP_API, _GROUP_VERSION))
            for obj in self._local.list("workloads"):
                groups.put_workload(obj["metadata"]["namespace"], obj["metadata"]["name"])
        return groups

    # ── pending pods ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _pending_problems(self) -> Iterator[str]:
        gangs: dict[tuple[str, str, str], list[tuple[ObservedPod, GangTerms]]] = {}
        cache = self._cache
        for observed in self._pods:
            pod = observed.pod
            program = self._programs.get(pod.scheduler)
            if (
                program is None
                or observed.deleting
                or observed.finished
                or (observed.node is None and pod.gates)
            ):
                continue
            terms = gang_terms(program, pod, cache.namespaces.get(pod.namespace))
            if terms is not None:
                gangs.setdefault((pod.scheduler, *terms.key), []).append((observed, terms))
            elif observed.node is None and (node := self._feasible_node(program, observed, cache)):
                yield f"{pod.full_name} is pending and the reference finds {node}"
            elif observed.node is None and program.quotas:
                fits = partial(self._feasible_node, program, observed)
                yield from self._starving(program, pod.full_name, [pod], fits)
        for (policy, space, key), members in gangs.items():
            yield from self._gang_problems(self._programs[policy], (policy, space, key), members, cache)

    def _feasible_node(self, program: Program, observed: ObservedPod, cache: ClusterCache) -> str | None:
        """A node that is feasible for the pod."""
        if not quotas_admit_in(program, observed.pod, cache):
            return None
        explanation = self._explain(program, observed, cache)
        if not program.extenders:
            return explanation.selected
        return next((node for node in explanation.feasible if not self._vetoes(observed.pod.uid, node)), None)

    def _starving(
        self, program: Program, name: str, claimants: Sequence[Pod], fits: Callable[[ClusterCache], object]
    ) -> list[str]:
        def without(gone: Collection[PodUid]) -> ClusterCache:
            fresh = self._cache_from_server()
            for uid in gone:
                fresh.drop_pod(uid)
            return fresh

        spaces = self._core.cache.namespaces
        checker = StarvationChecker(
            program, self._pods, spaces, without, lambda pod: PROTECTED_LABEL in pod.labels
        )
        return checker.problems(name, claimants, fits)

    def _gang_problems(
        self,
        program: Program,
        gang: GangKey,
        members: list[tuple[ObservedPod, GangTerms]],
        cache: ClusterCache,
    ) -> list[str]:
        placed = [(observed, terms) for observed, terms in members if observed.node is not None]
        due = [
            (observed, terms)
            for observed, terms in members
            if observed.node is None and self._explain(program, observed, cache).pod_rejection is None
            if observed.pod.uid not in self._failed_gang_pods
        ]
        counted = [terms for _, terms in (*placed, *due)]
        minimum = max((terms.minimum for terms in counted), default=0)
        given = [terms.maximum for terms in counted if terms.maximum is not None]
        vacancies = max(min(given), minimum) - len(placed) if given else len(due)
        in_part = bool(counted) and counted[0].on_timeout is OnTimeout.BEST_EFFORT
        whole = counted and counted[0].mode is GangMode.WHOLE and not in_part
        keeps = program.gang is not None and program.gang.on_bind_failure is OnBindFailure.KEEP
        refused = keeps and gang in self._refused
        if whole and 0 < len(placed) < minimum and gang not in self._disturbed and not refused:
            return [f"gang {gang} has {len(placed)} of {minimum} placed, and nothing disturbed it"]
        if vacancies <= 0 or (len(placed) + len(due) < minimum and not in_part):
            return []
        needed = max(0, minimum - len(placed)) if whole else 0
        for domain in _domains(
            counted[0].levels[0].key if counted[0].levels else None,
            [observed for observed, _ in placed],
            cache,
        ):
            waiting = [observed for observed, _ in due]
            fits = self._place_members(program, waiting, domain, keep=bool(whole))[:vacancies]
            if fits and len(fits) >= needed:
                return [f"gang {gang}: {[pod for pod, _ in fits]} are pending and the reference finds {fits}"]
        if program.quotas and needed == len(due) and not placed:
            claimants = [observed for observed, _ in due]
            return self._starving(
                program,
                f"gang {gang}",
                [observed.pod for observed in claimants],
                lambda cache: (
                    len(self._place_members(program, claimants, None, keep=True, on=cache)) >= needed
                ),
            )
        return []

    def _place_members(
        self,
        program: Program,
        members: list[ObservedPod],
        domain: frozenset[NodeName] | None,
        *,
        keep: bool,
        on: ClusterCache | None = None,
    ) -> list[tuple[str, NodeName]]:
        """On the server's cluster, or `on` another, which is changed."""

        def order(observed: ObservedPod) -> Any:
            space = cache.namespaces.get(observed.pod.namespace)
            return order_key(program, observed.pod, space, self._facts(observed.pod.uid), self._now_ns, cache)

        fits = []
        cache = self._cache if on is None else on
        for observed in sorted(members, key=order):
            totals = self._explain(program, observed, cache).totals
            if keep and not quotas_admit_in(program, observed.pod, cache):
                continue
            node = select_node(
                {NodeName(name): total for name, total in totals.items() if domain is None or name in domain},
                observed.pod,
            )
            if node is not None:
                fits.append((observed.pod.full_name, NodeName(node)))
                if keep:
                    cache = self._cache_from_server() if cache is self._cache else cache
                    cache.assume(observed.pod, NodeName(node))
        return fits

    def _explain(self, program: Program, observed: ObservedPod, cache: ClusterCache) -> PlacementExplanation:
        if cache is not self._cache:
            return self._evaluate(program, observed, cache)
        explanation = self._explanations.get(observed.pod.uid)
        if explanation is None:
            explanation = self._explanations[observed.pod.uid] = self._evaluate(program, observed, cache)
        return explanation

    def _evaluate(self, program: Program, observed: ObservedPod, cache: ClusterCache) -> PlacementExplanation:
        return evaluate(
            program,
            observed.pod,
            cache,
            now_ns=self._now_ns,
            facts=self._facts(observed.pod.uid),
            samples=self._core.samples.of_policy(program.name),
        )

    def _facts(self, uid: PodUid) -> QueuedPodInfo:
        pod = self._core.pods.get(uid)
        return pod.facts if pod is not None else QueuedPodInfo(self._now_ns, 0)

    def _cache_from_server(self) -> ClusterCache:
        cache = ClusterCache()
        for put, value in self._decoded:
            put(cache, value)
        return cache

    @cached_property
    def _cache(self) -> ClusterCache:
        """As on the server; nobody changes it."""
        return self._cache_from_server()

    @cached_property
    def _decoded(self) -> list[tuple[Callable[[ClusterCache, Any], object], Any]]:
        """What is put into a cache, and by which method."""
        listed = self._local.list
        puts: list[tuple[Callable[[ClusterCache, Any], object], Any]] = []
        puts += [
            (ClusterCache.put_namespace, core_objects.decode_namespace(obj)) for obj in listed("namespaces")
        ]
        puts += [(ClusterCache.put_node, core_objects.decode_node(obj)) for obj in listed("nodes")]
        for plural, kind in _SELECTOR_OWNERS:
            puts += [
                (ClusterCache.put_selector_owner, core_objects.decode_selector_owner(obj, kind))
                for obj in listed(plural)
            ]
        for plural, stored in _STORAGE.items():
            decode = storage.STORAGE_DECODERS[stored]
            puts += [(ClusterCache.put_storage, decode(obj)) for obj in listed(plural)]
        for plural, kept in _DEVICES.items():
            decode_device = devices.DEVICE_DECODERS[kept]
            puts += [(ClusterCache.put_device_object, decode_device(obj)) for obj in listed(plural)]
        return [*puts, *((ClusterCache.put_pod, observed) for observed in self._pods)]

    def _nomination_problems(self) -> list[str]:
        """A nominated pod waits for a pod that still terminates on its node. Without one, its last
        attempt found no victims or is in backoff, and the nomination should be cleared. Members of
        a whole gang wait for each other's victims.
        """
        ending = {observed.node for observed in self._pods if observed.deleting}
        nominated = [
            observed
            for observed in self._pods
            if observed.pod.scheduler in self._programs and observed.node is None and not observed.finished
            if observed.nominated_node is not None
        ]
        gangs = [self._all_or_nothing_gang(observed.pod) for observed in nominated]
        wait = {
            gang for gang, observed in zip(gangs, nominated, strict=True) if observed.nominated_node in ending
        }
        return [
            f"{observed.pod.full_name} is nominated to {observed.nominated_node}, where no pod terminates"
            for gang, observed in zip(gangs, nominated, strict=True)
            if observed.nominated_node not in ending and (gang is None or gang not in wait)
        ]

    def _all_or_nothing_gang(self, pod: Pod) -> GangKey | None:
        program, space = self._programs[pod.scheduler], self._core.cache.namespaces.get(pod.namespace)
        terms = gang_terms(program, pod, space)
        return None if terms is None or terms.mode is not GangMode.WHOLE else (pod.scheduler, *terms.key)

    # ── events and conditions ──────────────────────────────────────────────────────────────────────────────────────────────

    def _report_problems(self) -> list[str]:
        """Each pending pod has a condition with its current reason; pods of unknown schedulers have none."""
        problems = []
        about: dict[str, list[str]] = {}
        for event in self._local.list("events"):
            about.setdefault(event["involvedObject"].get("uid", ""), []).append(event["reason"])
        for obj, observed in zip(self._objects, self._pods, strict=True):
            reasons = about.get(observed.pod.uid, [])
            if observed.pod.scheduler == UNKNOWN_SCHEDULER and reasons:
                problems.append(
                    f"{observed.pod.full_name} has an unknown scheduler and has events: {reasons}"
                )
            if observed.pod.scheduler not in self._programs:
                continue
            if reasons.count("Scheduled") > (1 if observed.node is not None or observed.finished else 0):
                problems.append(f"{observed.pod.full_name} is on {observed.node} and has events: {reasons}")
            if observed.node is None and not observed.deleting and not observed.finished:
                problems += self._condition_problems(obj, observed)
        return problems

    def _condition_problems(self, obj: Json, observed: ObservedPod) -> list[str]:
        condition, uid = scheduled_condition(obj), observed.pod.uid
        if uid not in self._core.pods:
            return [f"{observed.pod.full_name} is pending and unknown to the scheduler"]
        if condition.get("status") != "False":
            return [f"{observed.pod.full_name} is pending and its PodScheduled is {condition}"]
        if observed.pod.gates:
            reason = condition.get("reason")
            problem = f"{observed.pod.full_name} is gated and its reason is {reason}"
            return [] if reason == "SchedulingGated" else [problem]
        last, shown = self._core.reports.last_report(uid), (condition.get("reason"), condition.get("message"))
        return [] if shown == last else [f"{observed.pod.full_name} shows {shown}, the last report is {last}"]


def _domains(
    topology: str | None, placed: list[ObservedPod], cache: ClusterCache
) -> list[frozenset[NodeName] | None]:
    """The nodes that a gang can use, one set for each topology domain; None: all nodes."""
    if topology is None:
        return [None]
    nodes: dict[str, set[NodeName]] = {}
    for name, node in cache.nodes.items():
        if topology in node.labels:
            nodes.setdefault(node.labels[topology], set()).add(name)
    held = {value: sum(observed.node in names for observed in placed) for value, names in nodes.items()}
    home = max(held, key=lambda value: (held[value], value), default="")
    return [frozenset(nodes[value]) for value in ([home] if held.get(home) else sorted(nodes))]
