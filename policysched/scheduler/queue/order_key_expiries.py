"""When the order keys of pending pods are computed again, because they change with the clock.

A namespace takes its share of the time for this, and all together theirs, as for failed attempts (`decision_time`). A key is
out of date for longer than a second where that is not enough. The time is estimated from the static cost of the order,
not measured, so that the same cluster gives the same order.
"""

from policysched.scheduler.queue.decision_time import FAILED_ATTEMPT_CREDIT_NS, SHARES_OF_ALL
from policysched.scheduler.queue.entries import PendingPod
from policysched.scheduler.queue.movable_heap import MovableHeap
from policysched.scheduler.steps import POD_OPERATIONS_AT_ONCE_MAX

_KEY_NS = 40_000
"""A key of few operations, and the new place in the queue."""
_OPERATION_NS = 20_000
"""An operation on a list of the pod, at most; one on a number takes a microsecond."""
_ACCOUNTS_MAX = 1_000
"""At this number, accounts that are paid are dropped."""


class OrderKeyExpiries:
    """Pods by the time at which their keys expire. The account of a namespace is the time at which what was computed for it
    is paid by its share, as in `DecisionTime`. `has_slow_keys`: the last slice; there is no attempt beside it. `is_held`: there
    is none beside the next one (`slice_turns`)."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._share_of_all = min(1.0, SHARES_OF_ALL * share)
        self._pods: dict[str, MovableHeap[PendingPod]] = {}  # by namespace
        self._namespaces: MovableHeap[str] = MovableHeap()  # by the time of their next pod
        self._paid_ns: dict[str, int] = {}
        self._all_paid_ns = 0
        self.has_slow_keys = self.is_held = False

    def begin_slice(self) -> bool:
        """False: it is the turn of others."""
        self.has_slow_keys = False
        return not self.is_held

    def put(self, pod: PendingPod, expires_ns: int) -> None:
        """Add the pod, or change its time."""
        self._pods.setdefault(pod.pod.namespace, MovableHeap()).put(pod, expires_ns)
        self._update(pod.pod.namespace)

    def expire(self, pod: PendingPod, now_ns: int) -> None:
        """Its key is out of date. It keeps an earlier time: otherwise those put first would always come first."""
        expires_ns = self.expires_ns(pod)
        if expires_ns is None or expires_ns > now_ns:
            self.put(pod, now_ns)

    def discard(self, pod: PendingPod) -> None:
        if (pods := self._pods.get(pod.pod.namespace)) is not None:
            pods.discard(pod)
            self._update(pod.pod.namespace)

    def expires_ns(self, pod: PendingPod) -> int | None:
        pods = self._pods.get(pod.pod.namespace)
        if pods is None or pod not in pods:
            return None
        time_ns: int = pods.key_of(pod)
        return time_ns

    def next_time_ns(self) -> int | None:
        first_ns: int | None = self._namespaces.first_key()
        if first_ns is None or self._share >= 1:
            return first_ns
        credit_ns = round(SHARES_OF_ALL * FAILED_ATTEMPT_CREDIT_NS / self._share_of_all)
        return max(first_ns, self._all_paid_ns - credit_ns)

    def pop(self, now_ns: int) -> PendingPod | None:
        """A pod whose key is due; None: no namespace has one and time for it."""
        next_ns = self.next_time_ns()
        if next_ns is None or next_ns > now_ns:
            return None
        namespace = self._namespaces.first()
        assert namespace is not None, f"no namespace is due at {next_ns}"
        pod = self._pods[namespace].pop()
        self._update(namespace)
        return pod

    def charge(self, pod: PendingPod, operations: int, now_ns: int) -> None:
        """The key of the pod is computed, at that cost."""
        self.has_slow_keys |= operations > POD_OPERATIONS_AT_ONCE_MAX
        if self._share >= 1:
            return
        if len(self._paid_ns) >= _ACCOUNTS_MAX:
            self._paid_ns = {name: paid for name, paid in self._paid_ns.items() if paid > now_ns}
        namespace, time_ns = pod.pod.namespace, _KEY_NS + operations * _OPERATION_NS
        self._paid_ns[namespace] = max(now_ns, self._paid_ns.get(namespace, 0)) + round(time_ns / self._share)
        self._all_paid_ns = max(now_ns, self._all_paid_ns) + round(time_ns / self._share_of_all)
        self._update(namespace)

    def _update(self, namespace: str) -> None:
        """Set the time of its next pod."""
        first_ns = None if namespace not in self._pods else self._pods[namespace].first_key()
        if first_ns is None:
            self._pods.pop(namespace, None)
            self._namespaces.discard(namespace)
            return
        paid_ns = self._paid_ns.get(namespace, 0)
        next_ns = max(first_ns, paid_ns - round(FAILED_ATTEMPT_CREDIT_NS / self._share))
        if namespace not in self._namespaces or self._namespaces.key_of(namespace) != next_ns:
            self._namespaces.put(namespace, next_ns)
