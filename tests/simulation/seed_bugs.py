"""The planted bugs of the seeded simulation: for each the message that a checker must report, a seed that
reports it, and where needed a fault profile that makes the bug likely.
"""

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from policysched.sandbox.faults import FaultRates
from tests.simulation.bugs_of_cluster_state import (
    a_bind_omits_the_uid,
    a_broken_policy_is_activated,
    a_condition_patch_omits_the_resource_version,
    a_deleted_node_stays_in_the_cache,
    a_deleted_pod_requeues_nothing,
    a_pod_is_bound_before_its_claims,
    a_reserved_device_is_reserved_again,
    a_reserved_volume_is_reserved_again,
    a_watch_skips_changes_after_410_gone,
    an_unanswered_bind_is_withdrawn,
    capacity_holds_never_expire,
    columns_miss_a_cordon,
    device_node_selection_is_ignored,
    devices_are_released_before_their_writes_are_answered,
    gangs_are_placed_partially,
    host_ports_are_not_checked,
    nominations_are_never_cleared,
    policy_updates_are_ignored,
    read_write_once_pod_claims_are_shared,
    the_event_of_a_node_raises,
    the_ledger_does_not_count_assumed_pods,
    the_ledger_does_not_subtract_removed_pods,
    the_overlay_omits_earlier_gang_members,
    volume_node_affinity_is_ignored,
)
from tests.simulation.bugs_of_decisions import (
    a_fair_share_queue_is_not_reordered,
    a_first_hold_evicts_pods,
    a_gang_times_out_too_early,
    a_namespace_stays_in_doubt_whatever_is_placed,
    a_pod_overtakes_others_in_backoff,
    a_preemptor_is_not_requeued_after_its_evictions,
    an_overdrawn_namespace_overtakes_itself,
    any_attempt_in_vain_costs_a_namespace_its_place,
    assumed_load_is_not_counted,
    disruption_budgets_are_ignored,
    extender_rejections_are_ignored,
    gang_preemption_ignores_earlier_members,
    gang_topology_is_ignored,
    missing_metrics_are_not_awaited,
    more_pods_are_evicted_than_needed,
    placed_gang_members_are_overlooked,
    pods_of_equal_priority_are_evicted,
    preemption_places_a_gang_partially,
    recovery_conditions_are_ignored,
    the_pod_index_keeps_deleted_pods,
    the_settings_protect_nobody,
    the_victims_condition_of_a_policy_is_ignored,
)
from tests.simulation.bugs_of_teams import (
    gangs_that_borrow_are_evicted_in_part,
    neighbours_in_rank_are_apart,
    no_quota_refuses,
    nothing_is_taken_back,
    one_borrower_at_most_gives_back,
    quota_is_taken_from_who_borrows_nothing,
)
from tests.simulation.bugs_of_writes import (
    a_bind_outlives_a_stall_of_its_process,
    a_leader_that_lost_the_lease_keeps_deciding,
    a_restart_forgets_the_policy_state,
    a_restart_ignores_the_last_known_good_policies,
    each_pod_update_counts_the_run_again,
    each_retry_of_an_event_creates_another,
    leadership_is_not_checked_at_the_write,
    pods_of_unknown_schedulers_are_scheduled,
    pods_of_unknown_schedulers_get_conditions,
    pods_of_unknown_schedulers_get_events,
    scheduled_events_are_not_recorded,
)
from tests.simulation.churn_teams import NO_PAUSES, TEAM_ACTIONS, TeamProfile
from tests.simulation.fault_profile import FaultProfile, draw_fault_profile
from tests.simulation.server_faults import HostileProfile
from tests.simulation.world import run_seed


def _as_drawn(profile: FaultProfile) -> FaultProfile:
    return profile


@dataclass(frozen=True, slots=True)
class PlantedBug:
    """`message` is a pattern for the message of the invariant that `plant` violates. `seed` is known
    to report it, with the seed's fault profile changed by `profile`.
    """

    plant: Callable[[], AbstractContextManager[Any]]
    message: str
    seed: int
    profile: Callable[[FaultProfile], FaultProfile] = _as_drawn

    @property
    def name(self) -> str:
        return self.plant.__name__

    def is_reported_by(self, seed: int) -> bool:
        """Whether the seed reports the bug, which must be planted."""
        profile = self.profile(draw_fault_profile(Random(f"{seed}/weather")))
        return any(re.search(self.message, problem) for problem in run_seed(seed, profile).problems)


def _decisions_cost_time(profile: FaultProfile) -> FaultProfile:
    return replace(profile, decisions_cost=True)


def _many_pods_finish(profile: FaultProfile) -> FaultProfile:
    """Pods that have finished and were recorded are deleted, and schedulers are killed."""
    return replace(
        _one_reliable_replica(profile),
        network_faults=FaultRates(0.01, 0.02),
        action_weights={"create a pod": 20.0, "delete a pod": 12.0, "kill a scheduler": 0.6},
        action_interval_s=0.4,
        fault_phase_s=90.0,
        nodes=9,
        pods=30,
        small_nodes=False,
    )


def _many_pods_want_volumes(profile: FaultProfile) -> FaultProfile:
    """Several pods wait for a disk and compete for each one that is added."""
    return replace(
        _one_reliable_replica(profile),
        network_faults=FaultRates(0.05, 0.2),
        action_weights={
            "create a pod": 12.0,
            "delete a pod": 10.0,
            "create a claim": 12.0,
            "put in a disk": 1.2,
        },
        action_interval_s=0.4,
        nodes=2,
        pods=10,
        small_nodes=False,
    )


def _pods_are_deleted_during_prebind(profile: FaultProfile) -> FaultProfile:
    """Writes are lost, late or repeated, and claims outlive their pods."""
    return replace(
        _one_reliable_replica(profile),
        network_faults=FaultRates(0.05, 0.2, slow_share=0.2, slow_s=1.5, lost_before_share=0.35),
        action_weights={
            "create a pod": 12.0,
            "delete a pod": 4.0,
            "create a device claim": 6.0,
            "change devices": 3.0,
        },
        action_interval_s=0.4,
        fault_phase_s=90.0,
        nodes=4,
        pods=25,
        small_nodes=False,
        deleted_in_flight_share=0.6,
    )


def _one_reliable_replica(profile: FaultProfile) -> FaultProfile:
    """One replica with no faults but those of its network."""
    return replace(
        profile,
        replicas=1,
        lease_connection_reliable=True,
        deleted_in_flight_share=0.0,
        killed_in_flight_share=0.0,
        metric_outage_share=0.0,
        extender_outage_share=0.0,
        foreign_bind_interval_s=None,
    )


def _binds_are_unanswered(profile: FaultProfile) -> FaultProfile:
    """Small nodes with a high turnover, and short watches: a bind is observed late."""
    return replace(
        _one_reliable_replica(profile),
        network_faults=FaultRates(0.01, 0.2, late_share=0.1, lost_after_share=0.2, watch_lifetime_s=4.0),
        action_weights={"create a pod": 12.0, "create an urgent pod": 8.0, "delete a pod": 12.0},
        action_interval_s=0.4,
        fault_phase_s=90.0,
        nodes=5,
        pods=30,
        small_nodes=True,
    )


def _kubelets_reject_pods(profile: FaultProfile) -> FaultProfile:
    """Foreign pods come and go while no watch is open, so that the cause of a rejection is never observed."""
    return replace(
        _one_reliable_replica(profile),
        network_faults=FaultRates(0.01, 0.02, lost_before_share=0.35, watch_lifetime_s=5.0),
        action_weights={
            "create a pod": 12.0,
            "start a static pod": 6.0,
            "delete a pod": 10.0,
            "resize a node": 6.0,
        },
        action_interval_s=0.4,
        fault_phase_s=75.0,
        nodes=6,
        pods=10,
        small_nodes=True,
        foreign_bind_interval_s=1.0,
        history_changes_max=2,
    )


def _preemptions_with_budgets(profile: FaultProfile) -> FaultProfile:
    """One preemption at a time, because overlapping ones are not judged."""
    deeds = {"create a pod": 12.0, "create an urgent pod": 8.0, "delete a pod": 1.0, "create a budget": 8.0}
    return replace(
        _one_reliable_replica(profile),
        network_faults=FaultRates(),
        action_weights=deeds,
        action_interval_s=1.0,
        fault_phase_s=60.0,
        nodes=4,
        pods=25,
        small_nodes=True,
    )


def _responses_are_lost(profile: FaultProfile) -> FaultProfile:
    """Few enough losses that no condition is lost: then missing events would not be counted."""
    return replace(
        _one_reliable_replica(profile),
        network_faults=FaultRates(0.01, lost_after_share=0.04),
        action_weights={"create a pod": 6.0, "delete a pod": 4.0},
        action_interval_s=1.5,
        fault_phase_s=60.0,
        nodes=9,
        pods=4,
        small_nodes=False,
    )


def _leaders_stand_still(profile: FaultProfile) -> FaultProfile:
    """Often for longer than `STALL_S` and less than the Lease lives, while binds wait for a connection."""
    freezes = HostileProfile(
        failing_objects_share=0.0,
        connect_wait_share=1.0,
        connect_wait_s=8.0,
        action_weights={"freeze a scheduler": 1.0},
        action_interval_s=6.0,
    )
    return replace(
        profile,
        network_faults=FaultRates(),
        action_weights={"create a pod": 6.0, "delete a pod": 4.0},
        replicas=2,
        second_replica_from_s=0.0,
        second_replica_until_s=90.0,
        lease_duration_s=15.0,
        lease_connection_reliable=True,
        hostile=freezes,
    )


def _teams_share_a_calm_cluster(profile: FaultProfile) -> FaultProfile:
    """Room for all, so that only quotas and topology decide."""
    return replace(
        _one_reliable_replica(profile),
        network_faults=FaultRates(0.01),
        action_weights={"create a pod": 1.0, "delete a pod": 1.0},
        action_interval_s=1.5,
        fault_phase_s=60.0,
        nodes=9,
        pods=4,
        small_nodes=False,
        teams=TeamProfile(TEAM_ACTIONS, 0.5, 0.0, gang_piece_cost_max=NO_PAUSES, gang_head_start_cost=50_000),
    )


def _teams_create_pod_groups(profile: FaultProfile) -> FaultProfile:
    weights = {"create a PodGroup": 5.0, "create a team's pod": 6.0, "delete a team's pod": 6.0}
    calm = _teams_share_a_calm_cluster(profile)
    assert calm.teams is not None
    return replace(calm, teams=replace(calm.teams, action_weights=weights))


PLANTED_BUGS: tuple[PlantedBug, ...] = (
    PlantedBug(
        an_unanswered_bind_is_withdrawn, r"in our pods and has", seed=49, profile=_binds_are_unanswered
    ),
    PlantedBug(the_event_of_a_node_raises, r"the event of an object raised", seed=2),
    PlantedBug(a_bind_omits_the_uid, r"is on .*, our decision was", seed=31),
    PlantedBug(the_ledger_does_not_subtract_removed_pods, r"ledger (priorities|claims): kept", seed=1),
    PlantedBug(the_ledger_does_not_count_assumed_pods, r"in our pods and has", seed=0),
    PlantedBug(the_overlay_omits_earlier_gang_members, r"is assumed on .*, the reference selects", seed=5),
    PlantedBug(gangs_are_placed_partially, r"partial gang", seed=5),
    PlantedBug(columns_miss_a_cordon, r"the plan (finds|selects|counts)", seed=3),
    PlantedBug(a_deleted_node_stays_in_the_cache, r"in the cache, but not on the API server", seed=2),
    PlantedBug(nominations_are_never_cleared, r"is nominated to .*, where no pod terminates", seed=3),
    PlantedBug(capacity_holds_never_expire, r"is still held$", seed=31, profile=_kubelets_reject_pods),
    PlantedBug(a_deleted_pod_requeues_nothing, r"(is|are) pending and the reference finds", seed=9),
    PlantedBug(a_watch_skips_changes_after_410_gone, r"missing from the cache", seed=36),
    PlantedBug(a_condition_patch_omits_the_resource_version, r"is on .* and its PodScheduled is", seed=8),
    PlantedBug(a_broken_policy_is_activated, r"by an invalid text of", seed=8),
    PlantedBug(policy_updates_are_ignored, r"the ConfigMap has", seed=38),
    PlantedBug(host_ports_are_not_checked, r"has a host port twice", seed=3),
    PlantedBug(volume_node_affinity_is_ignored, r"which is on \[", seed=1),
    PlantedBug(read_write_once_pod_claims_are_shared, r"is ReadWriteOncePod", seed=3),
    PlantedBug(a_pod_is_bound_before_its_claims, r"is not bound", seed=1),
    PlantedBug(
        a_reserved_volume_is_reserved_again,
        r"^volume .* is reserved for .* claims",
        seed=5,
        profile=_many_pods_want_volumes,
    ),
    PlantedBug(device_node_selection_is_ignored, r"has device .*, which is in", seed=4),
    PlantedBug(
        a_reserved_device_is_reserved_again,
        r"^device .* is reserved for .* claims",
        seed=0,
        profile=_pods_are_deleted_during_prebind,
    ),
    PlantedBug(
        devices_are_released_before_their_writes_are_answered,
        r"is in two claims",
        seed=64,
        profile=_pods_are_deleted_during_prebind,
    ),
    PlantedBug(pods_of_unknown_schedulers_are_scheduled, r"has an unknown scheduler and was bound", seed=0),
    PlantedBug(
        pods_of_unknown_schedulers_get_conditions, r"has an unknown scheduler and its condition is", seed=4
    ),
    PlantedBug(pods_of_unknown_schedulers_get_events, r"has an unknown scheduler and has events", seed=0),
    PlantedBug(
        each_retry_of_an_event_creates_another,
        r"was bound and has [2-9] Scheduled events",
        seed=9,
        profile=_responses_are_lost,
    ),
    PlantedBug(scheduled_events_are_not_recorded, r"was bound and has 0 Scheduled events", seed=0),
    PlantedBug(
        a_leader_that_lost_the_lease_keeps_deciding, r"decides, and the holder of the Lease is", seed=19
    ),
    PlantedBug(
        leadership_is_not_checked_at_the_write,
        r"sends .* while .* leads",
        seed=10,
        profile=_leaders_stand_still,
    ),
    PlantedBug(
        a_bind_outlives_a_stall_of_its_process,
        r"decided before it had caught up",
        seed=5,
        profile=_leaders_stand_still,
    ),
    PlantedBug(
        a_restart_ignores_the_last_known_good_policies, r"decides without .*, which were saved", seed=8
    ),
    PlantedBug(a_restart_forgets_the_policy_state, r"was stored with", seed=8, profile=_many_pods_finish),
    PlantedBug(
        each_pod_update_counts_the_run_again, r"counts .* runs, and", seed=1, profile=_many_pods_finish
    ),
    PlantedBug(the_victims_condition_of_a_policy_is_ignored, r"its label .* protects it", seed=7),
    PlantedBug(the_settings_protect_nobody, r", which the settings protect", seed=5),
    PlantedBug(pods_of_equal_priority_are_evicted, r"whose priority is not higher", seed=0),
    PlantedBug(
        disruption_budgets_are_ignored, r"which violates a budget", seed=21, profile=_preemptions_with_budgets
    ),
    PlantedBug(a_first_hold_evicts_pods, r"of which none is needed", seed=721, profile=_kubelets_reject_pods),
    PlantedBug(more_pods_are_evicted_than_needed, r"of which .* is not needed", seed=21),
    PlantedBug(
        a_preemptor_is_not_requeued_after_its_evictions, r"is pending and the reference finds", seed=14
    ),
    PlantedBug(preemption_places_a_gang_partially, r"members placed, and preemption places", seed=5),
    PlantedBug(gang_preemption_ignores_earlier_members, r"preemption places .* on", seed=5),
    PlantedBug(a_fair_share_queue_is_not_reordered, r"goes before", seed=2),
    PlantedBug(a_pod_overtakes_others_in_backoff, r"stands ahead of it and fits too", seed=21),
    PlantedBug(
        an_overdrawn_namespace_overtakes_itself,
        r"stands ahead of it and fits too",
        seed=24,
        profile=_decisions_cost_time,
    ),
    PlantedBug(
        any_attempt_in_vain_costs_a_namespace_its_place,
        r"stands ahead of it and fits too",
        seed=14,
        profile=_decisions_cost_time,
    ),
    PlantedBug(
        a_namespace_stays_in_doubt_whatever_is_placed,
        r"stands ahead of it and fits too",
        seed=104,
        profile=_decisions_cost_time,
    ),
    PlantedBug(assumed_load_is_not_counted, r"with the assumed load", seed=33),
    PlantedBug(placed_gang_members_are_overlooked, r"of traffic to its peers", seed=1),
    PlantedBug(recovery_conditions_are_ignored, r"was over the limit", seed=317),
    PlantedBug(missing_metrics_are_not_awaited, r"whose load is unknown", seed=7),
    PlantedBug(the_pod_index_keeps_deleted_pods, r"(active|ended) pods: index has", seed=2),
    PlantedBug(extender_rejections_are_ignored, r"which an extender rejects", seed=19),
    PlantedBug(gang_topology_is_ignored, r"has a topology and goes to domains", seed=32),
    PlantedBug(a_gang_times_out_too_early, r"reports its gang as failed after", seed=23),
    PlantedBug(no_quota_refuses, r"is bound above a quota", seed=0, profile=_teams_share_a_calm_cluster),
    PlantedBug(
        nothing_is_taken_back,
        r"is entitled to its quota and waits",
        seed=2,
        profile=_teams_share_a_calm_cluster,
    ),
    PlantedBug(
        one_borrower_at_most_gives_back,
        r"and waits for what \S+, ",
        seed=31,
        profile=_teams_share_a_calm_cluster,
    ),
    PlantedBug(
        quota_is_taken_from_who_borrows_nothing,
        r"borrows nothing and is a victim of",
        seed=12,
        profile=_teams_share_a_calm_cluster,
    ),
    PlantedBug(
        gangs_that_borrow_are_evicted_in_part,
        r"is evicted in part",
        seed=1,
        profile=_teams_share_a_calm_cluster,
    ),
    PlantedBug(neighbours_in_rank_are_apart, r"has room beside it", seed=0, profile=_teams_create_pod_groups),
)
