"""What runs when a metric sample arrives, or when a poll ends without samples.

    SamplesArrived ──► samples of the policy (with assumed load and recovery conditions)
                   ──► a policy that waits for its first samples may become active
                   ──► metric outages are counted again
                   ──► pods of the policy that depend on samples are requeued

`metric_sources` polls and posts the events; the values are kept in `policies.policy_samples`.
"""

from contextlib import nullcontext

from policysched.cluster.metric_samples import MetricSamples
from policysched.model.cluster_events import ClusterEvent
from policysched.scheduler.blame import metric_id, raises_for
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.metric_outages import MetricOutages
from policysched.scheduler.policy_reload import PolicyReload


class SampleEvents:
    """Applies `SamplesArrived` and `SamplesFailed`."""

    def __init__(self, core: SchedulerCore, reload: PolicyReload, outages: MetricOutages) -> None:
        self._core = core
        self._reload = reload
        self._outages = outages

    def arrived(self, policy: str, metric: str, samples: MetricSamples, now_ns: int) -> None:
        with raises_for(metric_id(policy, metric, self._core.permissions.owner(policy))):
            self._core.samples.put(policy, metric, samples)
            self._metric_polled(policy, metric, now_ns)
            self._core.queue.requeue({ClusterEvent.SAMPLES}, now_ns, policy=policy)

    def failed(self, policy: str, metric: str, now_ns: int) -> None:
        """The poll failed, or no source serves the metric. Earlier samples are used until they are stale."""
        running = self._core.policies.running.get(policy)
        with nullcontext() if running is None else self._core.raises_for_text(running.program):
            self._metric_polled(policy, metric, now_ns)

    def _metric_polled(self, policy: str, metric: str, now_ns: int) -> None:
        """A poll of the metric ended, with samples or without."""
        self._reload.metric_polled(policy, metric)
        self._outages.recount(policy, now_ns)
