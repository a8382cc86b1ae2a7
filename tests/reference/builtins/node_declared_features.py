"""Filter: every feature that the pod requires is in the node's `status.declaredFeatures`.

A pod requires `RestartAllContainersOnContainerExits` if a container or init container has a rule in
`restartPolicyRules` with the action RestartAllContainers, `VolumeBindMountOptions` if a volume mount
has `bindMountOptions` (since 1.37, with the feature gate of that name), and
`UserNamespacesHostNetworkSupport` if it has `hostNetwork` and `hostUsers: false`. Other declared
features concern updates of running pods."""

from policysched.model.pods import Pod
from tests.reference.builtin_interface import BuiltinParams, ClusterFacts, FilterReasons, NodeInfo


def filter_node(
    pod: Pod, node_info: NodeInfo, params: BuiltinParams, facts: ClusterFacts
) -> FilterReasons | None:
    if pod.required_features <= node_info.node.declared_features:
        return None
    return FilterReasons(("node(s) didn't match Pod's required features",), resolvable=False)
