"""The fault profile of a seed: how unreliable the network is, how large the cluster, and how often each action happens.

A profile is drawn from the seed before the run starts. A seed with every fault at once detects
little, because no decision gets far enough. So each kind of fault is either absent or frequent.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from policysched.sandbox.faults import FaultRates
from tests.simulation.churn_teams import TeamProfile
from tests.simulation.server_faults import HostileProfile

LATENCY_MAX_S = 1.7
"""The longest latency of a request. A new leader waits two seconds beyond the timeout of a request."""

ACTIONS: Mapping[str, tuple[float, float]] = {
    # users and machines: (share of the seeds, weight where present)
    "create a pod": (1.0, 12.0),
    "create an urgent pod": (0.7, 5.0),
    "create a gang": (0.7, 4.0),
    "create an urgent gang": (0.5, 3.0),
    "delete a pod": (1.0, 5.0),
    "recreate a pod": (0.4, 2.0),
    "ungate a pod": (0.6, 2.0),
    "edit a pod": (0.5, 2.0),
    "add a node": (0.5, 1.5),
    "remove a node": (0.3, 1.0),
    "cordon a node": (0.4, 1.5),
    "taint a node": (0.5, 2.0),
    "relabel a node": (0.3, 1.0),
    "resize a node": (0.3, 1.0),
    "relabel a namespace": (0.4, 1.0),
    "edit a policy": (0.6, 2.0),
    "break a policy": (0.5, 2.0),
    "delete a policy": (0.3, 1.0),
    "delete the ConfigMap": (0.3, 1.0),
    "forget the history": (0.4, 1.0),
    "restart the server": (0.3, 0.5),
    "start a static pod": (0.4, 2.0),
    "create a budget": (0.6, 2.0),
    "create a claim": (0.5, 3.0),
    "delete a claim": (0.3, 1.0),
    "put in a disk": (0.5, 2.0),
    "create a device claim": (0.5, 2.0),
    "delete a device claim": (0.3, 1.0),
    "change devices": (0.5, 2.0),
    # faults of the scheduler itself
    "kill a scheduler": (0.5, 0.5),
    "stop a scheduler": (0.3, 0.5),
    "cut a scheduler off": (0.3, 0.4),
}


@dataclass(frozen=True, slots=True)
class FaultProfile:
    """Times in seconds, shares between 0 and 1. `action_weights` are relative weights;
    `action_interval_s` is the mean time between two actions.
    """

    network_faults: FaultRates
    fault_phase_s: float
    action_weights: Mapping[str, float]
    action_interval_s: float
    nodes: int
    pods: int
    pods_max: int
    replicas: int
    second_replica_from_s: float
    second_replica_until_s: float
    lease_duration_s: float
    history_changes_max: int
    foreign_bind_interval_s: float | None
    """Mean time between two binds by another scheduler; None: there is none."""
    deleted_in_flight_share: float
    """The share of our binds whose pod is deleted while the bind is in flight."""
    killed_in_flight_share: float
    """The share of our binds during which the scheduler is killed."""
    metric_latency_s: float
    metric_outage_share: float
    extender_latency_s: float
    extender_outage_share: float
    lease_connection_reliable: bool
    """Whether the Lease's connection has no faults. With faults no replica leads for long."""
    small_nodes: bool
    """Nodes so small that freed capacity is used at once."""
    hostile: HostileProfile | None = None
    """Drawn apart, so that seeds without these faults stay what they were."""
    teams: TeamProfile | None = None
    """Quotas, PodGroups, refused binds of gang members and pauses in attempts, drawn apart too."""
    decisions_cost: bool = False
    """Whether decisions take time, so that namespaces are overdrawn (`decision_costs`); drawn apart too."""


def draw_fault_profile(random: Random) -> FaultProfile:
    """Draw the profile of one seed."""
    deeds = {
        name: weight * (0.5 + random.random())
        for name, (share, weight) in ACTIONS.items()
        if random.random() < share
    }
    fast = random.random() < 0.6
    return FaultProfile(
        network_faults=_draw_network_faults(random),
        fault_phase_s=random.uniform(30.0, 90.0),
        action_weights=deeds,
        action_interval_s=random.choice((0.4, 0.8, 1.5)),
        nodes=random.randint(3, 9),
        pods=random.randint(4, 30),
        pods_max=45,
        replicas=2 if random.random() < 0.4 else 1,
        second_replica_from_s=random.uniform(0.0, 20.0),
        second_replica_until_s=random.uniform(40.0, 90.0),
        lease_duration_s=5.0 if fast else 15.0,
        history_changes_max=random.choice((2, 10, 10_000)),
        foreign_bind_interval_s=random.choice((None, None, 2.0, 6.0)),
        deleted_in_flight_share=random.choice((0.0, 0.0, 0.1, 0.3)),
        killed_in_flight_share=random.choice((0.0, 0.0, 0.0, 0.04)),
        metric_latency_s=random.choice((0.2, 5.0)),
        metric_outage_share=random.choice((0.0, 0.0, 0.3)),
        extender_latency_s=random.choice((0.1, 1.0)),
        extender_outage_share=random.choice((0.0, 0.0, 0.2)),
        lease_connection_reliable=random.random() < 0.7,
        small_nodes=random.random() < 0.5,
    )


def _draw_network_faults(random: Random) -> FaultRates:
    def sometimes(share: float, low: float, high: float) -> float:
        return random.uniform(low, high) if random.random() < share else 0.0

    return FaultRates(
        latency_s=random.choice((0.001, 0.01, 0.05)),
        latency_spread_s=random.choice((0.0, 0.02, 0.2)),
        slow_share=sometimes(0.4, 0.01, 0.1),
        slow_s=random.uniform(0.3, LATENCY_MAX_S),
        lost_before_share=sometimes(0.5, 0.02, 0.3),
        lost_after_share=sometimes(0.5, 0.02, 0.3),
        late_share=sometimes(0.5, 0.02, 0.3),
        duplicate_share=sometimes(0.3, 0.01, 0.1),
        watch_lifetime_s=random.uniform(1.0, 30.0) if random.random() < 0.6 else None,
        truncated_line_share=random.choice((0.0, 0.5)),
        split_share=sometimes(0.3, 0.05, 0.5),
    )
