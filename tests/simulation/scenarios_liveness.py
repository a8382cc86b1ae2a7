"""Scenarios at rest, with bugs that are visible only there."""

import asyncio
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from policysched.cluster.cache import ClusterCache
from policysched.cluster.ledger import Ledger
from policysched.cluster.volumes.reservations import VolumeReservations
from policysched.daemon.policy_feed import PolicyFeed
from policysched.evaluate import diagnosis
from policysched.kube.decode.pods import decode_pod
from policysched.kube.watch.reflector import Reflector
from policysched.kube.watch.resources import PODS
from policysched.kube.write.bind import Binder
from policysched.kube.write.events_and_conditions import Reporter
from policysched.kube.write.pending_binds import PendingBind
from policysched.kube.write.report_content import EventContent, PodScheduledCondition
from policysched.metric_sources.polling import PollingSource
from policysched.model.identifiers import NodeName
from policysched.model.namespaces import Namespace
from policysched.model.pod_status import ObservedPod
from policysched.model.pods import Pod
from policysched.runtime import watched_resources
from policysched.sandbox.kubelet import RUN_SECONDS
from policysched.scheduler.events import BindRefused, PodUpdated
from policysched.scheduler.pod_events import PodEvents
from policysched.scheduler.queue.scheduling_queue import SchedulingQueue
from tests.simulation.bugs_of_cluster_state import gangs_are_placed_partially
from tests.simulation.bugs_of_writes import a_restart_forgets_the_policy_state
from tests.simulation.policy_texts import ALPHA_WAIT, EPSILON
from tests.simulation.scenario import BETA, GAMMA, Scenario, ScenarioBug
from tests.simulation.scenarios_volumes import two_claims_and_two_disks

# ── scenarios ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def a_pod_is_bound(world: Scenario) -> None:
    world.policies(beta=BETA)
    world.node("a", cpu="4")
    world.start("leader")
    world.pod("web", cpu="1")
    await world.check_at_rest()


async def a_pod_waits(world: Scenario) -> None:
    """First without nodes, then with one that is too small, so that the reason changes."""
    world.policies(beta=BETA)
    world.start("leader")
    world.pod("web", cpu="8")
    await asyncio.sleep(20.0)
    world.node("a", cpu="4")
    await world.check_at_rest()


async def a_pod_is_gated(world: Scenario) -> None:
    world.policies(beta=BETA)
    world.start("leader")
    world.pod("web", cpu="1", gates=["example.com/wait"])
    await world.check_at_rest()


async def a_namespace_is_relabelled(world: Scenario) -> None:
    world.policies(beta=BETA)
    world.start("leader")
    await asyncio.sleep(15.0)
    space = world.local.get("namespaces", "", "default")
    assert space is not None, "a cluster has that one from the start"
    metadata = {**space["metadata"], "labels": {"tier": "gold"}}
    world.local.update("namespaces", space, lambda namespace: {**namespace, "metadata": metadata})
    await world.check_at_rest()


async def a_gang_fits(world: Scenario) -> None:
    await _create_gang_and_nodes(world, "a", "b")


async def a_gang_fits_partially(world: Scenario) -> None:
    await _create_gang_and_nodes(world, "a")


async def _create_gang_and_nodes(world: Scenario, *nodes: str) -> None:
    world.policies(gamma=GAMMA)
    for name in nodes:
        world.node(name, cpu="1")
    world.start("leader")
    for name in ("one", "two"):
        world.pod(name, cpu="1", scheduler="gamma", labels={"group": "pair", "least": "2"})
    await world.check_at_rest()


async def a_pod_waits_for_a_metric(world: Scenario) -> None:
    world.policies(alpha=ALPHA_WAIT)
    world.node("a", cpu="4")
    world.fail_metrics()
    world.start("leader")
    world.pod("web", cpu="1", scheduler="alpha")
    await world.until(lambda: world.trace_count("waits for metric load"), "the pod to wait for the metric")
    world.restore_metrics()
    await world.check_at_rest(90.0)


async def pods_finish_and_the_leader_is_killed(world: Scenario) -> None:
    """The state is saved, the pods are deleted, and later another pod finishes."""
    world.policies(epsilon=EPSILON)
    world.node("a", cpu="4")
    leader = world.start("leader")
    await _run_and_delete(world, "one", "two")

    leader.kill()
    await asyncio.sleep(30.0)
    await world.check_at_rest()
    await _run_and_delete(world, "three")
    await world.check_at_rest()


async def _run_and_delete(world: Scenario, *names: str) -> None:
    for name in names:
        world.pod(name, cpu="1", scheduler="epsilon", annotations={RUN_SECONDS: "1"})
    await asyncio.sleep(60.0)
    for name in names:
        pod = world.local.get("pods", "default", name)
        if pod is not None:
            world.local.delete("pods", pod, grace_period_s=0)
    await asyncio.sleep(5.0)


# ── bugs ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def a_bound_pod_stays_assumed() -> AbstractContextManager[Any]:
    confirm = Ledger.confirm

    def keep(self: Ledger, pod: Pod, node: NodeName) -> None:
        if pod.uid not in self._placements:
            confirm(self, pod, node)

    return patch.object(Ledger, "confirm", keep)


def volume_reservations_are_never_dropped() -> AbstractContextManager[Any]:
    return patch.object(VolumeReservations, "drop", lambda *_: None)


def no_pod_is_attempted() -> AbstractContextManager[Any]:
    return patch.object(SchedulingQueue, "can_pop", property(lambda _: False))


def every_bind_is_refused() -> AbstractContextManager[Any]:
    async def give_up(_: Binder, pending: PendingBind) -> BindRefused:
        return BindRefused(pending.bind.uid, "not in the mood")

    return patch.object(Binder, "_attempt", give_up)


def namespace_updates_are_ignored() -> AbstractContextManager[Any]:
    put = ClusterCache.put_namespace

    def put_once(self: ClusterCache, namespace: Namespace) -> Any:
        return frozenset() if namespace.name in self.namespaces else put(self, namespace)

    return patch.object(ClusterCache, "put_namespace", put_once)


def a_bind_is_recorded_twice() -> AbstractContextManager[Any]:
    say = Reporter.record_event

    def repeat(self: Reporter, words: EventContent) -> None:
        say(self, words)
        say(self, replace(words, note=f"{words.note}, as was said"))

    return patch.object(Reporter, "record_event", repeat)


def pending_pods_are_overlooked() -> AbstractContextManager[Any]:
    updated = PodEvents.updated

    def only_placed(self: PodEvents, observed: ObservedPod, now_ns: int, **more: bool) -> list[ObservedPod]:
        return [] if observed.node is None else updated(self, observed, now_ns, **more)

    return patch.object(PodEvents, "updated", only_placed)


def conditions_are_not_written() -> AbstractContextManager[Any]:
    return patch.object(Reporter, "set_condition", lambda *_: None)


def only_the_first_condition_of_a_pod_is_written() -> AbstractContextManager[Any]:
    mark = Reporter.set_condition
    marked: set[str] = set()

    def once(self: Reporter, condition: PodScheduledCondition) -> None:
        if condition.uid not in marked:
            marked.add(condition.uid)
            mark(self, condition)

    return patch.object(Reporter, "set_condition", once)


def scheduling_gates_are_not_decoded() -> AbstractContextManager[Any]:
    def decode(obj: Any) -> PodUpdated:
        observed = decode_pod(obj)
        return PodUpdated(replace(observed, pod=replace(observed.pod, gates=())))

    pods = replace(PODS, updated_event=decode, decode_update=None)
    return patch.object(watched_resources, "pods_within", lambda *_: pods)


def policies_are_never_compiled() -> AbstractContextManager[Any]:
    async def rest(_: PolicyFeed) -> None:
        await asyncio.Event().wait()

    return patch.object(PolicyFeed, "run", rest)


def nodes_are_never_listed() -> AbstractContextManager[Any]:
    read = Reflector._list

    async def wait(self: Reflector[Any], page_size: int) -> None:
        if self.kind == "Node":
            await asyncio.Event().wait()
        await read(self, page_size)

    return patch.object(Reflector, "_list", wait)


def samples_requeue_no_waiting_pod() -> AbstractContextManager[Any]:
    return patch.object(diagnosis, "_OUTAGE_REQUEUE_EVENTS", frozenset())


def a_failed_metric_poll_is_not_retried() -> AbstractContextManager[Any]:
    wait_s = PollingSource._wait_s

    def wait(self: PollingSource[Any], query: Any) -> float:
        return 1e6 if query.failures else wait_s(self, query)

    return patch.object(PollingSource, "_wait_s", wait)


SCENARIO_BUGS = (
    ScenarioBug(a_bound_pod_stays_assumed, a_pod_is_bound, (r"is still assumed on",)),
    ScenarioBug(
        volume_reservations_are_never_dropped,
        two_claims_and_two_disks,
        (r"is still reserved for a pod",),
    ),
    ScenarioBug(
        no_pod_is_attempted,
        a_pod_is_bound,
        (
            r"pods are active",
            r"is pending and the reference finds",
        ),
    ),
    ScenarioBug(no_pod_is_attempted, a_gang_fits, (r"gang .*: .* are pending and the reference finds",)),
    ScenarioBug(every_bind_is_refused, a_pod_is_bound, (r"pods are backoff",)),
    ScenarioBug(namespace_updates_are_ignored, a_namespace_is_relabelled, (r"namespaces are .*, should be",)),
    ScenarioBug(
        gangs_are_placed_partially, a_gang_fits_partially, (r"has .* placed, and nothing disturbed it",)
    ),
    ScenarioBug(a_bind_is_recorded_twice, a_pod_is_bound, (r"is on .* and has events: ",)),
    ScenarioBug(pending_pods_are_overlooked, a_pod_waits, (r"is pending and unknown to the scheduler",)),
    ScenarioBug(conditions_are_not_written, a_pod_waits, (r"is pending and its PodScheduled is",)),
    ScenarioBug(scheduling_gates_are_not_decoded, a_pod_is_gated, (r"is gated and its reason is",)),
    ScenarioBug(
        only_the_first_condition_of_a_pod_is_written, a_pod_waits, (r"shows .*, the last report is",)
    ),
    ScenarioBug(
        a_restart_forgets_the_policy_state,
        pods_finish_and_the_leader_is_killed,
        (
            r"was stored with .* runs and is in memory with",
            r"was stored with .* runs and has",
        ),
    ),
    ScenarioBug(
        policies_are_never_compiled,
        pods_finish_and_the_leader_is_killed,
        (r"the policy with a state does not run yet",),
    ),
    ScenarioBug(
        samples_requeue_no_waiting_pod, a_pod_waits_for_a_metric, (r"is pending and the reference finds",)
    ),
    ScenarioBug(
        a_failed_metric_poll_is_not_retried, a_pod_waits_for_a_metric, (r"has a sample and is unknown",)
    ),
    ScenarioBug(nodes_are_never_listed, a_pod_is_bound, (r"the leader is not synced",)),
)
