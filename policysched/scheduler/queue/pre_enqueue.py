"""What a policy decides about a pod before it looks at nodes: whether it may be tried, order key, equivalence key and gang terms.

Evaluated when the pod is created or changed, and for all pods in slices while another text of the policy is prepared.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from policysched.evaluate import GangTerms, Plan
from policysched.model.identifiers import PodUid
from policysched.model.namespaces import Namespace
from policysched.model.pods import Pod, QueuedPodInfo
from policysched.scheduler.queue.equivalence import compute_equivalence_key


@dataclass(slots=True)
class PreEnqueueResult:
    """`pod`, `namespace` and `attempts` are what it was evaluated from. `rejection`: why the pod is rejected; the fields
    after it are then empty. `order_key_expires_ns`: when the key may change by time alone."""

    pod: Pod
    namespace: Namespace | None
    attempts: int
    rejection: str | None
    warnings: tuple[str, ...]
    order_key: tuple[object, ...]
    order_key_expires_ns: int | None
    equivalence_key: Hashable
    gang_terms: GangTerms | None

    def is_current(self, pod: Pod, namespace: Namespace | None, attempts: int) -> bool:
        """Whether it was evaluated from these values."""
        return self.pod is pod and self.namespace is namespace and self.attempts == attempts


NO_RESULTS: Mapping[PodUid, PreEnqueueResult] = MappingProxyType({})


def evaluate_pre_enqueue(
    plan: Plan,
    pod: Pod,
    namespace: Namespace | None,
    facts: QueuedPodInfo,
    now_ns: int,
    *,
    reads_queue: bool,
    namespace_rejection: str | None,
) -> PreEnqueueResult:
    """`namespace_rejection`: why the policy does not serve the namespace; the policy is not evaluated then."""
    rejection = namespace_rejection or plan.pre_enqueue_message(pod, namespace)
    if rejection is not None:
        return PreEnqueueResult(pod, namespace, facts.attempts, rejection, (), (), None, None, None)
    key, expires_ns = plan.order_key(pod, namespace, facts, now_ns)
    return PreEnqueueResult(
        pod,
        namespace,
        facts.attempts,
        None,
        plan.warnings(pod, namespace),
        key,
        expires_ns,
        compute_equivalence_key(plan, pod, namespace, reads_queue=reads_queue),
        plan.gang(pod, namespace),
    )
