"""Exactly one outcome a bind, and the outcome is what the server has."""

import asyncio
from random import Random
from typing import Any
from unittest.mock import patch

import pytest

from policysched.kube.client.api import ApiClient
from policysched.kube.client.connectivity import Connectivity
from policysched.kube.client.transport import ApiRequest, Transport
from policysched.kube.write import bind as bind_module
from policysched.kube.write.bind import (
    Binder,
    BindOutcome,
    BindSettings,
    LostLeadership,
    binding_body,
)
from policysched.model.identifiers import NodeName, PodUid
from policysched.sandbox.faults import FaultRates
from policysched.scheduler.commands import Bind
from policysched.scheduler.events import BindConfirmed, BindLost, BindRefused
from tests.builders import pod_manifest
from tests.kube.world import Script, World, no_answer, on_virtual_time, running, until

LOSSY = FaultRates(
    latency_s=0.02,
    latency_spread_s=0.2,
    lost_before_share=0.15,
    lost_after_share=0.15,
    late_share=0.1,
    duplicate_share=0.1,
)


class Binding:
    """A binder and what came of its binds, by pod."""

    def __init__(self, transport: Transport, **more: Any) -> None:
        self.outcomes: dict[str, BindOutcome] = {}
        self.binder = Binder(
            ApiClient(transport),
            self._take,
            random=Random(1),
            connectivity=Connectivity(lambda: asyncio.get_running_loop().time()),
            **more,
        )

    def _take(self, outcome: BindOutcome) -> None:
        assert outcome.uid not in self.outcomes, f"a second outcome: {outcome}"
        self.outcomes[outcome.uid] = outcome


def bind(pod: dict[str, Any], node: str = "a") -> Bind:
    meta = pod["metadata"]
    return Bind(PodUid(meta["uid"]), meta["namespace"], meta["name"], NodeName(node), "test", "0" * 64)


async def bound(transport: Transport, command: Bind, **more: Any) -> BindOutcome:
    binding = Binding(transport, **more)
    async with running(binding.binder.run()):
        binding.binder.put(command)
        await until(lambda: binding.outcomes, "an outcome")
    assert binding.binder.in_flight == 0
    return binding.outcomes[command.uid]


@pytest.mark.parametrize("seed", range(5))
def test_over_a_lossy_transport_every_outcome_matches_the_server(seed: int) -> None:
    on_virtual_time(lambda: burst(seed))


def test_planted_binder_that_treats_silence_as_a_refusal_is_found() -> None:
    """The planted bug: what was not answered is withdrawn."""

    def impatient(seed: int) -> None:
        with (
            patch.object(bind_module, "RETRYABLE_ERRORS", ()),
            patch.object(bind_module, "ApiStatusError", Exception),
        ):
            on_virtual_time(lambda: burst(seed))

    with pytest.raises((AssertionError, AttributeError)):
        for seed in range(5):
            impatient(seed)


async def burst(seed: int) -> None:
    world, dice = World(), Random(seed)
    pods = [world.add_pod(f"p{number}") for number in range(60)]
    binding = Binding(world.road(LOSSY, seed), settings=BindSettings(binders=8))
    async with running(binding.binder.run()):
        for pod in pods:
            binding.binder.put(bind(pod, dice.choice("abc")))
        for pod in dice.sample(pods, 10):
            await asyncio.sleep(0.3)
            world.local.delete("pods", pod, grace_period_s=0)
        await until(lambda: len(binding.outcomes) == 60, "all outcomes", within_s=600)
        await asyncio.sleep(120)  # whatever is still on the road arrives

    for pod in world.local.list("pods"):
        outcome, node = binding.outcomes[pod["metadata"]["uid"]], pod["spec"].get("nodeName")
        if node is None:
            assert not isinstance(outcome, BindConfirmed), f"{outcome} of a pod that is not bound"
        else:
            assert outcome == BindConfirmed(outcome.uid, node), f"{outcome} of a pod on {node}"
    assert binding.binder.counts.retried > 5


def test_a_bind_carries_the_uid_and_a_timeout_of_five_seconds() -> None:
    async def scenario() -> None:
        road = Script([(201, {"kind": "Status"})])
        command = bind(pod_manifest("web", uid="u1"))

        outcome = await bound(road, command)

        assert outcome == BindConfirmed(PodUid("u1"), NodeName("a"))
        assert road.asked == [
            ApiRequest(
                "POST",
                "/api/v1/namespaces/default/pods/web/binding",
                {"timeout": "5s"},
                binding_body(command),
                timeout_s=7.0,
            )
        ]
        assert b'"uid":"u1"' in road.asked[0].body

    on_virtual_time(scenario)


def test_a_bind_is_retried_unchanged_until_it_is_answered() -> None:
    async def scenario() -> None:
        road = Script([no_answer(), (500, {}), (429, {"retryAfter": 9}), (401, {}), (201, {})])
        began_s = asyncio.get_running_loop().time()

        outcome = await bound(road, bind(pod_manifest("web")))

        assert isinstance(outcome, BindConfirmed)
        assert len({(one.path, one.body) for one in road.asked}) == 1
        assert len(road.asked) == 5
        assert asyncio.get_running_loop().time() - began_s > 9

    on_virtual_time(scenario)


def test_after_two_lost_responses_the_third_attempt_finds_the_pod_bound() -> None:
    async def scenario() -> None:
        world = World()
        pod = world.add_pod("web")
        climate = FaultRates(lost_after_share=1.0)
        road = world.road(climate)
        loop = asyncio.get_running_loop()
        loop.call_later(12, lambda: road._faults.disable())

        outcome = await bound(road, bind(pod))

        assert outcome == BindConfirmed(PodUid(pod["metadata"]["uid"]), NodeName("a"))
        assert world.node_of("web") == "a"

    on_virtual_time(scenario)


@pytest.mark.parametrize(
    ("found", "outcome"),
    [
        ({"node": "a"}, BindConfirmed),
        ({"node": "b"}, BindLost),
        ({"uid": "another"}, BindLost),
        ({}, BindRefused),
        (None, BindLost),
    ],
)
def test_after_a_conflict_the_outcome_is_read_from_the_pod(
    found: dict[str, Any] | None, outcome: type[BindOutcome]
) -> None:
    async def scenario() -> None:
        conflict = (409, {"kind": "Status", "reason": "Conflict", "message": "it is terminating"})
        pod = (404, {"kind": "Status"}) if found is None else (200, pod_manifest("web", **found))
        road = Script([conflict, no_answer(), pod])

        said = await bound(road, bind(pod_manifest("web")))

        assert type(said) is outcome
        assert isinstance(said, BindConfirmed) or "it is terminating" in said.reason

    on_virtual_time(scenario)


def test_conflicts_of_the_server_have_the_same_outcomes() -> None:
    async def scenario() -> None:
        world = World()
        elsewhere, gated, dying = (
            world.add_pod("elsewhere"),
            world.add_pod("gated", gates=["wait"]),
            world.add_pod("dying"),
        )
        terminating = {**dying, "metadata": {**dying["metadata"], "finalizers": ["test/hold"]}}
        world.local.update("pods", dying, lambda obj: {**obj, "metadata": terminating["metadata"]})
        world.local.delete("pods", dying)
        assert isinstance(await bound(world.road(), bind(elsewhere, "b")), BindConfirmed)

        outcomes = [await bound(world.road(), bind(pod)) for pod in (elsewhere, gated, dying)]

        assert [type(one) for one in outcomes] == [BindLost, BindRefused, BindRefused]

    on_virtual_time(scenario)


def test_a_refusal_is_final_unless_an_earlier_attempt_may_still_take_effect() -> None:
    async def scenario() -> None:
        forbidden = (403, {"kind": "Status", "message": "you may not"})
        command = bind(pod_manifest("web"))
        began_s = asyncio.get_running_loop().time()

        at_once = await bound(Script([forbidden]), command)
        assert asyncio.get_running_loop().time() - began_s < 1
        later = await bound(Script([no_answer(), forbidden, (200, pod_manifest("web", node="a"))]), command)

        assert at_once == BindRefused(command.uid, "you may not")
        assert later == BindConfirmed(command.uid, command.node)
        assert asyncio.get_running_loop().time() - began_s > 10

    on_virtual_time(scenario)


def test_no_bind_is_sent_after_leadership_is_lost() -> None:
    async def scenario() -> None:
        leads = True
        road = Script([no_answer()])
        binding = Binding(road, may_send=lambda: leads)
        work = asyncio.ensure_future(binding.binder.run())
        binding.binder.put(bind(pod_manifest("web")))
        await until(lambda: len(road.asked) == 3, "three tries")

        leads = False
        with pytest.raises(BaseExceptionGroup) as group:
            await work

        assert group.value.split(LostLeadership)[1] is None
        assert len(road.asked) == 3
        assert not binding.outcomes

    on_virtual_time(scenario)
