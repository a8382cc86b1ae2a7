"""Filter, for the pod's resource claims:

- An allocated claim can be used on the nodes that its allocation selects. It can be used on no node
  if a binding failure condition of its devices is True, or if they are not ready
  `binding_timeout_seconds` after the allocation.
- Extended resources that a DeviceClass provides and the node does not offer itself need one more
  claim, which is created for the pod. It has a request for each container and resource, and one for
  the most that an init container needs beside the devices of later containers. A node that lacks
  another extended resource of the pod is rejected, and every node is rejected while the claim of an
  earlier attempt exists. With `extended_resources = no` only nodes that offer the resource itself
  have it. Without the feature gate DRAExtendedResource the API server drops the pod's status about
  the claim: then the pod is not bound, and the claim is deleted.
- Other claims are allocated on the node. Pools are searched by driver and name; of each pool only
  the slices of the latest generation count, and none while some are missing. Each request gets the
  first devices that match the CEL selectors of the class and the request, are not allocated
  (`adminAccess` ignores this), have only tolerated taints, have enough counters and capacity, and
  satisfy the claim's constraints, so that all requests of all claims are satisfied.

A pod is rejected on all nodes while a claim does not exist, is being deleted, was created for
another pod, is reserved for 256 pods already, or names a class that does not exist.

An error on a node that no filter before this one rejects stops the attempt: no other node is
selected either, and the message is that of the error. Errors are a selector that cannot be
evaluated for a device (CEL), and a request for all devices while a pool is updated. An invalid pool
rejects its nodes only. So does a search that exceeds its limit of steps (kube-scheduler stops the
attempt when its search takes longer than `filterTimeout`).

When the pod gets a node, the devices are reserved for the claims. PreBind writes their finalizer,
allocation and reservation, and waits until the `bindingConditions` of the devices are True. If one
of `bindingFailureConditions` becomes True or the time is over, the pod is tried again; if it then
fits no node, the claim is deallocated.

Score: for each request with alternatives (`firstAvailable`), 8 minus the index of the chosen
alternative; the sum, as a percentage of the largest sum. A pod whose claims are all allocated
scores 0."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from policysched.cluster.devices.pod_claims import (
    ClaimsByNode,
    PodResourceClaims,
    pod_resource_claims,
    unbindable_claims,
)
from policysched.model.identifiers import NodeName
from policysched.model.pods import Pod
from tests.reference.builtin_interface import (
    MAX_SCORE,
    BuiltinParams,
    ClusterFacts,
    FilterReasons,
    NodeInfo,
    NodeScore,
)


def prefilter(pod: Pod, facts: ClusterFacts) -> str | None:
    devices = _devices(pod, facts)
    return devices if isinstance(devices, str) else None


def filter_node(
    pod: Pod, node_info: NodeInfo, params: BuiltinParams, facts: ClusterFacts
) -> FilterReasons | None:
    devices = _devices(pod, facts)
    if not isinstance(devices, str):
        timeout_s = params["binding_timeout_seconds"]
        assert isinstance(timeout_s, int), f"a timeout of {timeout_s!r}"
        devices = replace(devices, unbindable=unbindable_claims(devices, facts.now_ns, timeout_s))
    outcome = (
        devices if isinstance(devices, str) else ClaimsByNode(devices, facts.devices).evaluate(node_info.node)
    )
    return FilterReasons((outcome,), resolvable=False) if isinstance(outcome, str) else None


def attempt_error(pod: Pod, node_info: NodeInfo, facts: ClusterFacts) -> str | None:
    devices = _devices(pod, facts)
    return (
        None
        if isinstance(devices, str)
        else ClaimsByNode(devices, facts.devices).attempt_error(node_info.node)
    )


def score(
    pod: Pod, candidates: Sequence[NodeInfo], params: BuiltinParams, facts: ClusterFacts
) -> Mapping[NodeName, NodeScore] | None:
    if not pod.device_claims:
        return None
    devices = _devices(pod, facts)
    if isinstance(devices, str):
        return {
            node_info.node.name: NodeScore(0, 0) for node_info in candidates
        }  # only where the filter is left out
    raw = {
        node_info.node.name: ClaimsByNode(devices, facts.devices).score(node_info.node)
        for node_info in candidates
    }
    most = max(raw.values())
    return {
        name: NodeScore(number, MAX_SCORE * number // most if most else 0) for name, number in raw.items()
    }


def _devices(pod: Pod, facts: ClusterFacts) -> PodResourceClaims | str:
    if pod.uid not in facts.device_claims:
        seen = pod if facts.allocates_devices else replace(pod, extended=())
        facts.device_claims[pod.uid] = pod_resource_claims(
            seen, facts.devices, has_stale_claim=facts.devices.has_extended_claim(seen)
        )
    return facts.device_claims[pod.uid]
