"""Exactly one outcome a bind, and the outcome is what the server has."""

import asyncio
import gc
import time
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any
from unittest.mock import patch

import pytest

from policysched.daemon.event_loop import run_event_loop
from policysched.kube.client.api import ApiClient
from policysched.kube.client.connectivity import Connectivity
from policysched.kube.client.transport import ApiRequest, ApiResponse, RequestNotSent, Transport
from policysched.kube.write import bind as bind_module
from policysched.kube.write import pending_binds
from policysched.kube.write.bind import (
    Binder,
    BindSettings,
    LostLeadership,
    RetryLater,
)
from policysched.kube.write.bind_object import BindOutcome, binding_body
from policysched.kube.write.bind_queue import BindQueue
from policysched.kube.write.namespace_turns import SLOW_FOR_S
from policysched.kube.write.pending_binds import PendingBind
from policysched.model.identifiers import NodeName, PodUid
from policysched.sandbox.faults import FaultRates
from policysched.scheduler.commands import Bind
from policysched.scheduler.events import BindConfirmed, BindDelayed, BindLost, BindRefused
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
        self.delays: list[BindDelayed] = []
        self.connectivity = Connectivity(lambda: asyncio.get_running_loop().time())
        self.binder = Binder(
            ApiClient(transport),
            self._take,
            random=Random(1),
            connectivity=self.connectivity,
            **more,
        )

    def _take(self, outcome: BindOutcome | BindDelayed) -> None:
        if isinstance(outcome, BindDelayed):
            assert outcome.uid not in self.outcomes, f"a delay after the outcome: {outcome}"
            self.delays.append(outcome)
            return
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


def test_planted_binder_that_treats_silence_as_a_refusal_is_detected() -> None:
    """The planted bug: what was not answered is withdrawn."""

    def impatient(seed: int) -> None:
        with (
            patch.object(bind_module, "RETRYABLE_ERRORS", ()),
            patch.object(bind_module, "ApiStatusError", Exception),
        ):
            on_virtual_time(lambda: burst(seed))

    with pytest.raises(AssertionError, match="in vain for all outcomes"):
        for seed in range(5):
            impatient(seed)


async def burst(seed: int) -> None:
    world, rng = World(), Random(seed)
    pods = [world.add_pod(f"p{number}") for number in range(60)]
    binding = Binding(world.transport(LOSSY, seed), settings=BindSettings(concurrent_binds_max=8))
    async with running(binding.binder.run()):
        for pod in pods:
            binding.binder.put(bind(pod, rng.choice("abc")))
        for pod in rng.sample(pods, 10):
            await asyncio.sleep(0.3)
            world.local.delete("pods", pod, grace_period_s=0)
        await until(lambda: len(binding.outcomes) == 60, "all outcomes", within_s=600)
        await asyncio.sleep(120)  # whatever is still in flight arrives

    for pod in world.local.list("pods"):
        outcome, node = binding.outcomes[pod["metadata"]["uid"]], pod["spec"].get("nodeName")
        if node is None:
            assert not isinstance(outcome, BindConfirmed), f"{outcome} of a pod that is not bound"
        else:
            assert outcome == BindConfirmed(outcome.uid, node), f"{outcome} of a pod on {node}"
    assert binding.binder.counts.retried > 5


def test_a_bind_carries_the_uid_and_a_timeout_of_five_seconds() -> None:
    async def scenario() -> None:
        transport = Script([(201, {"kind": "Status"})])
        command = bind(pod_manifest("web", uid="u1"))

        outcome = await bound(transport, command)

        assert outcome == BindConfirmed(PodUid("u1"), NodeName("a"))
        assert transport.requests == [
            ApiRequest(
                "POST",
                "/api/v1/namespaces/default/pods/web/binding",
                {"timeout": "5s"},
                binding_body(command),
                timeout_s=7.0,
            )
        ]
        assert b'"uid":"u1"' in transport.requests[0].body

    on_virtual_time(scenario)


def test_a_bind_is_retried_unchanged_until_it_is_answered() -> None:
    async def scenario() -> None:
        transport = Script([no_answer(), (500, {}), (429, {"retryAfter": 7}), (401, {}), (201, {})])
        began_s = asyncio.get_running_loop().time()

        outcome = await bound(transport, bind(pod_manifest("web")))

        assert isinstance(outcome, BindConfirmed)
        assert len({(request.path, request.body) for request in transport.requests}) == 1
        assert len(transport.requests) == 5
        assert asyncio.get_running_loop().time() - began_s > 7

    on_virtual_time(scenario)


def test_after_two_lost_responses_the_third_attempt_finds_the_pod_bound() -> None:
    async def scenario() -> None:
        world = World()
        pod = world.add_pod("web")
        fault_rates = FaultRates(lost_after_share=1.0)
        transport = world.transport(fault_rates)
        loop = asyncio.get_running_loop()
        loop.call_later(12, lambda: transport._faults.disable())

        outcome = await bound(transport, bind(pod))

        assert outcome == BindConfirmed(PodUid(pod["metadata"]["uid"]), NodeName("a"))
        assert world.node_of("web") == "a"

    on_virtual_time(scenario)


@pytest.mark.parametrize(
    ("stored", "outcome"),
    [
        ({"node": "a"}, BindConfirmed),
        ({"node": "b"}, BindLost),
        ({"uid": "another"}, BindLost),
        ({}, BindRefused),
        (None, BindLost),
    ],
)
def test_after_a_conflict_the_outcome_is_read_from_the_pod(
    stored: dict[str, Any] | None, outcome: type[BindOutcome]
) -> None:
    async def scenario() -> None:
        conflict = (409, {"kind": "Status", "reason": "Conflict", "message": "it is terminating"})
        pod = (404, {"kind": "Status"}) if stored is None else (200, pod_manifest("web", **stored))
        transport = Script([conflict, no_answer(), pod])

        answer = await bound(transport, bind(pod_manifest("web")))

        assert type(answer) is outcome
        assert isinstance(answer, BindConfirmed) or "it is terminating" in answer.reason

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
        assert isinstance(await bound(world.transport(), bind(elsewhere, "b")), BindConfirmed)

        outcomes = [await bound(world.transport(), bind(pod)) for pod in (elsewhere, gated, dying)]

        assert [type(outcome) for outcome in outcomes] == [BindLost, BindRefused, BindRefused]

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


def test_a_conflict_is_not_final_while_an_earlier_attempt_may_still_take_effect() -> None:
    """A webhook may deny with any code: 409 then says nothing about the request before."""

    async def scenario() -> None:
        denied = (409, {"kind": "Status", "reason": "Conflict", "message": "not now"})
        unbound, on_a = (200, pod_manifest("web")), (200, pod_manifest("web", node="a"))
        command = bind(pod_manifest("web"))

        assert await bound(Script([no_answer(), denied, unbound, on_a]), command) == BindConfirmed(
            command.uid, command.node
        )
        refused = await bound(Script([no_answer(), denied, unbound, unbound]), command)
        assert refused == BindRefused(command.uid, "not now")

    on_virtual_time(scenario)


def test_no_bind_is_sent_after_leadership_is_lost() -> None:
    async def scenario() -> None:
        leads = True
        transport = Script([no_answer()])
        binding = Binding(transport, may_send=lambda: leads)
        work = asyncio.ensure_future(binding.binder.run())
        binding.binder.put(bind(pod_manifest("web")))
        await until(lambda: len(transport.requests) == 3, "three tries")

        leads = False
        with pytest.raises(BaseExceptionGroup) as group:
            await work

        assert group.value.split(LostLeadership)[1] is None
        assert len(transport.requests) == 3
        assert not binding.outcomes

    on_virtual_time(scenario)


def not_sent() -> RequestNotSent:
    return RequestNotSent(ApiRequest("POST", "/api/v1/namespaces/default/pods/web/binding"))


def test_a_bind_that_never_left_is_refused_and_one_that_may_have_left_is_sent_again() -> None:
    """The first is decided anew, on what the cluster is by then; the second still holds its room."""

    async def scenario() -> None:
        command = bind(pod_manifest("web"))

        never_left = await bound(Script([not_sent()]), command)
        may_have_left = await bound(Script([no_answer(), not_sent(), not_sent(), (201, {})]), command)

        assert isinstance(never_left, BindRefused) and never_left.stalled
        assert may_have_left == BindConfirmed(command.uid, command.node)

    on_virtual_time(scenario)


def test_a_bind_that_is_stopped_at_the_write_after_leadership_is_lost_ends_the_binder() -> None:
    async def scenario() -> None:
        answers = iter([True, False])
        binding = Binding(Script([not_sent()]), may_send=lambda: next(answers))
        work = asyncio.ensure_future(binding.binder.run())
        binding.binder.put(bind(pod_manifest("web")))

        with pytest.raises(BaseExceptionGroup) as group:
            await work

        assert group.value.split(LostLeadership)[1] is None
        assert not binding.outcomes and not binding.connectivity.unreachable

    on_virtual_time(scenario)


def test_a_bind_that_was_decided_before_a_stall_never_leaves_after_it() -> None:
    """The lease was held all the time, so the process may write again; the cluster may have changed."""

    async def scenario() -> None:
        world, stalls = World(), 0

        def fence() -> Callable[[], bool]:
            before = stalls
            return lambda: stalls == before

        binding = Binding(world.transport(), fence=fence)
        first, second = bind(world.add_pod("first")), bind(world.add_pod("second"))
        binding.binder.put(first)
        stalls += 1
        binding.binder.put(second)
        async with running(binding.binder.run()):
            await until(lambda: len(binding.outcomes) == 2, "both outcomes")

        outcome = binding.outcomes[first.uid]
        assert isinstance(outcome, BindRefused) and "stalled" in outcome.reason
        assert (world.node_of("first"), world.node_of("second")) == (None, "a")

    on_virtual_time(scenario)


def test_a_bind_that_may_have_left_before_a_stall_is_sent_again_after_it() -> None:
    async def scenario() -> None:
        script, is_current = Script([no_answer(), (201, {})]), True
        command = bind(pod_manifest("web"))
        binding = Binding(script, fence=lambda: lambda: is_current)
        async with running(binding.binder.run()):
            binding.binder.put(command)
            await until(lambda: script.requests, "the first request")
            is_current = False
            await until(lambda: binding.outcomes, "the outcome")

        assert binding.outcomes[command.uid] == BindConfirmed(command.uid, command.node)
        assert [request.may_write is None for request in script.requests] == [False, True]

    on_virtual_time(scenario)


def test_a_cancelled_bind_is_not_sent_unless_it_was_sent_before() -> None:
    async def scenario() -> None:
        script = Script([no_answer(), (201, {})])
        sent, unsent = bind(pod_manifest("sent")), bind(pod_manifest("unsent"))
        binding = Binding(script, settings=BindSettings(concurrent_binds_max=1))
        async with running(binding.binder.run()):
            binding.binder.put(sent)
            await until(lambda: script.requests, "the first request")
            binding.binder.put(unsent)
            for command in (sent, unsent):
                binding.binder.cancel(command.uid)
            await until(lambda: len(binding.outcomes) == 2, "both outcomes")

        assert binding.outcomes[sent.uid] == BindConfirmed(sent.uid, sent.node)
        assert binding.outcomes[unsent.uid] == BindRefused(unsent.uid, "not sent: cancelled")
        assert {request.path.split("/")[-2] for request in script.requests} == {"sent"}
        binding.binder.cancel(sent.uid)

    on_virtual_time(scenario)


def test_thousands_of_cancelled_binds_are_refused_at_once_and_in_linear_time() -> None:
    """A tenant whose webhook fails thousands of binds of a gang and then denies one: each cancellation looked at all."""

    async def scenario() -> None:
        count = 2_000
        binding = Binding(Server(lambda _: WEBHOOK_DOWN), settings=BindSettings(concurrent_binds_max=4))
        binds = commands("bad", count)
        async with running(binding.binder.run()):
            for command in binds:
                binding.binder.put(command)
            await asyncio.sleep(5.0)
            gc.disable()  # a full collection of what the tests before left takes longer
            try:
                began_s = time.process_time()
                for command in binds:
                    binding.binder.cancel(command.uid)
                took_s = time.process_time() - began_s
            finally:
                gc.enable()
            assert took_s < 0.1, "a microsecond each; 0.3 s if each looks at all"
            assert len(binding.outcomes) > count - 20
            assert binding.binder.in_flight == count - len(binding.outcomes)

    on_virtual_time(scenario)


def test_binds_of_pods_that_are_gone_do_not_wait_for_a_failing_namespace() -> None:
    """A tenant with a failing webhook creates pods and deletes them: each stayed in memory, as long as the webhook failed."""

    async def scenario() -> None:
        server = Server(lambda _: WEBHOOK_DOWN, hangs_s=0.5)
        binding = Binding(server)
        binds = commands("bad", 300)
        async with running(binding.binder.run()):
            for command in binds[:100]:
                binding.binder.put(command)
            await asyncio.sleep(0.1)
            assert server.active, "some are being sent"
            for command in binds[:20]:
                binding.binder.abandon(command.uid)
            await asyncio.sleep(10.0)
            for command in binds[100:]:
                binding.binder.put(command)
            await asyncio.sleep(1.0)
            for command in binds[20:]:
                binding.binder.abandon(command.uid)
            await asyncio.sleep(1.0)
            assert binding.binder.in_flight == binding.binder.failing_namespaces == 0
            sent = len(server.paths)
            await asyncio.sleep(20.0)
            assert len(server.paths) == sent and binding.binder.retrying == 0

        assert set(binding.outcomes.values()) == {BindLost(each.uid, "the pod was deleted") for each in binds}

    on_virtual_time(scenario)


def test_a_namespace_that_fails_is_known_for_a_while_when_its_pods_are_gone() -> None:
    """A tenant with a hanging webhook deletes its pods and creates them again, so that each time they are first attempts."""

    async def scenario() -> None:
        server = Server(lambda namespace: WEBHOOK_DOWN if namespace == "bad" else None, hangs_s=3.0)
        binding = Binding(server)
        binds = commands("bad", 60)
        async with running(binding.binder.run()):

            async def active_after(first: int) -> int:
                for command in binds[first : first + 20]:
                    binding.binder.put(command)
                await asyncio.sleep(1.0)
                active = len(server.active)
                for command in binds[first : first + 20]:
                    binding.binder.abandon(command.uid)
                await until(lambda: not server.active, "the last answer", within_s=10.0)
                return active

            assert await active_after(0) == 12, "it is unknown, then slow"
            assert await active_after(20) == 1, "it is a failing one"
            await asyncio.sleep(SLOW_FOR_S)
            for command in commands("good", 1):
                binding.binder.put(command)
            await until(lambda: not binding.binder.in_flight, "the answer to it", within_s=5.0)
            assert await active_after(40) == 12, "it is forgotten"

    on_virtual_time(scenario)


def test_nobody_waits_for_a_namespace_whose_webhook_is_slow_to_refuse_its_binds() -> None:
    """500 binds without an answer that are not delayed stop all decisions, and 200 queued ones stop all reports."""

    async def scenario() -> None:
        server = Server(lambda namespace: DENIED if namespace == "bad" else None, hangs_s=4.0)
        binding = Binding(server)
        binds = commands("bad", 1200)
        async with running(binding.binder.run()):

            def awaited() -> int:
                return binding.binder.in_flight - len(
                    {delay.uid for delay in binding.delays} - binding.outcomes.keys()
                )

            for command in binds[:600]:
                binding.binder.put(command)
            await asyncio.sleep(1.0)
            assert binding.binder.queued == 0 and awaited() <= 48
            await asyncio.sleep(4.0)
            server.active_most.clear()
            assert await elapsed_until_bound(binding, commands("good", 5)) < 0.1
            for command in binds[600:1200]:
                binding.binder.put(command)
            await asyncio.sleep(4.0)
            assert binding.binder.queued == 0 and awaited() <= 48
            assert server.active_most["bad"] == 12, "a quarter of the workers"
            server.hangs_s = 0.02
            await until(lambda: not binding.binder.in_flight, "the last answer", within_s=10.0)

    on_virtual_time(scenario)


async def assert_prompt(binding: Binding, name: str, *, times: int) -> None:
    """A bind of a namespace without faults, so many times."""
    for number in range(times):
        unique = f"{name}{len(binding.outcomes)}"
        command = bind(pod_manifest(unique, namespace=name, uid=unique))
        assert await elapsed_until_bound(binding, [command]) < 0.1, f"at the {number}th time"
        await asyncio.sleep(0.1)


def test_new_namespaces_whose_binds_hang_leave_workers() -> None:
    """A pair of them took all workers and the spare ones for the 7 s of a request, and a new pair again."""

    async def scenario() -> None:
        binding = Binding(
            Server(lambda namespace: None if namespace == "good" else WEBHOOK_DOWN, hangs_s=7.0)
        )
        async with running(binding.binder.run()):
            for pair in range(8):
                for command in (*commands(f"bad{pair}", 60), *commands(f"worse{pair}", 60)):
                    binding.binder.put(command)
                await assert_prompt(binding, "good", times=16)

    on_virtual_time(scenario)


def test_any_number_of_namespaces_whose_binds_begin_to_hang_at_once_leave_workers() -> None:
    """A dozen took four workers each, and six more the spare ones, for the 7 s of a request."""

    async def scenario() -> None:
        binding = Binding(
            Server(lambda namespace: None if namespace == "good" else WEBHOOK_DOWN, hangs_s=7.0)
        )
        async with running(binding.binder.run()):
            await assert_prompt(binding, "good", times=1)
            for number in range(60):
                for command in commands(f"bad{number}", 10):
                    binding.binder.put(command)
            await assert_prompt(binding, "good", times=150)

    on_virtual_time(scenario)


def test_new_namespaces_find_a_place_beside_dozens_that_begin_to_hang_at_once() -> None:
    """A dozen had all places of namespaces without an answer, for the 7 s of a request."""

    async def scenario() -> None:
        server = Server(lambda name: None if name.startswith("good") else WEBHOOK_DOWN, hangs_s=7.0)
        binding = Binding(server)
        async with running(binding.binder.run()):
            for number in range(40):
                for command in commands(f"bad{number}", 10):
                    binding.binder.put(command)
            for number in range(100):
                await assert_prompt(binding, f"good{number}", times=1)
        assert sum(server.active_most[f"bad{number}"] > 0 for number in range(40)) == 40

    on_virtual_time(scenario)


def test_namespaces_that_were_prompt_and_begin_to_hang_leave_their_workers_soon() -> None:
    """One had all workers, and six others the spare ones, for the 7 s of a request."""

    async def scenario() -> None:
        is_down = False
        server = Server(
            lambda namespace: WEBHOOK_DOWN if is_down and namespace != "good" else None, hangs_s=7.0
        )
        binding, bad = Binding(server), [f"bad-{number}-" for number in range(10)]
        async with running(binding.binder.run()):
            for name in ("good", *bad):
                await assert_prompt(binding, name, times=1)
            is_down = True
            for name in bad:
                for command in commands(name, 100):
                    binding.binder.put(command)
                await asyncio.sleep(0.01)
            assert server.active_most[bad[0]] == 48
            await asyncio.sleep(pending_binds.SLOW_AFTER_S)
            await assert_prompt(binding, "good", times=150)

    on_virtual_time(scenario)


async def binds_beside_idle_workers(seed: int) -> int:
    """How often a bind of a random history that may be sent waits, and a worker too."""
    random, found, count = Random(seed), 0, 0

    def answer(namespace: str) -> ApiResponse | None:
        kind = (int(namespace[1:]) + int(asyncio.get_running_loop().time() / 5)) % 5
        server.hangs_s = random.choice((0.02, 0.3) if kind > 2 else (0.02, 0.6, 6.5))
        return None if kind == 0 else WEBHOOK_DOWN if kind == 1 else DENIED

    binding = Binding(server := Server(answer), settings=BindSettings(concurrent_binds_max=4))
    async with running(binding.binder.run()):
        for _ in range(300):
            for _ in range(random.choice((0, 0, 1, 6))):
                count += 1
                binding.binder.put(
                    bind(pod_manifest(f"p{count}", namespace=f"n{random.randrange(20)}", uid=f"u{count}"))
                )
            await asyncio.sleep(0.05 + 0.01 * random.random())
            queue = binding.binder._queue
            if any(not idle.done() for idle in binding.binder._idle):
                found += queue.take(asyncio.get_running_loop().time()) is not None
    return found


def test_no_bind_that_may_be_sent_waits_beside_an_idle_worker() -> None:
    async def scenario() -> None:
        assert [await binds_beside_idle_workers(seed) for seed in range(8)] == [0] * 8

    on_virtual_time(scenario)


def test_a_thousand_new_namespaces_of_one_pod_each_use_all_workers() -> None:
    async def scenario() -> None:
        binding = Binding(Server(lambda _: None))
        binds = [bind(pod_manifest("web", namespace=f"n{number}", uid=f"u{number}")) for number in range(960)]
        async with running(binding.binder.run()):
            assert await elapsed_until_bound(binding, binds) < 0.02 * 20 + 0.01

    on_virtual_time(scenario)


def test_namespaces_that_are_prompt_now_and_then_leave_spare_workers() -> None:
    """One prompt answer gives all workers back to them, but for a minute no spare one."""

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        binding = Binding(server := Server(lambda namespace: answer(namespace)))
        sent: Counter[str] = Counter()

        def answer(namespace: str) -> ApiResponse | None:
            sent[namespace] += 1
            server.hangs_s = 5.0 - loop.time() % 5.0
            return None if namespace == "good" or server.hangs_s > 4.5 else DENIED

        async with running(binding.binder.run()):
            for number in range(32):
                for command in commands(f"bad{number}", 400):
                    binding.binder.put(command)
            await asyncio.sleep(10.0)
            await assert_prompt(binding, "good", times=200)
            assert min(sent.values()) > 50, "as much time each, not as many binds"

    on_virtual_time(scenario)


def test_a_namespace_that_failed_long_ago_may_have_binds_again_and_again() -> None:
    """A failure is known for `SLOW_FOR_S`; what was forgotten of it once was forgotten twice, with what had come since."""
    queue = BindQueue(4)

    def send(at_s: float, *, answered: bool) -> None:
        pending = PendingBind(commands("default", 1)[0])
        queue.put(pending)
        assert queue.take(at_s) is pending
        queue.finish(pending, at_s, answered=answered)
        queue.remove(pending)

    send(0.0, answered=False)
    for count in range(1, 6):
        send(count * (SLOW_FOR_S + 1.0), answered=count % 3 > 0)

    assert len(queue) == 0


def test_a_namespace_that_was_slow_is_known_for_a_minute_after_a_prompt_answer_to_its_last_bind() -> None:
    queue = BindQueue(4)
    binds = iter(map(PendingBind, commands("bad", 3)))

    def answered(pending: PendingBind, *, prompt: bool) -> None:
        queue.put(pending)
        assert queue.take(0.0) is pending
        if not prompt:
            queue.note_slow(pending, 0.0)
        queue.finish(pending, 0.0, answered=True, prompt=prompt)
        queue.remove(pending)

    answered(next(binds), prompt=False)
    answered(next(binds), prompt=True)
    for number in range(4):
        queue.put(PendingBind(commands(f"good{number}", 1)[0]))
        assert queue.take(1.0)
    queue.put(last := next(binds))
    assert queue.take(1.0) is None, "a spare worker"
    assert queue.take(SLOW_FOR_S + 1.0) is last


def test_a_namespace_without_faults_uses_all_workers_after_its_first_answer() -> None:
    async def scenario() -> None:
        server = Server(lambda _: None)
        binding = Binding(server)
        async with running(binding.binder.run()):
            assert await elapsed_until_bound(binding, commands("good", 480)) < 0.02 * 12 + 0.01
        assert server.active_most["good"] == 48

    on_virtual_time(scenario)


class Server:
    """Binds pods after `latency_s`, except where `fails` names an answer. Asserts one request for a pod at a time."""

    def __init__(self, fails: Callable[[str], ApiResponse | None], *, hangs_s: float = 0.02) -> None:
        self.fails = fails
        self.hangs_s = hangs_s
        self.active: set[str] = set()
        self.active_most: Counter[str] = Counter()
        self.paths: list[str] = []
        self.bodies: dict[str, set[bytes | None]] = {}

    async def request(self, request: ApiRequest) -> ApiResponse:
        namespace = request.path.split("/")[4]
        assert request.path not in self.active, f"two requests at once: {request.path}"
        self.active.add(request.path)
        in_namespace = sum(path.split("/")[4] == namespace for path in self.active)
        self.active_most[namespace] = max(self.active_most[namespace], in_namespace)
        self.paths.append(request.path)
        self.bodies.setdefault(request.path, set()).add(request.body)
        try:
            failure = self.fails(namespace)
            await asyncio.sleep(0.02 if failure is None else self.hangs_s)
            return failure or ApiResponse(201, b"{}", {})
        finally:
            self.active.discard(request.path)

    def stream(self, request: ApiRequest) -> Any:
        raise AssertionError(f"nothing watches here: {request}")


WEBHOOK_DOWN = ApiResponse(
    500,
    b'{"kind":"Status","code":500,"reason":"InternalError","message":"failed calling webhook"}',
    {},
)
DENIED = ApiResponse(
    403, b'{"kind":"Status","code":403,"reason":"Forbidden","message":"denied the request: no"}', {}
)
BUSY = ApiResponse(503, b'{"kind":"Status","code":503,"message":"busy"}', {"retry-after": "3600"})


def commands(namespace: str, count: int) -> list[Bind]:
    pods = [
        pod_manifest(f"{namespace}-{i}", namespace=namespace, uid=f"{namespace}-{i}") for i in range(count)
    ]
    return [bind(pod) for pod in pods]


async def elapsed_until_bound(binding: Binding, binds: Sequence[Bind], *, within_s: float = 60.0) -> float:
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    for command in binds:
        binding.binder.put(command)
    await until(lambda: all(command.uid in binding.outcomes for command in binds), "binds", within_s=within_s)
    assert all(isinstance(binding.outcomes[command.uid], BindConfirmed) for command in binds)
    return loop.time() - began_s


async def a_failing_namespace_beside_a_good_one(hangs_s: float, bad: int = 60) -> float:
    """How long five binds of `good` take once those of `bad` fail, or before if they hang."""
    server = Server(lambda namespace: WEBHOOK_DOWN if namespace == "bad" else None, hangs_s=hangs_s)
    binding = Binding(server)
    async with running(binding.binder.run()):
        for command in commands("bad", bad):
            binding.binder.put(command)
        await asyncio.sleep(1.0)
        first_s = await elapsed_until_bound(binding, commands("good", 5))
        await asyncio.sleep(20.0)
        server.active_most.clear()
        later = [bind(pod_manifest(f"l{i}", namespace="good", uid=f"l{i}")) for i in range(200)]
        later_s = await elapsed_until_bound(binding, later)
        await asyncio.sleep(15.0)
        assert server.active_most["bad"] <= 12, "more than a quarter of the workers retry one namespace"
        assert server.active_most["good"] >= 24
        await asyncio.sleep(100.0)
    assert later_s < 0.5
    assert not binding.connectivity.unreachable, "one namespace is taken for the server"
    assert len(binding.outcomes) == 205 and binding.binder.in_flight == bad
    assert all(len(bodies) == 1 for bodies in server.bodies.values())
    assert len({path for path in server.paths if "/bad/" in path}) == bad, "each is tried"
    assert binding.binder.queued == 0
    return first_s


@pytest.mark.parametrize("hangs_s", [0.02, 5.0])
def test_a_namespace_whose_binds_fail_does_not_delay_another(hangs_s: float) -> None:
    async def scenario() -> None:
        assert await a_failing_namespace_beside_a_good_one(hangs_s) < 0.1

    on_virtual_time(scenario)


def test_a_worker_that_repeats_its_bind_until_answered_is_caught() -> None:
    """The planted bug: a bind that fails keeps its worker."""
    attempt = Binder._attempt

    async def keep_the_worker(self: Binder, pending: PendingBind) -> BindOutcome | RetryLater:
        while isinstance(result := await attempt(self, pending), RetryLater):
            await asyncio.sleep(result.delay_s)
        return result

    async def scenario() -> None:
        with pytest.raises(AssertionError):
            await a_failing_namespace_beside_a_good_one(0.02)

    with patch.object(Binder, "_attempt", keep_the_worker):
        on_virtual_time(scenario)


def test_retries_without_a_share_are_caught() -> None:
    """The planted bug: a failing namespace may use all workers, and never rests."""
    make = BindQueue.__init__

    def without_share(self: BindQueue, workers: int) -> None:
        make(self, workers)
        self.places.share = self.places.throttled_max = 1000

    async def scenario() -> None:
        with pytest.raises(AssertionError):
            await a_failing_namespace_beside_a_good_one(5.0)

    with patch.object(BindQueue, "__init__", without_share), patch.object(pending_binds, "REST_MAX_S", 0.0):
        on_virtual_time(scenario)


async def requests_in_a_minute(bad: int) -> int:
    """Of a namespace with so many binds, after it has failed for half a minute."""
    server = Server(lambda _: WEBHOOK_DOWN)
    binding = Binding(server)
    async with running(binding.binder.run()):
        for command in commands("bad", bad):
            binding.binder.put(command)
        await asyncio.sleep(30.0)
        before = len(server.paths)
        await asyncio.sleep(60.0)
        return len(server.paths) - before


@pytest.mark.parametrize("bad", [60, 5_000])
def test_a_failing_namespace_sends_a_request_a_second_however_many_its_binds(bad: int) -> None:
    async def scenario() -> None:
        assert 50 <= await requests_in_a_minute(bad) <= 61

    on_virtual_time(scenario)


def test_a_failing_namespace_that_never_rests_is_caught() -> None:
    """The planted bug: each bind has only its own backoff."""

    async def scenario() -> None:
        assert await requests_in_a_minute(60) > 300

    with patch.object(pending_binds, "REST_MAX_S", 0.0):
        on_virtual_time(scenario)


def test_all_binds_of_a_failing_namespace_are_reported_and_go_on_after_one_answer() -> None:
    async def scenario() -> None:
        is_down = True
        server = Server(lambda _: WEBHOOK_DOWN if is_down else None)
        binding = Binding(server)
        binds = commands("bad", 500)
        async with running(binding.binder.run()):
            for command in binds[:400]:
                binding.binder.put(command)
            await asyncio.sleep(5.0)
            for command in binds[400:]:
                binding.binder.put(command)
            await asyncio.sleep(1.0)
            reasons = {delay.uid: delay.reason for delay in binding.delays if delay.reason is not None}
            assert reasons == {command.uid: "failed calling webhook" for command in binds}

            is_down = False
            await until(lambda: len(binding.outcomes) > 400, "those not yet tried", within_s=3.0)
            await until(lambda: len(binding.outcomes) == 500, "all", within_s=10.0)

    on_virtual_time(scenario)


def test_many_failing_namespaces_leave_workers_to_a_good_one() -> None:
    async def scenario() -> None:
        server = Server(lambda namespace: None if namespace == "good" else WEBHOOK_DOWN, hangs_s=5.0)
        binding = Binding(server)
        async with running(binding.binder.run()):
            for number in range(20):
                for command in commands(f"bad{number}", 20):
                    binding.binder.put(command)
            await asyncio.sleep(60.0)
            assert await elapsed_until_bound(binding, commands("good", 100)) < 1.0

    on_virtual_time(scenario)


def test_a_long_retry_after_is_limited() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        server = Server(lambda _: BUSY if loop.time() < healthy_s else None)
        healthy_s = loop.time() + 3.0
        binding = Binding(server)
        async with running(binding.binder.run()):
            assert await elapsed_until_bound(binding, commands("default", 50)) < 3.0 + 15.0
        assert binding.binder.in_flight == 0
        assert (binding.binder.retrying, binding.binder.failing_namespaces) == (0, 0)

    on_virtual_time(scenario)


def test_an_outage_of_all_requests_is_an_unreachable_server() -> None:
    async def scenario() -> None:
        binding = Binding(Script([no_answer()]))
        async with running(binding.binder.run()):
            binding.binder.put(commands("default", 1)[0])
            await asyncio.sleep(5.0)
            assert binding.connectivity.unreachable

    on_virtual_time(scenario)


def test_binds_of_a_namespace_are_sent_in_order_and_namespaces_in_turn() -> None:
    async def scenario() -> None:
        server = Server(lambda _: None)
        binding = Binding(server, settings=BindSettings(concurrent_binds_max=1))
        first, two = commands("one", 6), commands("two", 3)
        for command in (*first, *two):
            binding.binder.put(command)
        async with running(binding.binder.run()):
            await until(lambda: len(binding.outcomes) == 9, "all")
        names = [path.split("/")[-2] for path in server.paths]
        for namespace, count in (("one", 6), ("two", 3)):
            assert [name for name in names if name.startswith(namespace)] == [
                f"{namespace}-{number}" for number in range(count)
            ]
        assert {name.split("-")[0] for name in names[:2]} == {"one", "two"}

    on_virtual_time(scenario)


def test_a_delayed_bind_is_reported_with_growing_pauses() -> None:
    async def scenario() -> None:
        server = Server(lambda _: WEBHOOK_DOWN)
        binding = Binding(server)
        async with running(binding.binder.run()):
            binding.binder.put(commands("bad", 1)[0])
            await asyncio.sleep(120.0)
        reasons = [delay.reason for delay in binding.delays]
        assert reasons == [None, *["failed calling webhook"] * len(reasons[1:])]
        assert 2 <= len(reasons[1:]) <= 4 < len(server.paths)

    on_virtual_time(scenario)


def test_a_lost_leadership_ends_binds_that_wait_for_a_retry() -> None:
    async def scenario() -> None:
        leads = True
        server = Server(lambda _: WEBHOOK_DOWN)
        binding = Binding(server, may_send=lambda: leads)
        work = asyncio.ensure_future(binding.binder.run())
        for command in commands("bad", 30):
            binding.binder.put(command)
        await asyncio.sleep(20.0)
        sent, leads = len(server.paths), False

        with pytest.raises(BaseExceptionGroup) as group:
            await asyncio.wait_for(work, 10.0)

        assert group.value.split(LostLeadership)[1] is None
        assert len(server.paths) == sent and binding.binder.in_flight == 30

    on_virtual_time(scenario)


def test_a_cancelled_binder_sends_nothing_more() -> None:
    async def scenario() -> None:
        server = Server(lambda _: WEBHOOK_DOWN)
        binding = Binding(server)
        async with running(binding.binder.run()):
            for command in commands("bad", 30):
                binding.binder.put(command)
            await asyncio.sleep(5.0)
            assert binding.binder.in_flight == 30
        sent = len(server.paths)
        await asyncio.sleep(30.0)
        assert len(server.paths) == sent > 4

    on_virtual_time(scenario)


def test_retries_that_are_due_at_once_work_on_the_event_loop_of_the_program() -> None:
    """uvloop's handle of a call that is due already has no `when`, unlike asyncio's."""

    async def many_failures() -> None:
        transport = Script([*[no_answer()] * 40, (201, {})])
        settings = BindSettings(concurrent_binds_max=8, retry_initial_s=0.0, retry_max_s=0.0)
        binding = Binding(transport, settings=settings)
        task = asyncio.create_task(binding.binder.run())
        for number in range(20):
            binding.binder.put(bind(pod_manifest(f"p{number}", namespace=f"n{number}")))
        while len(binding.outcomes) < 20 and not task.done():
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert set(map(type, binding.outcomes.values())) == {BindConfirmed}

    run_event_loop(asyncio.wait_for(many_failures(), 30))
