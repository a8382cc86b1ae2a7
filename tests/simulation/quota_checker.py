"""Quotas by their definition (`tests.reference.quota`), recounted at every bind and at every eviction for one.

A bind is judged by the pods that the server has on nodes and those whose binds are on their way.
"""

from collections.abc import Callable, Iterator

from policysched.kube.decode.pods import decode_pod
from policysched.lang.ir.program import GangMode, Program
from policysched.lang.ir.quotas import EntityPath, QuotaSpec
from policysched.model.identifiers import PodUid
from policysched.model.namespaces import Namespace
from policysched.model.pods import Pod
from policysched.sandbox.local_client import LocalClient
from policysched.scheduler.commands import Bind, Evict
from policysched.scheduler.scheduler import Scheduler
from tests.reference.quota import PlacedPod, borrows, limit_of, quota_path, quota_request, quotas_admit


class QuotaChecker:
    """Checks one process of a replica. `fail` gets a message for each violation."""

    def __init__(self, scheduler: Scheduler, local: LocalClient, fail: Callable[[str], None]) -> None:
        self._core, self._local, self._fail = scheduler._core, local, fail
        self._charges = scheduler._membership.charges
        self.binds = 0

    def check_binds(self, binds: list[Bind]) -> None:
        """Called when these binds are decided, before they are sent. While pods count as before a change of their namespace,
        pods of other namespaces are judged by that."""
        if self._charges.next_time_ns() is not None:
            return
        for bind in binds:
            program = self._core.policies.running[bind.policy].program
            if program.quotas and program.sha256 == bind.policy_sha256:
                self.binds += 1
                pod = self._core.cache.pods[bind.uid].pod
                if not quotas_admit(
                    program, list(self._placed(program, except_for=pod)), pod, self._space(pod)
                ):
                    self._fail(f"{pod.full_name} is bound above a quota")

    def check_eviction(self, evict: Evict) -> None:
        """Pods that are not less important than the preemptor go only if their entity borrows; others, too, if it is another one and
        the preemptor would borrow."""
        if evict.node is None or self._charges.next_time_ns() is not None:
            return  # the rest of a gang, after a refused bind; or see `check_binds`
        preemptor = self._core.cache.pods[evict.uid].pod
        program = self._core.policies.running[preemptor.scheduler].program
        if not program.quotas:
            return
        placed = [
            (placement.pod, self._space(placement.pod))
            for placement in self._core.cache.ledger.placements
            if placement.pod.scheduler == program.name
        ]
        victims = [self._core.cache.pods[victim.uid].pod for victim in evict.victims]
        limits = list(self._borrowed_by(program, preemptor, placed))
        gangs = {self._gang(pod) for pod in victims if self._borrows(program, pod, placed)} - {None}
        for victim in victims:
            if self._borrows(program, victim, placed) or self._gang(victim) in gangs:
                continue
            if victim.priority >= preemptor.priority:
                self._fail(f"{victim.full_name} borrows nothing and is a victim of {preemptor.full_name}")
            elif self._is_owner(program, victim, limits):
                self._fail(f"{preemptor.full_name} would borrow and evicts {victim.full_name}, an owner")

    def _borrowed_by(
        self, program: Program, pod: Pod, placed: list[PlacedPod]
    ) -> Iterator[tuple[QuotaSpec, EntityPath]]:
        """The entities of the pod, or of its gang, that would use more than their amounts of what it requests."""
        gang, space = self._core.gangs.gang_of(pod.uid), self._space(pod)
        whole = gang is not None and gang.mode is GangMode.WHOLE
        pods = [each.pod for each in gang.pending_members.values()] if gang is not None and whole else [pod]
        after = [*placed, *((each, self._space(each)) for each in pods)]
        for spec in program.quotas.values():
            path = quota_path(program, spec, pod, space)
            for resource in borrows(program, spec, path, after):
                if any(quota_request(program, resource, each, space) for each in pods):
                    yield spec, path

    def _is_owner(self, program: Program, pod: Pod, limits: list[tuple[QuotaSpec, EntityPath]]) -> bool:
        """Whether the pod, which borrows nothing, has an amount, and is of another entity than one of these."""
        space = self._space(pod)
        if pod.scheduler != program.name or not any(
            quota_path(program, spec, pod, space) != path for spec, path in limits
        ):
            return False
        return any(
            limit_of(spec, quota_path(program, spec, pod, space), resource)
            for spec in program.quotas.values()
            for resource in ("cpu", "memory", "pods")
            if quota_request(program, resource, pod, space)
        )

    def _borrows(self, program: Program, pod: Pod, placed: list[PlacedPod]) -> bool:
        space = self._space(pod)
        return any(
            borrows(program, spec, quota_path(program, spec, pod, space), placed)
            for spec in program.quotas.values()
        )

    def _gang(self, pod: Pod) -> object:
        gang = self._core.gangs.gang_of(pod.uid)
        return None if gang is None else gang.id

    def _placed(self, program: Program, *, except_for: Pod) -> Iterator[PlacedPod]:
        counted: set[PodUid] = {except_for.uid}
        for obj in self._local.list("pods"):
            observed = decode_pod(obj)
            if observed.pod.scheduler != program.name or observed.finished or observed.pod.uid in counted:
                continue
            in_flight = self._core.binds.in_flight.get(observed.pod.uid)
            if observed.node is not None or in_flight is not None:
                counted.add(observed.pod.uid)
                yield observed.pod, self._space(observed.pod)

    def _space(self, pod: Pod) -> Namespace | None:
        return self._core.namespace_of(pod)
