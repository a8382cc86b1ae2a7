"""Every feature that the pod needs is in the node's `status.declaredFeatures`.

A pod needs `RestartAllContainersOnContainerExits` if one of its containers, or init containers, has a rule in
`restartPolicyRules` with the action RestartAllContainers, and `UserNamespacesHostNetworkSupport` if it has `hostNetwork`
and says `hostUsers: false`. What else kubelets declare concerns changes of running pods."""

from policysched.model.pods import Pod
from tests.reference.builtin_interface import BuiltinParams, ClusterFacts, FilterReasons, NodeInfo


def refuse(pod: Pod, seen: NodeInfo, params: BuiltinParams, facts: ClusterFacts) -> FilterReasons | None:
    if pod.required_features <= seen.node.declared_features:
        return None
    return FilterReasons(("node(s) didn't match Pod's required features",), resolvable=False)
