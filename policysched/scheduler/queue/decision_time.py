"""How long decisions took, so that no policy or namespace takes the time of others.

    policies     policies of one priority take turns by the time that their decisions took
    namespaces   a namespace whose failed attempts took more than its share of the time comes after the others; one that
                 goes on so rests now and then, while there are others
    binds        a namespace that waits for answers to its binds (`PromptBinds`) comes after the others
    all of them  while the failed attempts of all namespaces take more than a quarter of the time, only those that are trusted come
                 first, as many namespaces of one tenant could take all of it with their shares. A pod that gets a node earns
                 trust. A failed attempt ends that of its namespace for some time, and those of all trusted ones together, if
                 they take too long, that of all: thousands of namespaces could take the time with one attempt each

The caller measures the time (`Scheduler.account_time`); if it does not, the order of the queue is unchanged. The time
decides which pod is tried first, never whether a pod is tried.
"""

from collections.abc import Callable, Collection
from itertools import islice

from policysched.scheduler.limits import SECOND_NS, SchedulerLimits
from policysched.scheduler.queue.prompt_binds import PromptBinds

FAILED_ATTEMPT_CREDIT_NS = SECOND_NS // 10
"""Time that the failed attempts of a namespace may take at once."""
FAILED_ATTEMPT_DEBT_MAX_NS = SECOND_NS // 2
"""Upper bound of the debt beyond the credit, so that attempts while the queue is otherwise empty do not count for long."""
FAILED_ATTEMPT_REST_NS = FAILED_ATTEMPT_DEBT_MAX_NS * 9 // 10
"""A namespace with more debt rests until it is paid down to this: at most a second. What others and the API server need of
the processor is then free, while half a second of attempts in vain, such as after a change of a node, goes on without a rest."""
OTHERS_RECENT_NS = 10 * SECOND_NS
"""No namespace rests if this long no other one had an attempt: in the cluster of one tenant nobody would gain by it."""
ATTEMPT_FIRST_NS = SECOND_NS // 20
"""After a slice for a namespace (`slice_turns`) the next one rests for so much longer than its attempts, so that one of these is next
if there are any: attempts of others, which come meanwhile, take the turn otherwise."""
SHARES_OF_ALL = 5
"""What the failed attempts of all namespaces may take together: so many times the share of one."""
CREDIT_OF_ALL_NS = 2 * FAILED_ATTEMPT_CREDIT_NS
"""Time that the failed attempts of all namespaces may take at once: others wait for so long."""
TRUST_NS = FAILED_ATTEMPT_CREDIT_NS // 2
"""A namespace is trusted after a pod of it got a node, until the failed attempts of those that are trusted have taken so long while
all others were overdrawn."""
FAILED_RECENTLY_NS = 60 * SECOND_NS
"""How long a namespace counts as one with failed attempts, once they are paid for: at least, and so long for each hundred of such
namespaces. One attempt in that time comes ahead of others, and those of thousands together would take seconds of each minute."""
FAILED_RECENTLY_MAX_NS = 3_600 * SECOND_NS
POLICY_SLACK_NS = SECOND_NS // 20
"""Policies whose decisions took as long as those of another, within this, are equal."""
_LATEST_PLACED_MAX = 64
_ACCOUNTS_MAX = 50_000
"""Beyond this number, those that were charged least recently are dropped, and those that had a pod placed least recently."""


class DecisionTime:
    """`now_ns` is kept up to date by the queue. `namespace_trusted` is called with a namespace that is in doubt no more.

    The account of a namespace is the time at which its failed attempts so far are paid for by its share of the time. The
    account of a policy is a virtual time: start-time fair queueing, in which an idle policy saves up no more than the
    slack.
    """

    def __init__(self, limits: SchedulerLimits) -> None:
        self.now_ns = 0
        self.prompt_binds = PromptBinds(limits.binds_in_flight_max)
        self._share = limits.failed_attempts_share
        self._share_of_all = min(1.0, SHARES_OF_ALL * self._share)
        self._paid_ns: dict[str, int] = {}  # the last one charged last
        self._slice_was_last = set[str]()
        self._trusted_failed_ns = 0  # what failed attempts ahead of those in doubt took
        # `_trusted_failed_ns` when a pod of the namespace got a node last; the last one last.
        self._placed: dict[str, int] = {}
        self.namespace_trusted: list[Callable[[str], None]] = []
        self._all_paid_ns = 0
        self._last_paid_ns = 0  # of all accounts
        self._latest_attempt = self._latest_of_others = ("", -OTHERS_RECENT_NS)
        self._used_ns: dict[str, int] = {}
        self._virtual_ns = 0

    # ── namespaces ─────────────────────────────────────────────────────────────────────────────────────────────────

    def charge_failed_attempt(self, namespace: str, elapsed_ns: int) -> None:
        if elapsed_ns <= 0:
            return
        if self.all_overdrawn_until_ns is not None and not self.is_overdrawn(namespace):
            self._trusted_failed_ns += elapsed_ns
        credit_ns = FAILED_ATTEMPT_CREDIT_NS
        paid_ns = self._charged(self._paid_ns.pop(namespace, 0), elapsed_ns, self._share, credit_ns)
        self._paid_ns[namespace] = paid_ns
        self._drop_accounts()
        self._last_paid_ns = max(self._last_paid_ns, paid_ns)
        self._all_paid_ns = self._charged(self._all_paid_ns, elapsed_ns, self._share_of_all, CREDIT_OF_ALL_NS)

    def _drop_accounts(self) -> None:
        """Those that nobody asks about any more, from the one that was charged least recently."""
        first = next(iter(self._paid_ns))
        while self._paid_ns[first] + self._recent_ns < self.now_ns or len(self._paid_ns) > _ACCOUNTS_MAX:
            del self._paid_ns[first]
            first = next(iter(self._paid_ns))

    @property
    def _recent_ns(self) -> int:
        return min(FAILED_RECENTLY_NS * max(1, len(self._paid_ns) // 100), FAILED_RECENTLY_MAX_NS)

    def _charged(self, paid_ns: int, elapsed_ns: int, share: float, credit_ns: int) -> int:
        most_ns = self.now_ns + round((credit_ns + FAILED_ATTEMPT_DEBT_MAX_NS) / share)
        return min(max(self.now_ns, paid_ns) + round(elapsed_ns / share), most_ns)

    def note_placed(self, namespace: str) -> None:
        """A pod of the namespace got a node."""
        was_in_doubt = self.is_in_doubt(namespace)
        self._placed.pop(namespace, None)
        self._placed[namespace] = self._trusted_failed_ns
        if len(self._placed) > _ACCOUNTS_MAX:
            del self._placed[next(iter(self._placed))]
        if was_in_doubt and not self.is_in_doubt(namespace):
            for tell in self.namespace_trusted:
                tell(namespace)

    def namespace_deleted(self, namespace: str) -> None:
        self._placed.pop(namespace, None)

    def charge_slice(self, namespace: str, elapsed_ns: int) -> None:
        """As a failed attempt."""
        self.charge_failed_attempt(namespace, elapsed_ns)
        if len(self._slice_was_last) >= _ACCOUNTS_MAX:
            self._slice_was_last.clear()
        self._slice_was_last.add(namespace)

    def record_attempt(self, namespace: str) -> None:
        """An attempt for a pod of the namespace is over."""
        if namespace != self._latest_attempt[0]:
            self._latest_of_others = self._latest_attempt
        self._latest_attempt = namespace, self.now_ns
        self._slice_was_last.discard(namespace)

    @property
    def is_anybody_overdrawn(self) -> bool:
        credit_ns = round(FAILED_ATTEMPT_CREDIT_NS / self._share)
        return self._share < 1 and (
            self._last_paid_ns - self.now_ns > credit_ns or self.all_overdrawn_until_ns is not None
        )

    @property
    def all_overdrawn_until_ns(self) -> int | None:
        """Until when the namespaces in doubt are overdrawn; None: they are not."""
        until_ns = self._all_paid_ns - round(CREDIT_OF_ALL_NS / self._share_of_all)
        return until_ns if until_ns > self.now_ns and self._share < 1 else None

    def is_in_doubt(self, namespace: str) -> bool:
        """Whether it is overdrawn while all are: it had a failed attempt not long ago, or no pod that got a node lately."""
        return not self._is_trusted(namespace) or self._failed_recently(namespace)

    def _failed_recently(self, namespace: str) -> bool:
        paid_ns = self._paid_ns.get(namespace)
        return paid_ns is not None and paid_ns + self._recent_ns > self.now_ns

    def _is_trusted(self, namespace: str) -> bool:
        """Unless it had a failed attempt not long ago."""
        placed_ns = self._placed.get(namespace)
        return placed_ns is not None and self._trusted_failed_ns - placed_ns < TRUST_NS

    def latest_placed(self) -> list[str]:
        """Some namespaces of which a pod got a node and none failed since, the latest one first."""
        latest = islice(reversed(self._placed), _LATEST_PLACED_MAX)
        return [namespace for namespace in latest if not self._failed_recently(namespace)]

    def owes(self, namespace: str) -> bool:
        """Whether it is overdrawn whatever the attempts of all take."""
        is_waiting = self.prompt_binds.are_too_many_of(namespace)
        return is_waiting or (self._share < 1 and self.debt_ns(namespace) > 0)

    def debt_ns(self, namespace: str) -> int:
        """The time until the debt beyond the credit is paid; 0: no debt."""
        paid_ns = self._paid_ns.get(namespace)
        return (
            0
            if paid_ns is None
            else max(0, paid_ns - self.now_ns - round(FAILED_ATTEMPT_CREDIT_NS / self._share))
        )

    def paid_ns(self, namespace: str) -> int | None:
        """When the debt beyond the credit is paid; None: there is none, or it does not matter."""
        debt_ns = self.debt_ns(namespace)
        return self.now_ns + debt_ns if debt_ns > 0 and self._share < 1 else None

    def is_overdrawn(self, namespace: str) -> bool:
        """Whether the entries of the namespace come after those of others. If the share is 1, only for its binds."""
        return self.overdrawn_until_ns(namespace) is not None

    def overdrawn_until_ns(self, namespace: str) -> int | None:
        """Until when it is overdrawn at least; None: it is not."""
        if self.prompt_binds.are_too_many_of(namespace):
            return self.now_ns
        if self._share >= 1:
            return None
        all_ns, paid_ns = self.all_overdrawn_until_ns or 0, self._paid_ns.get(namespace)
        is_trusted = self._is_trusted(namespace)
        if paid_ns is None:
            return None if is_trusted or not all_ns else all_ns
        in_doubt_ns = min(all_ns, paid_ns + self._recent_ns) if is_trusted else all_ns
        until_ns = max(self.now_ns + self.debt_ns(namespace), in_doubt_ns)
        return until_ns if until_ns > self.now_ns else None

    @property
    def is_anybody_resting(self) -> bool:
        rest_ns = round((FAILED_ATTEMPT_CREDIT_NS + FAILED_ATTEMPT_REST_NS) / self._share)
        return self._share < 1 and self._last_paid_ns - self.now_ns > rest_ns

    @property
    def is_any_slice_resting(self) -> bool:
        """Whether `slice_rest_ends_ns` may be a time for some namespace."""
        rest_ns = round((FAILED_ATTEMPT_CREDIT_NS + FAILED_ATTEMPT_REST_NS) / self._share) - ATTEMPT_FIRST_NS
        return self._share < 1 and self._last_paid_ns - self.now_ns > rest_ns

    def rest_ends_ns(self, namespace: str) -> int | None:
        """Until when no entry of the namespace is attempted; None: it does not rest."""
        return self._rest_ends_ns(namespace, 0)

    def slice_rest_ends_ns(self, namespace: str) -> int | None:
        """Until when there is no slice for the namespace; None: there can be one."""
        return self._rest_ends_ns(namespace, ATTEMPT_FIRST_NS if namespace in self._slice_was_last else 0)

    def _rest_ends_ns(self, namespace: str, more_ns: int) -> int | None:
        rest_ns = self.debt_ns(namespace) + more_ns - round(FAILED_ATTEMPT_REST_NS / self._share)
        return self.now_ns + rest_ns if rest_ns > 0 and self.has_others(namespace) else None

    def has_others(self, namespace: str) -> bool:
        """Whether another namespace had an attempt not long ago."""
        latest, latest_ns = self._latest_attempt
        if latest == namespace:
            latest_ns = self._latest_of_others[1]
        return self._share < 1 and self.now_ns - latest_ns < OTHERS_RECENT_NS

    # ── policies ───────────────────────────────────────────────────────────────────────────────────────────────────

    def charge(self, policy: str, elapsed_ns: int) -> None:
        if elapsed_ns > 0:
            self._used_ns[policy] = self._used_of(policy) + elapsed_ns

    def behind(self, policies: Collection[str]) -> Collection[str]:
        """The policies that took more time than the least one by the slack or more; they come after it."""
        if not self._used_ns:
            return ()
        least_ns = min(map(self._used_of, policies))
        self._virtual_ns = max(self._virtual_ns, least_ns)
        return [policy for policy in policies if self._used_of(policy) - least_ns >= POLICY_SLACK_NS]

    def drop_policy(self, policy: str) -> None:
        self._used_ns.pop(policy, None)

    def _used_of(self, policy: str) -> int:
        return max(self._used_ns.get(policy, 0), self._virtual_ns - POLICY_SLACK_NS)
