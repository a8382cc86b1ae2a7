"""Who would borrow evicts nobody of another entity that is within its amounts, neither by its priority nor to take back another
quota (ADR 51).

Otherwise the owner takes back what the other one borrows, and is evicted again, in turns. Pods of its own entity, what others borrow, and
pods without quota are evicted as ever.
"""

from collections.abc import Callable, Iterable

from policysched.evaluate.plan.quotas import QuotaCharge
from policysched.model.identifiers import PodUid
from policysched.model.pods import Pod
from policysched.scheduler.limits import SECOND_NS
from policysched.scheduler.quotas.quota_account import QuotaAccount
from policysched.scheduler.quotas.quota_usage import BorrowedLimit, QuotaUsage

# Owners that borrow by then may be evicted, and their placements wake no preemptor.
_RETRY_NS = 60 * SECOND_NS


class QuotaOwners:
    """Placed pods that their quotas keep from one pod or gang. `borrowing`: where that would borrow, now. `kept`: those that were
    found, for the message."""

    def __init__(self, account: QuotaAccount, borrowing: Callable[[], frozenset[BorrowedLimit]]) -> None:
        self._account, self._borrowing = account, borrowing
        self._latest: tuple[int, frozenset[BorrowedLimit]] = -1, frozenset()
        self.kept: set[PodUid] = set()

    def keep(self, victim: Pod) -> bool:
        """Whether the pod may not be evicted."""
        charged = self._account.charged(victim.uid)
        if charged is None or not self.owns(charged.charge, self._account.usage):
            return False
        self.kept.add(victim.uid)
        return True

    def owns(self, victim: QuotaCharge, usage: QuotaUsage) -> bool:
        """Whether the pod may not be evicted, once this is what is used."""
        if self._latest[0] != self._account.version:
            self._latest = self._account.version, self._borrowing()
        return usage.is_kept_from(self._latest[1], victim)

    def retry_ns(self, now_ns: int) -> int | None:
        """When the next attempt is made, if pods were kept."""
        return now_ns + _RETRY_NS if self.kept else None

    def explain(self) -> str:
        """How many pods were kept, in words; empty: none."""
        if not self.kept:
            return ""
        pods = "1 pod is" if len(self.kept) == 1 else f"{len(self.kept)} pods are"
        return f"{pods} kept by quotas, because this pod would borrow"

    def beyond(self, victims: Iterable[Pod]) -> list[Pod]:
        """Those that may not be evicted beside the others: their entities would keep less than they are entitled to."""
        usage, borrowing = self._account.usage.trial(), self._borrowing()

        def may_go(victim: QuotaCharge) -> bool:
            return not usage.is_kept_from(borrowing, victim)

        return self._account.beyond(victims, usage, may_go) if borrowing else []
