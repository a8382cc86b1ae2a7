"""At rest nobody who is entitled to a quota waits for what others borrow.

A pod or gang that stays within its amounts starves if pods of borrowers could go so that the quotas let it in and it fits: one
after the other, each of an entity that borrows beside it at that moment; gangs whole, or what they can spare.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice

from policysched.cluster.cache import ClusterCache
from policysched.lang.ir.program import GangMode, Program
from policysched.lang.ir.quotas import QuotaSpec
from policysched.model.identifiers import PodUid
from policysched.model.namespaces import Namespace
from policysched.model.pod_status import ObservedPod
from policysched.model.pods import Pod
from tests.reference import gang_terms
from tests.reference.quota import PlacedPod, blocking_quotas, borrows, quota_path, quota_request, quotas_admit

_UNITS_MAX = 3
_SETS_MAX = 60
"""A sound check that sees most; looking at all sets would take minutes for one pod."""

Unit = tuple[Pod, ...]
"""Pods that leave together: one, or a gang."""


class StarvationChecker:
    """`without` returns the cluster without these pods; `is_protected`: the policy spares the pod."""

    def __init__(
        self,
        program: Program,
        pods: Iterable[ObservedPod],
        spaces: Mapping[str, Namespace],
        without: Callable[[Collection[PodUid]], ClusterCache],
        is_protected: Callable[[Pod], bool],
    ) -> None:
        self._program, self._spaces, self._without = program, spaces, without
        self._placed = [
            observed.pod
            for observed in pods
            if observed.pod.scheduler == program.name and observed.node is not None and not observed.finished
        ]
        self._units = [unit for unit in self._whole_units() if not any(map(is_protected, unit))]

    def problems(
        self, name: str, claimants: Sequence[Pod], fits: Callable[[ClusterCache], object]
    ) -> list[str]:
        """`claimants`: a pod, or the members that a gang needs. `fits`: whether they do in this cluster."""
        if not claimants or self._are_admitted(claimants, ()) or not self._are_entitled(claimants):
            return []
        for units in islice(self._victims(claimants), _SETS_MAX):
            gone = {pod.uid for unit in units for pod in unit}
            if self._are_admitted(claimants, gone) and fits(self._without(gone)):
                names = ", ".join(sorted(pod.full_name for unit in units for pod in unit))
                return [f"{name} is entitled to its quota and waits for what {names} borrow"]
        return []

    def _whole_units(self) -> Iterator[Unit]:
        gangs: dict[object, list[Pod]] = {}
        for pod in self._placed:
            terms = gang_terms(self._program, pod, self._spaces.get(pod.namespace))
            if terms is None or terms.mode is not GangMode.WHOLE:
                yield (pod,)
            else:
                gangs.setdefault(terms.key, []).append(pod)
        for members in gangs.values():
            yield tuple(members)

    def _victims(self, claimants: Sequence[Pod]) -> Iterator[tuple[Unit, ...]]:
        """Sets of units that may go, small ones first."""
        sets: dict[frozenset[PodUid], tuple[Unit, ...]] = {frozenset(): ()}
        for _ in range(_UNITS_MAX):
            larger: dict[frozenset[PodUid], tuple[Unit, ...]] = {}
            for gone, units in sets.items():
                left = self._among(gone)
                for unit in self._units:
                    more = gone | {pod.uid for pod in unit}
                    if unit in units or more in larger or not self._lends(claimants, unit, left):
                        continue
                    larger[more] = (*units, unit)
                    yield larger[more]
            sets = larger

    def _lends(self, claimants: Sequence[Pod], unit: Unit, placed: list[PlacedPod]) -> bool:
        """Whether a pod of the unit borrows what the first claimant that is not let in lacks."""
        placed = list(placed)
        for pod in claimants:
            space = self._spaces.get(pod.namespace)
            if not quotas_admit(self._program, placed, pod, space):
                return any(self._borrows_beside(pod, victim, placed) for victim in unit)
            placed.append((pod, space))
        return False

    def _borrows_beside(self, pod: Pod, victim: Pod, placed: list[PlacedPod]) -> bool:
        """Whether the victim's entity borrows from the pool that the pod's entity shares with it, in a quota that does not
        let the pod in or in one that is nested there."""
        program, space = self._program, self._spaces.get(pod.namespace)
        blocking = blocking_quotas(program, placed, pod, space)
        for spec in program.quotas.values():
            outer: QuotaSpec | None = spec
            while outer is not None and outer.name not in blocking:
                outer = None if outer.parent is None else program.quotas[outer.parent]
            if outer is None:
                continue
            own = quota_path(program, spec, pod, space)
            its = quota_path(program, spec, victim, self._spaces.get(victim.namespace))
            borrowed = borrows(program, spec, its, placed) if own[:-1] == its[:-1] and own != its else set()
            if any(quota_request(program, resource, pod, space) for resource in borrowed):
                return True
        return False

    def _are_entitled(self, claimants: Sequence[Pod]) -> bool:
        """Whether each of their entities stays within its amounts with all of them."""
        after = [*self._among(()), *((pod, self._spaces.get(pod.namespace)) for pod in claimants)]
        return not any(
            quota_request(self._program, resource, pod, space)
            for pod, space in after[-len(claimants) :]
            for spec in self._program.quotas.values()
            for resource in borrows(self._program, spec, quota_path(self._program, spec, pod, space), after)
        )

    def _are_admitted(self, claimants: Sequence[Pod], gone: Collection[PodUid]) -> bool:
        placed = self._among(gone)
        for pod in claimants:
            space = self._spaces.get(pod.namespace)
            if not quotas_admit(self._program, placed, pod, space):
                return False
            placed.append((pod, space))
        return True

    def _among(self, gone: Collection[PodUid]) -> list[PlacedPod]:
        return [(pod, self._spaces.get(pod.namespace)) for pod in self._placed if pod.uid not in gone]
