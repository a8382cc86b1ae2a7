"""What a worker is asked to try: a changed text of a policy, and whether to simulate it on a cluster."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from policysched.cluster.metric_samples import MetricSamples
from policysched.scheduler.policy_permissions import ANY_POLICY_NAME, PolicyPermissions


@dataclass(frozen=True, slots=True)
class PolicyTry:
    """`texts` are those of the policies' ConfigMap, `key` the one of the policy, `text` what it would be. `running`: the text
    that runs. Without `simulates` it is only checked. `placed_max`: this number of the policy's latest placed pods is placed
    again as well. `samples` and `states` are those of the running policy."""

    policy: str
    key: str
    location: str
    text: str
    running: str
    texts: Mapping[str, str]
    cost_max: int
    simulates: bool
    now_ns: int
    placed_max: int = 0
    samples: Mapping[str, MetricSamples] = field(default_factory=dict)
    states: str | None = None
    permissions: PolicyPermissions = ANY_POLICY_NAME
