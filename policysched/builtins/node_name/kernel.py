"""A pod that names its node is already placed and never queued, so the filter has nothing to
reject.
"""

from policysched.evaluate.kernel import ClusterContext, FilterKernel, KernelParams
from policysched.model.pods import Pod


def specialize_filter(pod: Pod, params: KernelParams, cluster_context: ClusterContext) -> FilterKernel | None:
    return None
