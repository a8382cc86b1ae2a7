"""A pod that already names its node is placed and never decided, so the filter has nobody left to refuse.

`cluster.objects.Pod` does not hold `spec.nodeName`: where a pod is belongs to its placement.
"""

from policysched.cluster.objects import Pod
from policysched.plan.kernel import Around, FilterKernel, Params


def bind_filter(pod: Pod, params: Params, around: Around) -> FilterKernel | None:
    return None
