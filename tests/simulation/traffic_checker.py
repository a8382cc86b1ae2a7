"""Invariants of the traffic between gang members: no member is bound to a node where the traffic to
its peers exceeds the limit.

The traffic is recomputed from the samples and from the members that the server shows on the node or
whose binds are in flight.
"""

from collections.abc import Callable, Iterator

from policysched.cluster.metric_samples import MetricSamples
from policysched.model.identifiers import NodeName, PodUid
from policysched.model.pod_status import ObservedPod
from policysched.sandbox.local_client import LocalClient
from policysched.scheduler.commands import Bind
from policysched.scheduler.in_flight_binds import InFlightBind
from policysched.scheduler.scheduler import Scheduler
from tests.simulation.policy_texts import TRAFFIC_ASSUMED, TRAFFIC_LIMIT

METRIC, LABEL = "talk", "group"


class TrafficChecker:
    """Checks one process of a replica."""

    def __init__(
        self, scheduler: Scheduler, local: LocalClient, now_ns: Callable[[], int], fail: Callable[[str], None]
    ) -> None:
        self._core = scheduler._core
        self._local, self._now_ns, self._fail = local, now_ns, fail
        self._sent: dict[PodUid, InFlightBind] = {}

    def decided(self, bind: Bind) -> None:
        """Pods with claims are skipped: they were decided when their claims were reserved, at a
        time the bind does not have.
        """
        observed = self._core.cache.pods[bind.uid]
        if not observed.pod.claims and not observed.pod.device_claims:
            self._check(bind, observed)
        self._sent[bind.uid] = self._core.binds.in_flight[bind.uid]

    def _check(self, bind: Bind, observed: ObservedPod) -> None:
        program = self._core.policies.running[bind.policy].program
        samples = self._core.samples.of_policy(bind.policy).get(METRIC)
        metric = program.metrics.get(METRIC)
        if metric is None or samples is None or self._now_ns() - samples.polled_ns > metric.stale_after_ns:
            return
        flows = [_flow(samples, observed, peer) for peer in self._peers(observed, bind.node)]
        known = [flow for flow in flows if flow is not None]
        if len(known) == len(flows) and sum(known) >= TRAFFIC_LIMIT + 1.0:
            self._fail(
                f"{bind.name} goes to {bind.node}, with {sum(known) / 1e6:.0f} Mbps of traffic to its peers"
            )

    def _peers(self, observed: ObservedPod, node: NodeName) -> Iterator[ObservedPod]:
        pod, group = observed.pod, observed.pod.labels.get(LABEL)
        for other in self._core.cache.pods.values():
            alike = (other.pod.scheduler, other.pod.namespace) == (pod.scheduler, pod.namespace)
            if group is None or not alike or other.pod.uid == pod.uid or other.deleting:
                continue
            if other.pod.labels.get(LABEL) == group and (
                self._is_in_flight(other.pod.uid, node) or self._is_on_node(other, node)
            ):
                yield other

    def _is_in_flight(self, uid: PodUid, node: NodeName) -> bool:
        """Not by a bind that is decided anew, in a gang whose members are checked one after the other."""
        sent = self._sent.get(uid)
        return sent is not None and self._core.binds.in_flight.get(uid) is sent and sent.node == node

    def _is_on_node(self, observed: ObservedPod, node: NodeName) -> bool:
        pod = self._local.get("pods", observed.pod.namespace, observed.pod.name)
        return (
            pod is not None
            and pod["metadata"]["uid"] == observed.pod.uid
            and not pod["metadata"].get("deletionTimestamp")
            and pod["spec"].get("nodeName") == node == observed.node
            and pod["status"].get("phase") not in ("Succeeded", "Failed")
        )


def _flow(samples: MetricSamples, observed: ObservedPod, peer: ObservedPod) -> float | None:
    """None when the pair has no usable samples."""
    first, two = (observed.pod.namespace, observed.pod.name), (peer.pod.namespace, peer.pod.name)
    if two in samples.pairs.get(first, {}):
        return samples.pairs[first][two]
    return 0.0 if first in samples.pairs and two in samples.pairs else TRAFFIC_ASSUMED
