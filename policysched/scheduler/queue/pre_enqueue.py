"""What a policy says of a pod before any node is looked at: whether it may try, its place in the order, its kin, its
gang. Worked out when the pod comes or changes, and for all pods in slices while another text of the policy gets ready.
"""

from collections.abc import Hashable
from dataclasses import dataclass

from policysched.evaluate import GangTerms, Plan
from policysched.model.namespaces import Namespace
from policysched.model.pods import Pod, QueuedPodInfo
from policysched.scheduler.queue.equivalence import compute_equivalence_key


@dataclass(slots=True)
class PreEnqueueResult:
    """`refusal`: the text for which the pod is held; everything after it is then empty. `order_key_expires_ns`: when the key
    changes by the mere passing of time. The first three fields are what it was worked out from."""

    pod: Pod
    namespace: Namespace | None
    attempts: int
    refusal: str | None
    warnings: tuple[str, ...]
    order_key: tuple[object, ...]
    order_key_expires_ns: int | None
    equivalence_key: Hashable
    gang_terms: GangTerms | None

    def is_current(self, pod: Pod, namespace: Namespace | None, attempts: int) -> bool:
        """Whether nothing that it was worked out from has changed since."""
        return self.pod is pod and self.namespace is namespace and self.attempts == attempts


def evaluate_pre_enqueue(
    plan: Plan, pod: Pod, namespace: Namespace | None, facts: QueuedPodInfo, now_ns: int, *, reads_queue: bool
) -> PreEnqueueResult:
    refusal = plan.admission(pod, namespace)
    if refusal is not None:
        return PreEnqueueResult(pod, namespace, facts.attempts, refusal, (), (), None, None, None)
    key, flip_ns = plan.order_key(pod, namespace, facts, now_ns)
    return PreEnqueueResult(
        pod,
        namespace,
        facts.attempts,
        None,
        plan.warnings(pod, namespace),
        key,
        flip_ns,
        compute_equivalence_key(plan, pod, namespace, reads_queue=reads_queue),
        plan.gang(pod, namespace),
    )
