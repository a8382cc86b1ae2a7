"""What the pods that wait for their victims keep of the quotas of one policy.

    nominated pods, by importance ──► who is within its amounts ──► their use, summed by entity ──► a trial for each decision
       (again if one changes)       (again if the sums exceed an amount,     (again after each placement)
                                     or use falls where one is refused)

Others decide often while these wait, so a decision must not look at each of them.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from policysched.cluster.cache import ClusterCache
from policysched.evaluate.plan.quotas import QuotaCharge, QuotaEntity
from policysched.model.identifiers import PodUid
from policysched.model.namespaces import Namespace
from policysched.model.pods import Pod
from policysched.scheduler.blame import pod_id, raises_for
from policysched.scheduler.quotas.quota_account import QuotaAccount
from policysched.scheduler.quotas.quota_usage import QuotaUsage, summed

_Versions = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class _Nominated:
    """A nominated pod that is not placed, in its namespace, and what it is charged with."""

    pod: Pod
    namespace: Namespace | None
    charge: QuotaCharge


@dataclass(slots=True)
class QuotaReservations:
    """`moves` counts the placements of nominated pods and their ends."""

    account: QuotaAccount
    cache: ClusterCache
    moves: int = 0
    _nominated: dict[PodUid, _Nominated] = field(default_factory=dict)  # the most important first
    _entitled: Mapping[PodUid, QuotaCharge] = field(default_factory=dict)
    _sums: list[QuotaCharge] = field(default_factory=list)  # of the entitled, one for the same entities
    _parts: Mapping[PodUid, QuotaCharge] = field(default_factory=dict)  # by those that are entitled in part
    _part_sums: list[QuotaCharge] = field(default_factory=list)  # their sums
    _refused_at: dict[QuotaEntity, tuple[int, ...]] = field(default_factory=dict)  # with their use
    _usage: QuotaUsage | None = None  # of placed and entitled pods
    _account_version: int = -1
    _versions: _Versions | None = None
    _reported: Mapping[PodUid, tuple[QuotaCharge, bool]] = field(default_factory=dict)  # at the last look
    _last_entitled: Mapping[PodUid, QuotaCharge] | None = None  # then

    def trial(self, uids: Iterable[PodUid]) -> QuotaUsage:
        """The usage by which these pods are judged: with those that are nominated and keep something. Of two nominated
        pods only the less important one counts the other."""
        usage = self._current_usage()
        own = min(
            (_importance(known.pod) for uid in uids if (known := self._nominated.get(uid)) is not None),
            default=None,
        )
        if own is None:
            return usage.trial()
        parts = [charge for uid, charge in self._parts.items() if _importance(self._nominated[uid].pod) < own]
        before = [
            charge for uid, charge in self._entitled.items() if _importance(self._nominated[uid].pod) < own
        ]
        return self._usage_with(summed(before), summed(parts))

    def claims(self) -> Collection[PodUid]:
        """The nominated pods that keep something, from those that borrow at least."""
        self._current_usage()
        return self._entitled.keys() | self._parts.keys() if self._parts else self._entitled.keys()

    def release_lapsed(self) -> None:
        """A nominated pod keeps nothing any more, or a part from those that borrow only, once other pods of its entity use what it was
        entitled to."""
        if not self._reported and not self.cache.nominated:
            return
        self._current_usage()
        if self._entitled is self._last_entitled:
            return
        self._last_entitled = self._entitled
        kept = {uid: (charge, False) for uid, charge in self._parts.items()}
        kept |= {uid: (charge, True) for uid, charge in self._entitled.items()}
        for uid, before in self._reported.items():
            if kept.get(uid) != before and self.cache.ledger.placement(uid) is None:
                self.account.release(before[0])
        self._reported = kept

    def _current_usage(self) -> QuotaUsage:
        versions = self.cache.nominations_version, self.cache.namespaces_version, self.moves
        if self._usage is None or self._versions != versions:
            self._nominated = self._look()
            self._usage = self._judge()
        elif self._account_version != self.account.version:
            usage = self._usage_with(self._sums, self._part_sums)
            if self._is_within_amounts(usage, self._sums) and not self._has_fallen() and usage.parts_hold():
                self._usage = usage
            else:
                self._usage = self._judge()
        self._versions, self._account_version = versions, self.account.version
        return self._usage

    def _look(self) -> dict[PodUid, _Nominated]:
        """Nominated pods of the policy that are not placed yet; the watch may show a nomination after that."""
        policy = self.account.plan.program.name
        waiting = [
            observed.pod
            for uid, observed in self.cache.nominated.items()
            if observed.pod.scheduler == policy
            and not observed.deleting
            and self.cache.ledger.placement(uid) is None
        ]
        return {pod.uid: self._charged(pod) for pod in sorted(waiting, key=_importance)}

    def _charged(self, pod: Pod) -> _Nominated:
        namespace, known = self.cache.namespaces.get(pod.namespace), self._nominated.get(pod.uid)
        if known is not None and known.pod is pod and known.namespace is namespace:
            return known
        with raises_for(pod_id(pod)):
            return _Nominated(pod, namespace, self.account.charge_of(pod, namespace))

    def _judge(self) -> QuotaUsage:
        """Find who is entitled to what it keeps: all, if their sums are within the amounts, else one after another."""
        entitled = {uid: known.charge for uid, known in self._nominated.items()}
        self._refused_at = {}
        sums = summed(entitled.values())
        usage, parts = self._usage_with(sums), dict[PodUid, QuotaCharge]()
        if not self._is_within_amounts(usage, sums):
            placed = self.account.usage
            usage = placed.trial()
            for uid, known in self._nominated.items():
                if usage.is_within_amounts(known.charge):
                    usage.add(known.charge)
                else:
                    del entitled[uid]
                    self._refused_at |= {
                        entity: tuple(placed.used(entity)) for entity in known.charge.entities
                    }
            sums = summed(entitled.values())
            parts = self._find_parts(usage.trial(), entitled)
        self._entitled, self._sums = entitled, sums
        self._parts, self._part_sums = parts, summed(parts.values())
        usage.part_kept = self._part_sums
        return usage

    def _find_parts(
        self, usage: QuotaUsage, entitled: Mapping[PodUid, QuotaCharge]
    ) -> dict[PodUid, QuotaCharge]:
        """A pod that takes a quota back can borrow in another one. It keeps what it took from those that borrow only: they would take
        it again, and be evicted again."""
        parts = dict[PodUid, QuotaCharge]()
        for uid, known in self._nominated.items():
            part = None if uid in entitled else usage.entitled_part(known.charge)
            if part is not None:
                usage.add(part)
                parts[uid] = part
        return parts

    def _usage_with(self, sums: Iterable[QuotaCharge], parts: Sequence[QuotaCharge] = ()) -> QuotaUsage:
        usage = self.account.usage.trial()
        usage.part_kept = parts
        for charge in sums:
            usage.add(charge)
        return usage

    def _is_within_amounts(self, usage: QuotaUsage, sums: Iterable[QuotaCharge]) -> bool:
        """Whether nobody borrows in this usage what it keeps. Then each was within its amounts when it was added."""
        return not any(
            charge.amounts[index] and usage.borrowed(quota, entity, index)
            for charge in sums
            for quota, entity in enumerate(charge.entities)
            for index in self.account.limits.of(quota, entity).limited
        )

    def _has_fallen(self) -> bool:
        """Whether a pod that was not entitled may be now."""
        return any(
            now < before
            for entity, used in self._refused_at.items()
            for now, before in zip(self.account.usage.used(entity), used, strict=True)
        )


def _importance(pod: Pod) -> tuple[int, str]:
    return -pod.priority, pod.uid
