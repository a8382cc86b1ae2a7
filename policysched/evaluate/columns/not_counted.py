"""`NotCounted`: the columns and totals do not know a change of the cluster, so that nothing may be decided by them."""

from policysched.model.identifiers import NodeName
from policysched.model.pods import Pod


class NotCounted(Exception):
    """Counting the pod raised, or reading the node (`pod` None). `node` None: the pod was counted without one."""

    def __init__(self, node: NodeName | None, pod: Pod | None) -> None:
        super().__init__(f"{node if pod is None else pod.full_name} cannot be counted")
        self.node = node
        self.pod = pod
