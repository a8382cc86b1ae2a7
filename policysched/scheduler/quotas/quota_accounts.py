"""The quotas of all running policies, and the parked pods and gangs that wait for them.

    placed, removed ──► QuotaAccount ──use fell──► QuotaWaiters: parked groups that can run now are opened
                                     ──use rose──► QuotaAdmitted: parked groups that can take back now are opened

The ledger reports each placement in the step that changes it, so a decision always reads current usage. A waiting
group is only opened when its verdict changed, not on each release.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from policysched.cluster.cache import ClusterCache
from policysched.cluster.ledger import PlacementState
from policysched.evaluate import Plan
from policysched.evaluate.plan.quotas import QuotaCharge
from policysched.model.cluster_events import ClusterEvent
from policysched.model.identifiers import PodUid
from policysched.model.pods import Pod, differ_in_readiness_alone
from policysched.scheduler.blame import pod_id, raises_for
from policysched.scheduler.policy_permissions import COUNTS_ALWAYS, Counts
from policysched.scheduler.quotas.quota_account import QuotaAccount
from policysched.scheduler.quotas.quota_admitted import QuotaAdmitted
from policysched.scheduler.quotas.quota_limits import QuotaNode
from policysched.scheduler.quotas.quota_messages import quota_message
from policysched.scheduler.quotas.quota_owners import QuotaOwners
from policysched.scheduler.quotas.quota_reservations import QuotaReservations
from policysched.scheduler.quotas.quota_status import QuotaEntityStatus, quota_status
from policysched.scheduler.quotas.quota_usage import BorrowedLimit, QuotaBlock, QuotaUsage, summed
from policysched.scheduler.quotas.quota_waiters import Need, QuotaWaiters
from policysched.scheduler.steps import POD_OPERATIONS_AT_ONCE_MAX, Steps, pods_per_slice, visit_in_pieces

_PODS_PER_SLICE = 200
_CHARGE_COST = 1


@dataclass(frozen=True, slots=True)
class QuotaRefusal:
    """A pod that its quotas do not admit now. `usage` is what it was judged by: placed pods, and those that are
    nominated before it."""

    block: QuotaBlock
    charge: QuotaCharge
    usage: QuotaUsage
    account: QuotaAccount
    namespace: str

    @property
    def message(self) -> str:
        """Computed on each read, because it looks at every pod of the entity."""
        return quota_message(self.account, self.usage, self.block, self.namespace)


class QuotaAccounts:
    """`accounts` by policy, of the policies that have quotas."""

    def __init__(self, cache: ClusterCache, counts: Counts = COUNTS_ALWAYS) -> None:
        self._cache = cache
        self._counts = counts
        self.accounts: dict[str, QuotaAccount] = {}
        self._prepared: dict[str, QuotaAccount] = {}  # of texts that are about to replace another
        self._waiters: dict[str, QuotaWaiters] = {}  # by policy
        self._admitted: dict[str, QuotaAdmitted] = {}  # by policy
        self._reservations: dict[str, QuotaReservations] = {}  # by policy
        self._released: dict[object, str | None] = {}  # keys of parked groups that were not taken yet
        self._released_ns = 0
        # A gang asks again and again: its members stay, and what others use changes.
        self._latest_charges: tuple[object, list[QuotaCharge]] | None = None
        self.outdated: dict[PodUid, str] = {}
        """Changed pods that are still charged as before, with their namespaces: whoever changed them has `recharge` follow."""
        cache.ledger.listeners.append(self)

    def activate(self, plan: Plan, now_ns: int) -> None:
        """Another text of the policy runs: its placed pods count by that. Parked pods are queued again by the caller."""
        name = plan.program.name
        self._waiters.pop(name, None)
        self._admitted.pop(name, None)
        self.accounts.pop(name, None)
        self._reservations.pop(name, None)
        if not plan.program.quotas:
            return
        for _ in self.prepare(plan):
            pass
        self.accounts[name] = self._prepared.pop(name)
        self.accounts[name].activated_ns = now_ns
        self._reservations[name] = QuotaReservations(self.accounts[name], self._cache)

    def prepare(self, plan: Plan) -> Iterator[None]:
        """Count the placed pods for a text that may run later, in slices. Placements meanwhile are counted at once."""
        name = plan.program.name
        if not plan.program.quotas:
            return
        account = self._prepared.get(name)
        if account is None or account.plan is not plan:
            account = self._prepared[name] = QuotaAccount(plan)
        pods = list(self._placed_pods(name))
        slice_size = pods_per_slice(plan.quota_operations, _PODS_PER_SLICE)
        for number, pod in enumerate(pods, start=1):
            placement = self._cache.ledger.placement(pod.uid)
            is_due = account.charged(pod.uid) is None and pod.uid not in account.uncharged
            if placement is not None and is_due:
                with raises_for(pod_id(pod)):
                    account.add(placement.pod, self._cache.namespaces.get(pod.namespace))
            if number % slice_size == 0:
                yield

    def _placed_pods(self, policy: str) -> Iterator[Pod]:
        pods = (placement.pod for placement in self._cache.ledger.placements)
        return (pod for pod in pods if pod.scheduler == policy and self._counts(policy, pod.namespace))

    def forget_prepared(self, policy: str) -> None:
        """The text in preparation is not wanted any more."""
        self._prepared.pop(policy, None)

    # ── placements ─────────────────────────────────────────────────────────────────────────────────────────────────

    def pod_placed(self, pod: Pod) -> None:
        """It is charged at once if a decision placed it, which has computed the charge, and otherwise by `recharge` if that takes
        long."""
        self._count_move(pod)
        is_decided = self._cache.ledger.state(pod.uid) is PlacementState.ASSUMED
        for accounts in (self.accounts, self._prepared):
            account = accounts.get(pod.scheduler)
            if account is None or not self._counts(pod.scheduler, pod.namespace):
                continue
            if is_decided or not _is_slow(account):
                account.add(pod, self._cache.namespaces.get(pod.namespace))
            else:
                account.uncharged[pod.uid] = pod
                self.outdated[pod.uid] = pod.namespace

    def pod_removed(self, pod: Pod) -> None:
        self._count_move(pod)
        self.outdated.pop(pod.uid, None)
        for accounts in (self.accounts, self._prepared):
            account = accounts.get(pod.scheduler)
            if account is not None and account.charged(pod.uid) is not None:
                account.remove(pod.uid)
            elif account is not None:
                account.uncharged.pop(pod.uid, None)

    def _count_move(self, pod: Pod) -> None:
        """A nominated pod that is placed keeps nothing beside its use."""
        reservations = self._reservations.get(pod.scheduler)
        if reservations is not None and pod.uid in self._cache.nominated:
            reservations.moves += 1

    def pod_changed(self, before: Pod, after: Pod) -> None:
        """It is charged as before if its readiness alone changed, and otherwise where it was until `recharge` if that takes long."""
        if before.scheduler != after.scheduler:  # the API server allows no such change
            self.pod_removed(before)
            self.pod_placed(after)
            return
        is_charged_alike = differ_in_readiness_alone(before, after)
        if not is_charged_alike:
            self._count_move(after)
        for accounts in (self.accounts, self._prepared):
            account = accounts.get(after.scheduler)
            if account is None:
                continue
            namespace = self._cache.namespaces.get(after.namespace)
            if after.uid in account.uncharged:
                account.uncharged[after.uid] = after
            if account.charged(after.uid) is None:
                continue
            if is_charged_alike:
                account.replace(after)
            elif _is_slow(account):
                account.change_late(after, namespace)
                self.outdated[after.uid] = after.namespace
            else:
                account.remove(after.uid)
                account.add(after, namespace)

    def charged_in(self, namespace: str) -> Iterator[PodUid]:
        """The placed pods that `recharge` may move once the namespace has changed, or has to charge."""
        for account in (*self.accounts.values(), *self._prepared.values()):
            pods = account.charged_pods.items()
            yield from (uid for uid, charged in pods if charged.pod.namespace == namespace)
            yield from (uid for uid, pod in account.uncharged.items() if pod.namespace == namespace)

    def recharge(self, uid: PodUid, namespace: str) -> None:
        for account in (*self.accounts.values(), *self._prepared.values()):
            account.recharge(uid, self._cache.namespaces.get(namespace))

    def recharge_operations(self, uid: PodUid) -> int:
        """The static cost of `recharge`."""
        accounts = (*self.accounts.values(), *self._prepared.values())
        return sum(
            account.plan.quota_operations
            for account in accounts
            if account.charged(uid) is not None or uid in account.uncharged
        )

    def uncharged(self, policy: str) -> Pod | None:
        """A placed pod of the policy whose requests its quotas do not count yet."""
        account = self.accounts.get(policy)
        return None if account is None else next(iter(account.uncharged.values()), None)

    # ── decisions ──────────────────────────────────────────────────────────────────────────────────────────────────

    def charge(self, pod: Pod) -> QuotaCharge | None:
        """None: the policy has no quotas."""
        account = self.accounts.get(pod.scheduler)
        return None if account is None else account.charge_of(pod, self._cache.namespaces.get(pod.namespace))

    def charge_that_takes_back(self, pod: Pod) -> QuotaCharge | None:
        """None: the policy has no quotas, or evicts nobody for them."""
        account = self.accounts.get(pod.scheduler)
        return None if account is None or not account.plan.allows_preemption else self.charge(pod)

    def keep_some_charges(self, policy: str, namespace: str, pods: Iterable[Pod]) -> bool:
        """See `QuotaAccount.keep_some`."""
        account = self.accounts.get(policy)
        return account is None or account.keep_some(pods, self._cache.namespaces.get(namespace))

    def forget_charge(self, pod: Pod) -> None:
        """The pod is not pending any more."""
        if (account := self.accounts.get(pod.scheduler)) is not None:
            account.forget(pod.uid)

    def charge_of(self, pod: Pod) -> QuotaCharge:
        """As `charge`, of a policy that has quotas."""
        charge = self.charge(pod)
        assert charge is not None, f"{pod.full_name} is of a policy without quotas"
        return charge

    def trial(self, pod: Pod, excluding: Iterable[PodUid] = ()) -> QuotaUsage | None:
        """The usage by which the pod (or its gang, whose members are `excluding`) is judged: with the pods that are
        nominated and not on their node yet, which keep what preemption made free for them, as far as they are entitled
        to it. Of two nominated pods only the less important one counts the other."""
        reservations = self._reservations.get(pod.scheduler)
        return None if reservations is None else reservations.trial({pod.uid, *excluding})

    def refusal(
        self, pod: Pod, trial: QuotaUsage | None = None, charge: QuotaCharge | None = None
    ) -> QuotaRefusal | None:
        """Why the pod may not be placed now; None: its quotas admit it."""
        account = self.accounts.get(pod.scheduler)
        if account is None:
            return None
        usage = trial or self.trial(pod)
        assert usage is not None, f"{pod.full_name} has quotas and no usage"
        charge = charge or self.charge(pod)
        assert charge is not None, f"{pod.full_name} has quotas and no charge"
        if usage.part_kept and not usage.is_within_amounts(charge):
            usage = usage.for_borrowers()
        block = usage.blocked(charge)
        return None if block is None else QuotaRefusal(block, charge, usage, account, pod.namespace)

    def claims_against(self, pods: Sequence[Pod]) -> Collection[PodUid]:
        """The nominated pods that keep their nodes from these pods: they are entitled to what they keep, and these pods
        together would borrow."""
        account = self.accounts.get(pods[0].scheduler)
        if account is None or not account.plan.allows_preemption:
            return ()
        claims = self._reservations[pods[0].scheduler].claims()
        return claims if claims and self._borrowing(account, pods) else ()

    def owners_against(self, policy: str, pods: Callable[[], Sequence[Pod]]) -> QuotaOwners | None:
        """The placed pods that these pods together may not evict by their priority. None: the policy has no quotas."""
        account = self.accounts.get(policy)
        return None if account is None else QuotaOwners(account, lambda: self._borrowing(account, pods()))

    def _borrowing(self, account: QuotaAccount, pods: Sequence[Pod]) -> frozenset[BorrowedLimit]:
        """Where these pods would borrow together."""
        usage = self._reservations[account.plan.program.name].trial(pod.uid for pod in pods)
        if len(pods) == 1:
            return usage.borrowing((self.charge_of(pods[0]),))
        if not self._is_charged(account, pods):
            self._keep_sums(account, pods, map(self.charge_of, pods))
        assert self._latest_charges is not None, "charges are kept"
        return usage.borrowing(self._latest_charges[1])

    def charge_together(self, policy: str, pods: Sequence[Pod]) -> Steps[None]:
        """Sum up in pieces what members of a gang are charged with, for the questions whether they would borrow together."""
        account, charges = self.accounts.get(policy), list[QuotaCharge]()
        if account is not None and not self._is_charged(account, pods):
            yield from visit_in_pieces(pods, lambda pod: charges.append(self.charge_of(pod)), _CHARGE_COST)
            self._keep_sums(account, pods, charges)

    def _is_charged(self, account: QuotaAccount, pods: Sequence[Pod]) -> bool:
        key = account, pods, self._cache.namespaces_version
        return self._latest_charges is not None and self._latest_charges[0] == key

    def _keep_sums(self, account: QuotaAccount, pods: Sequence[Pod], charges: Iterable[QuotaCharge]) -> None:
        self._latest_charges = (account, pods, self._cache.namespaces_version), summed(charges)

    def reservation_released(self, pod: Pod) -> None:
        """A nominated pod keeps nothing any more."""
        account = self.accounts.get(pod.scheduler)
        if account is not None:
            charge = account.charge_of(pod, self._cache.namespaces.get(pod.namespace))
            account.release(charge, pod.namespace)

    def victim_changed(self, pod: Pod) -> None:
        """What it may have released is nobody's doing: a preemptor waits for it."""
        account = self.accounts.get(pod.scheduler)
        if account is not None and account.fallen:
            account.changed_by.add(None)

    # ── waiting ────────────────────────────────────────────────────────────────────────────────────────────────────

    def requeue_events(self, policy: str) -> frozenset[ClusterEvent]:
        """What opens a parked group of the policy that waits here."""
        return frozenset({ClusterEvent.QUOTA}) if policy in self.accounts else frozenset()

    def pod_parked(self, key: object, pod: Pod, refusal: QuotaRefusal | None, *, by_nodes: bool) -> None:
        """Its quotas refused the pod, or no node fits (`by_nodes`), or neither was asked."""
        account = self.accounts.get(pod.scheduler)
        if account is None:
            return
        if refusal is not None:
            self.wait(key, pod.scheduler, (refusal.block.node,), (refusal.charge,))
            return
        self.stop_waiting(key, pod.scheduler)
        if by_nodes and self.takes_back(pod):
            self._wait_to_take_back(key, pod.scheduler, self.charge_of(pod))

    def takes_back(self, pod: Pod) -> bool:
        """Whether pods may be evicted for its quotas, if it has any."""
        account = self.accounts.get(pod.scheduler)
        return account is not None and account.plan.allows_preemption and pod.preemption_policy != "Never"

    def gang_admitted(self, key: object, policy: str, charges: Sequence[QuotaCharge], count: int) -> None:
        """The quotas admitted so many of these members together, and no nodes were found for them. Some of what they lack may
        have been used in a pause of the attempt, which `take_released` looks at next."""
        need = Need.of(charges, count)
        if need is not None:
            self._wait_to_take_back(key, policy, need.together)
            self.accounts[policy].note_rise(need.together)

    def _wait_to_take_back(self, key: object, policy: str, charge: QuotaCharge) -> None:
        account = self.accounts[policy]
        self._admitted.setdefault(policy, QuotaAdmitted(account.limits)).add(key, charge, account.usage)

    def wait(
        self,
        key: object,
        policy: str,
        refused_at: Collection[QuotaNode],
        charges: Sequence[QuotaCharge],
        count: int = 1,
    ) -> None:
        """The parked group `key` waits until so many of its pods, with these charges, could pass together. If that cannot be
        told, it waits for any release where they were refused."""
        self.stop_waiting(key, policy)
        waiters = self._waiters.setdefault(policy, QuotaWaiters())
        waiters.add(key, refused_at, Need.of(charges, count), self.accounts[policy].usage)

    def stop_waiting(self, key: object, policy: str) -> None:
        """The parked group is gone."""
        self._released.pop(key, None)
        if (waiters := self._waiters.get(policy)) is not None:
            waiters.discard(key)
        if (admitted := self._admitted.get(policy)) is not None:
            admitted.discard(key)

    def take_released(self, count_max: int | None, now_ns: int) -> dict[object, str | None]:
        """The keys of parked groups whose verdict may have changed with what was released or used, at most so many at once: the
        others are due at once. With the namespace of the pods that did, if it is one."""
        self._released_ns = now_ns
        for policy, account in self.accounts.items():
            self._reservations[policy].release_lapsed()
            if account.fallen or account.risen:
                self._release(policy, account)
        return {key: self._released.pop(key) for key in [*islice(self._released, count_max)]}

    def _release(self, policy: str, account: QuotaAccount) -> None:
        fallen, risen, changed_by = account.fallen, account.risen, account.changed_by
        account.fallen, account.risen, account.changed_by = set(), set(), set()
        cause = next(iter(changed_by)) if len(changed_by) == 1 else None
        if (waiters := self._waiters.get(policy)) is not None:
            self._released.update(dict.fromkeys(waiters.take_released(fallen, account.usage), cause))
        if (admitted := self._admitted.get(policy)) is not None:
            self._released.update(dict.fromkeys(admitted.take_refused(risen, account.usage), cause))

    @property
    def has_released(self) -> bool:
        """Whether there are such keys. Nothing is attempted before they are taken: who comes first may be among them."""
        return bool(self._released)

    def next_time_ns(self) -> int | None:
        return self._released_ns if self._released else None

    def advance(self, now_ns: int) -> None:
        """A part of the timers, so that `take_released` is called again, as after everything that the scheduler does."""

    def status(self) -> list[QuotaEntityStatus]:
        """The use of each entity, by policy."""
        return [status for account in self.accounts.values() for status in quota_status(account)]

    def check(self) -> list[str]:
        """One sentence for each difference between the accounts and the ledger."""
        problems = []
        for policy, account in self.accounts.items():
            problems += account.check()
            placed = {pod.uid: pod for pod in self._placed_pods(policy)}
            counted = {uid: charged.pod for uid, charged in account.charged_pods.items()}
            counted = {**account.uncharged, **counted}
            wrong = {uid for uid in {*placed, *counted} if placed.get(uid) != counted.get(uid)}
            if wrong:
                problems.append(f"policy {policy}: quotas count {wrong} wrongly")
        return problems


def _is_slow(account: QuotaAccount) -> bool:
    """Whether it takes more than half a millisecond to charge a pod."""
    return account.plan.quota_operations > POD_OPERATIONS_AT_ONCE_MAX
