"""The quotas of one policy: its placed pods and what they use."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from policysched.cluster.change_log import ChangeLog
from policysched.evaluate.plan.plan import Plan
from policysched.evaluate.plan.quotas import QuotaCharge, QuotaEntity
from policysched.evaluate.plan.read_set import unknown_namespace
from policysched.evaluate.scalar.eval_context import EvalContext
from policysched.model.identifiers import PodUid
from policysched.model.namespaces import Namespace
from policysched.model.pods import Pod
from policysched.scheduler.blame import pod_id, raises_for
from policysched.scheduler.quotas.quota_limits import QuotaLimits, QuotaNode
from policysched.scheduler.quotas.quota_usage import QuotaUsage
from policysched.scheduler.steps import POD_OPERATIONS_AT_ONCE_MAX, VISITS_PER_PIECE, pods_per_slice


@dataclass(frozen=True, slots=True)
class ChargedPod:
    """A placed pod, and what it was charged with when it was placed."""

    pod: Pod
    charge: QuotaCharge


class QuotaAccount:
    """Counts every pod of the policy that is assumed, prebound or bound, by any scheduler. Pods of other policies and
    schedulers do not count."""

    def __init__(self, plan: Plan) -> None:
        self.activated_ns = 0
        self.plan = plan
        self.limits = QuotaLimits(plan.program, plan.quotas)
        self.usage = QuotaUsage(self.limits)
        self._changes: ChangeLog[QuotaNode] = ChangeLog()
        self.fallen: set[QuotaNode] = set()  # use fell since the last look
        self.risen: set[QuotaNode] = set()  # use rose since the last look
        self.changed_by: set[str | None] = set()  # namespaces of these pods; None: nobody is to blame
        self._latest_charge: tuple[Pod, Namespace | None, QuotaCharge] | None = None
        self._kept: dict[
            PodUid, tuple[Pod, Namespace | None, QuotaCharge]
        ] = {}  # of pending members of gangs
        self.uncharged: dict[PodUid, Pod] = {}
        """Placed pods whose requests are not counted yet: nothing of the policy is judged before `recharge`."""
        self._charged: dict[PodUid, ChargedPod] = {}
        self._pods: dict[QuotaEntity, dict[PodUid, ChargedPod]] = {}

    def charge_of(self, pod: Pod, namespace: Namespace | None) -> QuotaCharge:
        """A decision asks twice: whether the pod may be placed, and when it is."""
        latest = self._latest_charge
        if latest is not None and latest[0] is pod and latest[1] is namespace:
            return latest[2]
        charge = self._kept_charge(pod, namespace) or self.plan.quota_charge(pod, namespace)
        self._latest_charge = pod, namespace, charge
        return charge

    def _kept_charge(self, pod: Pod, namespace: Namespace | None) -> QuotaCharge | None:
        kept = self._kept.get(pod.uid)
        is_current = kept is not None and kept[1] is namespace and (kept[0] is pod or kept[0] == pod)
        return kept[2] if kept is not None and is_current else None

    def keep_some(self, pods: Iterable[Pod], namespace: Namespace | None) -> bool:
        """Keep the charges of pending pods of the namespace that are attempted together, a slice of them if each takes long.
        Returns whether all are kept, or need not be."""
        left = pods_per_slice(self.plan.quota_operations, VISITS_PER_PIECE)
        if self.plan.quota_operations <= POD_OPERATIONS_AT_ONCE_MAX:
            return True
        for pod in pods:
            if self._kept_charge(pod, namespace) is not None:
                continue
            if not left:
                return False
            with raises_for(pod_id(pod)):
                self._kept[pod.uid] = pod, namespace, self.plan.quota_charge(pod, namespace)
            left -= 1
        return True

    def forget(self, uid: PodUid) -> None:
        """The pod is not pending any more."""
        self._kept.pop(uid, None)

    def add(self, pod: Pod, namespace: Namespace | None) -> None:
        """The pod was placed."""
        self._add(pod, self.charge_of(pod, namespace))

    def _add(self, pod: Pod, charge: QuotaCharge) -> None:
        charged = ChargedPod(pod, charge)
        self._charged[pod.uid] = charged
        self.uncharged.pop(pod.uid, None)
        self.forget(pod.uid)
        for entity in charged.charge.entities:
            self._pods.setdefault(entity, {})[pod.uid] = charged
            self._changes.record(entity)
        self.note_rise(charged.charge)
        self.changed_by.add(pod.namespace)
        self.usage.add(charged.charge)

    def remove(self, uid: PodUid) -> None:
        """The pod is on no node any more."""
        self.uncharged.pop(uid, None)
        charged = self._charged.pop(uid)
        for entity in charged.charge.entities:
            pods = self._pods[entity]
            del pods[uid]
            if not pods:
                del self._pods[entity]
            self._changes.record(entity)
        self.release(charged.charge, charged.pod.namespace)
        self.usage.add(charged.charge, -1)

    def replace(self, pod: Pod) -> None:
        """The pod changed, and not what it is charged with."""
        charged = ChargedPod(pod, self._charged[pod.uid].charge)
        self._charged[pod.uid] = charged
        for entity in charged.charge.entities:
            self._pods[entity][pod.uid] = charged

    def change_late(self, pod: Pod, namespace: Namespace | None) -> None:
        """The pod changed, and `recharge` follows: until then it counts where it did, with what it requests now if that is
        computed fast."""
        quotas, before = self.plan.quotas, self._charged[pod.uid].charge
        self.replace(pod)
        if quotas.amount_operations > POD_OPERATIONS_AT_ONCE_MAX:
            self.uncharged[pod.uid] = pod
            return
        amounts = quotas.amounts(EvalContext(pod, namespace or unknown_namespace(pod)))
        if amounts != before.amounts:
            self.remove(pod.uid)
            self._add(pod, QuotaCharge(before.entities, amounts))

    def note_rise(self, charge: QuotaCharge) -> None:
        """Who would take back at the entities of the charge may do so now."""
        for entity in charge.entities:
            self.risen.update((entity, self.limits.pool_of(entity)))

    def release(self, charge: QuotaCharge, namespace: str | None = None) -> None:
        """Who waits at the entities of the charge may run now. `namespace`: of the pod that used them."""
        if namespace is not None:
            self.changed_by.add(namespace)
        for entity in charge.entities:
            self.fallen.update((entity, self.limits.pool_of(entity)))

    def recharge(self, uid: PodUid, namespace: Namespace | None) -> None:
        """The pod or the labels of its namespace changed: it may count elsewhere, if it counts here. Or it is `uncharged`."""
        charged, uncharged = self._charged.get(uid), self.uncharged.pop(uid, None)
        if charged is None:
            if uncharged is not None:
                self.add(uncharged, namespace)
        elif self.charge_of(charged.pod, namespace) != charged.charge:
            self.remove(uid)
            self.add(charged.pod, namespace)

    def charged(self, uid: PodUid) -> ChargedPod | None:
        return self._charged.get(uid)

    def pods_of(self, entity: QuotaEntity) -> Iterable[ChargedPod]:
        return self._pods.get(entity, {}).values()

    def beyond(
        self, victims: Iterable[Pod], usage: QuotaUsage, may_go: Callable[[QuotaCharge], bool]
    ) -> list[Pod]:
        """The pods that may not go once others of these have left the `usage`. Large ones leave first: what is beyond
        them leaves an entity below its amount, and would evict in return. Of equal ones the least important."""
        charged_pods = [
            charged for victim in victims if (charged := self._charged.get(victim.uid)) is not None
        ]
        beyond = list[Pod]()
        for charged in sorted(
            charged_pods, key=lambda each: ([-amount for amount in each.charge.amounts], each.pod.priority)
        ):
            if may_go(charged.charge):
                usage.add(charged.charge, -1)
            else:
                beyond.append(charged.pod)
        return beyond

    def entities(self) -> Iterator[tuple[int, QuotaEntity]]:
        """Every entity with a row or with pods, with the index of its quota: rows first, in their order."""
        position = {spec.name: index for index, spec in enumerate(self.limits.specs)}
        entities = dict.fromkeys((*self.limits.listed_entities, *sorted(self._pods)))
        yield from ((position[entity[0]], entity) for entity in entities)

    def dominant_share(self, quota: int, entity: QuotaEntity) -> float:
        """The largest part of its amounts that the entity uses: 1 is its whole entitlement, more is borrowed. Use of a
        resource whose amount is 0 counts as `NO_AMOUNT_SHARE`."""
        limits, used = self.limits.of(quota, entity), self.usage.used(entity)
        shares = [0.0]
        for index in limits.limited:
            amount = limits.amounts[index]
            if used[index]:
                shares.append(used[index] / amount if amount else NO_AMOUNT_SHARE)
        return max(shares)

    def shares_of(self, charge: QuotaCharge) -> Callable[[str], float]:
        """The dominant share of the pod's entity, by the name of the quota."""
        position = {spec.name: index for index, spec in enumerate(self.limits.specs)}
        return lambda name: self.dominant_share(position[name], charge.entities[position[name]])

    @property
    def version(self) -> int:
        """Grows with each change of the usage."""
        return self._changes.version

    def changed_since(self, version: int) -> Iterable[QuotaNode] | None:
        """The entities whose usage changed after the version. None: any may have."""
        return self._changes.since(version)

    def check(self) -> list[str]:
        """Recount the usage from the pods. Returns one message per difference."""
        fresh = QuotaUsage(self.limits)
        for charged in self._charged.values():
            fresh.add(charged.charge)
        name = self.plan.program.name
        return [
            f"policy {name}: quota usage of {node}: kept {self.usage.used(node)}, recounted {fresh.used(node)}"
            for node in sorted({*fresh.nodes, *self.usage.nodes})
            if list(fresh.used(node)) != list(self.usage.used(node))
        ]

    @property
    def charged_pods(self) -> Mapping[PodUid, ChargedPod]:
        return self._charged


NO_AMOUNT_SHARE = 1e9
"""The share of an entity that uses a resource of which it is entitled to nothing."""
