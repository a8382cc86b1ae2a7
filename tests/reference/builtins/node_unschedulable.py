"""A node with `spec.unschedulable` takes only pods that tolerate the taint
`node.kubernetes.io/unschedulable:NoSchedule`."""

from policysched.model.objects import Pod, Taint
from tests.reference.builtin import ClusterFacts, Params, Reasons, Seen
from tests.reference.builtins.taint_toleration import tolerates

UNSCHEDULABLE = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")


def refuse(pod: Pod, seen: Seen, params: Params, facts: ClusterFacts) -> Reasons | None:
    if not seen.node.unschedulable or any(tolerates(one, UNSCHEDULABLE) for one in pod.tolerations):
        return None
    return Reasons(("node(s) were unschedulable",), resolvable=False)
