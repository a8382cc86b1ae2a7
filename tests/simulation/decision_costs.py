"""Virtual costs of decisions, and who took more than its share of the time by them.

A simulation has no real time in a decision: without costs nobody is ever overdrawn. The accounts here are a leaky bucket,
written apart from the product's, whose accounts are points in time.
"""

from collections.abc import Callable
from random import Random

from policysched.model.identifiers import PodUid
from policysched.model.pod_status import ObservedPod
from policysched.scheduler.limits import SchedulerLimits
from policysched.scheduler.queue.entries import QueueEntry, QueueState
from policysched.scheduler.queue.gang_registry import QueuedGang
from policysched.scheduler.scheduler import Scheduler

CREDIT_S, CREDIT_OF_ALL_S, TRUST_S, DEBT_MAX_S = 0.1, 0.2, 0.05, 0.5
_LONG_SHARE = 0.2
_ORDINARY_POD_S = 0.0002
_SHARE = SchedulerLimits().failed_attempts_share
_NAMESPACES, _RECENT_S = 5, 60.0
"""All namespaces together have as much as so many. Then those without debts for less than a minute are overdrawn, too, and those
of which no pod got a node since the others' failed attempts took `TRUST_S`."""


def draw_decision_costs(random: Random) -> bool:
    """Whether decisions of a seed take time: in a third of the seeds."""
    return random.random() < 1 / 3


class TimeAccounts:
    """Of one scheduler. Tells it that each call of `decide` took as long as `random` draws."""

    def __init__(self, scheduler: Scheduler, random: Random | None, now_ns: Callable[[], int]) -> None:
        self._scheduler, self._random, self._now_ns = scheduler, random, now_ns
        self._debts: dict[str, tuple[float, float]] = {}
        self._of_all = 0.0, 0.0
        self._charged: dict[QueueEntry, float] = {}
        self._searched: set[QueueEntry] = set()
        self._placed: dict[PodUid, float] = {}
        self._account_time = scheduler.account_time
        scheduler.account_time = self._account  # type: ignore[method-assign]
        tracker = scheduler._bind_tracker
        self._withdraw = tracker.withdraw_and_retry
        tracker.withdraw_and_retry = self._on_refused_bind  # type: ignore[method-assign]
        self._trusted_s = 0.0
        self._trusted_until_s: dict[str, float] = {}
        pod_events = scheduler._pod_events
        self._pod_updated = pod_events.updated
        pod_events.updated = self._on_pod_update  # type: ignore[method-assign]
        self.overdrawn_count = 0

    def is_overdrawn(self, namespace: str) -> bool:
        debt_s, since_s = self._debts.get(namespace, (0.0, float("-inf")))
        are_all_overdrawn = self._debt_of_all_s() > CREDIT_OF_ALL_S + 1e-6
        is_recent = self._now_s() - since_s - debt_s / _SHARE < _RECENT_S
        is_in_doubt = is_recent or self._trusted_until_s.get(namespace, 0.0) <= self._trusted_s + 1e-6
        return self._debt_s(namespace) > CREDIT_S + 1e-6 or (is_in_doubt and are_all_overdrawn)

    def _on_pod_update(self, observed: ObservedPod, now_ns: int, **more: bool) -> list[ObservedPod]:
        cached = self._scheduler._core.cache.pods.get(observed.pod.uid)
        is_new = not more["synced"] or (cached is not None and cached.node is None)
        if observed.node is not None and is_new:
            self._trusted_until_s[observed.pod.namespace] = self._trusted_s + TRUST_S
        return self._pod_updated(observed, now_ns, **more)

    def _account(self, elapsed_ns: int) -> int | None:
        if self._random is None:
            return self._account_time(elapsed_ns)
        is_long = self._random.random() < _LONG_SHARE
        cost_s = self._random.choice((0.05, 0.2, 0.4)) if is_long else 0.0002
        taken = self._scheduler.slices._uncharged
        if taken is not None:
            if taken.payer:
                self._charge(taken.payer, max(0.0, cost_s - taken.pod_count * _ORDINARY_POD_S))
            return self._account_time(round(cost_s * 1e9))
        run = self._scheduler._attempts._last_run
        attempts_before = None if run is None else run.attempts_before
        attempt_ns = self._account_time(round(cost_s * 1e9))
        if run is None or attempts_before is None:
            return attempt_ns
        entry = run.entry
        spent_s = self._charged.pop(entry, 0.0) + cost_s
        searching = self._scheduler._attempts._searching  # a search that is repeated counts if it is in vain
        for ended in self._searched - searching.keys():
            self._charged.pop(ended, None)
        self._searched = set(searching)
        is_repeated = searching.get(entry) is run and run.charges_policy_alone
        if entry.state is QueueState.ATTEMPTING or is_repeated:
            self._charged[entry] = spent_s
        elif (
            run.has_failed
            or (entry.state is QueueState.UNSCHEDULABLE and entry.attempts > attempts_before)
            or (run.prepares and not run.charges_policy_alone)
        ):
            self._charge(entry.namespace, spent_s)
        else:
            self._note_placed(entry, spent_s)
        return attempt_ns

    def _note_placed(self, entry: QueueEntry, spent_s: float) -> None:
        in_flight = self._scheduler._core.binds.in_flight
        self._placed = {uid: placed_s for uid, placed_s in self._placed.items() if uid in in_flight}
        uids = entry.placed_members if isinstance(entry, QueuedGang) else (entry.representative_pod.uid,)
        new = [uid for uid in uids if uid in in_flight and uid not in self._placed]
        self._placed.update(dict.fromkeys(new, spent_s / max(1, len(new))))

    def _on_refused_bind(self, uid: PodUid, message: str, now_ns: int, *, refused: bool = True) -> None:
        """What the decision took was in vain."""
        pod = self._scheduler._core.pods.get(uid)
        spent_s = self._placed.pop(uid, 0.0)
        if pod is not None and spent_s and uid in self._scheduler._core.binds.in_flight:
            self._charge(pod.namespace, spent_s)
        self._withdraw(uid, message, now_ns, refused=refused)

    def _charge(self, namespace: str, spent_s: float) -> None:
        if self._debt_of_all_s() > CREDIT_OF_ALL_S + 1e-6 and not self.is_overdrawn(namespace):
            self._trusted_s += spent_s
        debt_s = min(self._debt_s(namespace) + spent_s, CREDIT_S + DEBT_MAX_S)
        self._debts[namespace] = debt_s, self._now_s()
        of_all_s = min(self._debt_of_all_s() + spent_s, CREDIT_OF_ALL_S + DEBT_MAX_S)
        self._of_all = of_all_s, self._now_s()
        self.overdrawn_count += self.is_overdrawn(namespace)

    def _debt_s(self, namespace: str) -> float:
        debt_s, since_s = self._debts.get(namespace, (0.0, 0.0))
        return max(0.0, debt_s - _SHARE * (self._now_s() - since_s))

    def _debt_of_all_s(self) -> float:
        debt_s, since_s = self._of_all
        return max(0.0, debt_s - _NAMESPACES * _SHARE * (self._now_s() - since_s))

    def _now_s(self) -> float:
        return self._now_ns() / 1e9
