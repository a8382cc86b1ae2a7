"""Filter, for the pod's resource claims:

- a claim that has its devices can be used on the nodes that its allocation selects; on none once a condition says that these cannot be bound, or
  they were not `binding_timeout_seconds` after they were given to it;
- extended resources that a DeviceClass stands for and the node does not offer itself are one claim more, which is made for the
  pod: a request for what each container asks of each, and one for the most that an init container needs beside what
  containers after it will have; a node that lacks another of the extended resources altogether is refused, and every node while a claim of
  an earlier attempt is there;
- the others get theirs on the node: of the pools there (of a pool only the slices of its newest generation, and none
  while some are missing), gone through by driver and name, the first devices that the class's and the request's CEL selectors
  choose, that nobody has (`adminAccess` does not ask), whose taints are tolerated, whose counters and capacity suffice, and that
  keep the claim's constraints, so that all requests of all claims get what they ask for.

A pod is refused before any node is looked at while a claim is not there, is being deleted, was made for another pod, is
reserved for 256 already, or names a class that is not there. A selector that cannot be evaluated refuses the node in
its own words.

Where it refuses nobody and the pod gets a node, the devices are promised to the claims, their finalizer, allocation and
reservation are written, and the pod is bound once the conditions are met that devices name for that (`bindingConditions`). If one of
`bindingFailureConditions` comes instead, or the time is over, the pod is tried again; if that leaves it no node, the claim gives its devices back.

Score: for each request with alternatives (`firstAvailable`) 8 less the place of the one that is taken, summed, as a share of
the greatest sum; nothing where all claims have their devices already."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from policysched.cluster.devices.pod_claims import (
    PodResourceClaims,
    evaluate_node,
    pod_resource_claims,
    score_on,
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


def refuse_pod(pod: Pod, facts: ClusterFacts) -> str | None:
    devices = _devices(pod, facts)
    return devices if isinstance(devices, str) else None


def refuse(pod: Pod, seen: NodeInfo, params: BuiltinParams, facts: ClusterFacts) -> FilterReasons | None:
    devices = _devices(pod, facts)
    if not isinstance(devices, str):
        timeout_s = params["binding_timeout_seconds"]
        assert isinstance(timeout_s, int), f"a time-out of {timeout_s!r}"
        devices = replace(devices, unbindable=unbindable_claims(devices, facts.now_ns, timeout_s))
    found = devices if isinstance(devices, str) else evaluate_node(devices, seen.node, facts.devices)
    return FilterReasons((found,), resolvable=False) if isinstance(found, str) else None


def score(
    pod: Pod, candidates: Sequence[NodeInfo], params: BuiltinParams, facts: ClusterFacts
) -> Mapping[NodeName, NodeScore] | None:
    if not pod.device_claims:
        return None
    devices = _devices(pod, facts)
    if isinstance(devices, str):
        return {seen.node.name: NodeScore(0, 0) for seen in candidates}  # only where the filter is left out
    raw = {seen.node.name: score_on(devices, seen.node, facts.devices) for seen in candidates}
    most = max(raw.values())
    return {name: NodeScore(one, MAX_SCORE * one // most if most else 0) for name, one in raw.items()}


def _devices(pod: Pod, facts: ClusterFacts) -> PodResourceClaims | str:
    return pod_resource_claims(pod, facts.devices, has_stale_claim=facts.devices.has_extended_claim(pod.uid))
