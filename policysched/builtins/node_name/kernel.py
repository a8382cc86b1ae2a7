"""A pod that already names its node is placed and never decided, so the filter has nobody left to refuse.

`model.pods.Pod` does not hold `spec.nodeName`: where a pod is belongs to its placement.
"""

from policysched.evaluate.kernel import ClusterContext, FilterKernel, KernelParams
from policysched.model.pods import Pod


def specialize_filter(pod: Pod, params: KernelParams, around: ClusterContext) -> FilterKernel | None:
    return None
