"""A stop of the leader beside a namespace whose webhook fails or hangs: what the others and the next leader see of it."""

import asyncio
from collections.abc import Awaitable
from dataclasses import replace

import orjson
import pytest

from policysched.config.settings import read_settings
from policysched.daemon.process import ExitReason
from policysched.kube.client.transport import ApiRequest, ApiResponse, RequestNotSent
from policysched.kube.write.open_writes import SERVER_TIMEOUT_S
from policysched.model.identifiers import PodUid
from policysched.runtime import scheduler_app
from policysched.runtime.scheduler_app import SchedulerApp
from policysched.sandbox.transport import MemoryTransport
from policysched.scheduler.commands import Command, Evict, Victim
from tests.devices import claim_manifest, claiming, class_manifest, gpu, new, slice_manifest
from tests.kube.world import World, on_virtual_time, until
from tests.runtime.test_scheduler_app import PLAIN, add_gang, app_on, elected, full_of_low_pods, put_policies

WEBHOOK = 'Internal error occurred: failed calling webhook "guard.example.com": failed to call webhook: EOF'
PROMPT_S = 0.5
"""A stop without anybody hostile takes less."""
SETTINGS = read_settings(None, {}, {"policies": "kube-system/policies"})


class Guarded(MemoryTransport):
    """Writes in these namespaces meet a webhook. `carried_out_s`: one that hangs is carried out so long after its answer, if at all."""

    def __init__(self, world: World, **webhooks: str) -> None:
        super().__init__(world.server)
        self.webhooks = webhooks
        self.carried_out_s: float | None = None
        self.guards_reports = False
        self.latest_s = 0.0
        self.sent: list[tuple[float, str]] = []

    async def request(self, request: ApiRequest) -> ApiResponse:
        namespace = request.path.partition("/namespaces/")[2].partition("/")[0]
        webhook = self.webhooks.get(namespace)
        if request.method == "GET":
            return await super().request(request)
        is_report = request.params.get("timeout") != "5s"
        if webhook is None or (is_report and not self.guards_reports):
            await asyncio.sleep(0.01)
            return await super().request(request)
        if request.may_write is not None and not request.may_write():
            raise RequestNotSent(request)
        loop = asyncio.get_running_loop()
        self.sent.append((loop.time(), namespace))
        if webhook == "fails":
            await asyncio.sleep(0.01)
            return _status(500, "InternalError", WEBHOOK)
        if webhook == "etcd":
            await asyncio.sleep(0.01)
            return _status(500, "InternalError", "etcdserver: request timed out")
        await asyncio.sleep(SERVER_TIMEOUT_S)
        if self.carried_out_s is not None:
            loop.call_later(self.carried_out_s, self._carry_out, replace(request, may_write=None))
        return _status(504, "Timeout", "Timeout: request did not complete within requested timeout")

    def _carry_out(self, request: ApiRequest) -> None:
        self.latest_s = asyncio.get_running_loop().time()
        self._handle(request)


def _status(code: int, reason: str, message: str) -> ApiResponse:
    return ApiResponse(
        code, orjson.dumps({"kind": "Status", "code": code, "reason": reason, "message": message})
    )


def holder(world: World) -> str:
    (lease,) = world.local.list("leases")
    name: str = lease["spec"].get("holderIdentity") or ""
    return name


async def leading(
    world: World, transport: MemoryTransport
) -> tuple[SchedulerApp, asyncio.Future[ExitReason]]:
    """It has bound a pod of another namespace."""
    put_policies(world, main=PLAIN)
    for name in ("a", "b"):
        world.add_node(name, pods="1000", cpu="100")
    for name in ("evil", "other", "third"):
        world.local.create("namespaces", "", {"metadata": {"name": name}})
    app = app_on(world, transport, elected(world, world.transport(), "one"), settings=SETTINGS)
    run = asyncio.ensure_future(app.run())
    world.add_pod("first")
    await until(lambda: world.node_of("first"), "the first pod to be bound")
    return app, run


async def stop(app: SchedulerApp, run: Awaitable[ExitReason]) -> float:
    """How long it takes."""
    loop = asyncio.get_running_loop()
    asked_s = loop.time()
    app.request_stop()
    assert await run is ExitReason.STOPPED
    return loop.time() - asked_s


@pytest.mark.parametrize("reason", [ExitReason.STOPPED, ExitReason.CLOCK_STEPPED])
def test_a_stop_does_not_wait_for_binds_that_a_webhook_refuses(reason: ExitReason) -> None:
    async def scenario() -> None:
        world = World()
        transport = Guarded(world, evil="fails")
        app, run = await leading(world, transport)
        for number in range(20):
            world.add_pod(f"p{number}", namespace="evil")
        await until(lambda: app.binder.failing_namespaces, "the binds to fail")
        await asyncio.sleep(3)
        asked_s, sent = world.loop.time(), len(transport.sent)

        app.request_stop(reason)
        assert await run is reason

        assert world.loop.time() - asked_s < PROMPT_S
        assert holder(world) == ""
        assert len(transport.sent) <= sent + 1, "only what was on its way"
        assert app.binder.in_flight == 20

    on_virtual_time(scenario)


def test_others_are_bound_while_a_stop_waits_for_a_webhook_that_hangs() -> None:
    async def scenario() -> None:
        world = World()
        transport = Guarded(world, evil="hangs")
        app, run = await leading(world, transport)
        for number in range(20):
            world.add_pod(f"p{number}", namespace="evil")
        await asyncio.sleep(2)
        loop, asked_s = world.loop, world.loop.time()
        sent = len(transport.sent)

        app.request_stop()
        count = longest_s = 0
        while not run.done():
            name, created_s = f"other{count}", loop.time()
            world.add_pod(name, namespace="other")
            count += 1
            while not run.done() and not world.pod(name, "other")["spec"].get("nodeName"):
                await asyncio.sleep(0.01)
            longest_s = max(longest_s, loop.time() - created_s)
            await asyncio.sleep(0.1)

        assert count > 20
        assert longest_s < PROMPT_S
        assert loop.time() - asked_s < 2 * SERVER_TIMEOUT_S + PROMPT_S
        assert holder(world) == ""
        assert len(transport.sent) == sent, "nothing is repeated"

    on_virtual_time(scenario)


@pytest.mark.parametrize("after_s", [0.0, SERVER_TIMEOUT_S - 0.1])
def test_no_write_is_carried_out_after_the_lease_was_released(after_s: float) -> None:
    async def scenario() -> None:
        world = World()
        transport = Guarded(world, evil="hangs")
        transport.carried_out_s = after_s
        app, run = await leading(world, transport)
        world.add_pod("p", namespace="evil")
        await until(lambda: transport.sent, "the bind to be sent")

        await stop(app, run)

        released_s = world.loop.time()
        assert holder(world) == ""
        assert world.pod("p", "evil")["spec"].get("nodeName")
        await asyncio.sleep(60)
        assert transport.latest_s < released_s

    on_virtual_time(scenario)


def test_a_stop_waits_for_what_was_answered_with_an_error_of_the_storage() -> None:
    async def scenario() -> None:
        world = World()
        transport = Guarded(world, evil="etcd")
        app, run = await leading(world, transport)
        world.add_pod("p", namespace="evil")
        await until(lambda: transport.sent, "the bind to be sent")
        await asyncio.sleep(0.02)

        assert SERVER_TIMEOUT_S - PROMPT_S < await stop(app, run) < SERVER_TIMEOUT_S + PROMPT_S
        assert holder(world) == ""

    on_virtual_time(scenario)


@pytest.mark.parametrize("webhook", ["fails", "hangs"])
def test_evictions_and_claims_are_waited_for_as_long_as_they_may_be_carried_out(webhook: str) -> None:
    async def scenario() -> None:
        world = World()
        transport = Guarded(world, evil=webhook)
        app, run = await leading(world, transport)
        world.local.create("deviceclasses", "", new(class_manifest()))
        world.local.create("resourceslices", "", new(slice_manifest("a", gpu("g0"))))
        world.local.create("resourceclaims", "evil", new(claim_manifest("c", namespace="evil")))
        victim = Victim(PodUid("v"), "evil", "v")
        app.dispatch([Evict(PodUid("p"), "other", "p", "test", None, (victim,), "for p")])
        world.add_pod("web", namespace="evil", spec=claiming("c"))
        await asyncio.sleep(2)
        assert app.evictor.in_flight
        assert app.prebind_writer.in_flight

        took_s = await stop(app, run)

        assert took_s < (PROMPT_S if webhook == "fails" else 2 * SERVER_TIMEOUT_S)
        assert holder(world) == ""

    on_virtual_time(scenario)


def test_decisions_go_on_when_a_namespace_begins_to_hang_during_the_stop() -> None:
    async def scenario() -> None:
        world = World()
        transport = Guarded(world)
        app, run = await leading(world, transport)
        transport.webhooks["evil"] = "hangs"
        world.add_pod("p", namespace="evil")
        await until(lambda: transport.sent, "the bind to be sent")

        app.request_stop()
        await asyncio.sleep(0.05)
        world.add_pod("q", namespace="other")
        await asyncio.sleep(0.2)
        assert not world.pod("q", "other")["spec"].get("nodeName"), "nothing is late yet"
        await asyncio.sleep(0.4)
        assert world.pod("q", "other")["spec"].get("nodeName")
        await run

    on_virtual_time(scenario)


@pytest.mark.parametrize("is_stopping", [False, True])
def test_after_a_step_of_the_clock_nothing_is_decided(is_stopping: bool) -> None:
    async def scenario() -> None:
        world = World()
        transport = Guarded(world, evil="hangs")
        app, run = await leading(world, transport)
        world.add_pod("p", namespace="evil")
        await asyncio.sleep(2)

        if is_stopping:
            app.request_stop()
        app.request_stop(ExitReason.CLOCK_STEPPED)
        world.add_pod("q", namespace="other")
        await run

        assert not world.pod("q", "other")["spec"].get("nodeName")
        assert holder(world) == ""

    on_virtual_time(scenario)


def test_namespaces_that_begin_to_hang_one_after_another_end_in_time() -> None:
    async def scenario() -> None:
        world = World()
        transport = Guarded(world)
        app, run = await leading(world, transport)
        for number in range(40):
            name = f"evil{number}"
            transport.webhooks[name] = "hangs"
            world.local.create("namespaces", "", {"metadata": {"name": name}})
        world.add_pod("p", namespace="evil0")
        await asyncio.sleep(1)
        asked_s = world.loop.time()

        app.request_stop()
        for number in range(1, 40):
            world.add_pod("p", namespace=f"evil{number}")
            await asyncio.sleep(0.5)
        await run

        assert world.loop.time() - asked_s <= SETTINGS.shutdown_timeout_s
        assert holder(world) == ""

    on_virtual_time(scenario)


def test_a_stop_does_not_wait_for_the_reports_of_a_namespace_that_refuses_them() -> None:
    async def scenario() -> None:
        world = World()
        transport = Guarded(world, evil="fails")
        app, run = await leading(world, transport)
        transport.guards_reports = True
        for number in range(20):
            world.add_pod(f"p{number}", namespace="evil", cpu="1000")
        await asyncio.sleep(5)
        assert app.reporter.pending_writes

        assert await stop(app, run) < PROMPT_S

    on_virtual_time(scenario)


def test_a_stop_while_evictions_for_a_gang_are_begun_evicts_for_all_members(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        world = World()
        full_of_low_pods(world, nodes=8)
        app = app_on(world, world.transport(), settings=SETTINGS)
        core, decide = app.scheduler._core, app.scheduler.decide
        core.limits = replace(core.limits, attempt_step_cost_max=1)
        evictions = 0

        def watched(now_ns: int) -> list[Command]:
            """It stands still after the first ones."""
            nonlocal evictions
            if evictions:
                return []
            commands = decide(now_ns)
            evictions = sum(isinstance(command, Evict) for command in commands)
            if evictions:
                assert app.scheduler.attempt_in_progress
                asyncio.get_running_loop().call_later(0.105, app.request_stop)
            return commands

        async def other_tasks() -> None:
            """They take long."""
            await asyncio.sleep(0.01)

        monkeypatch.setattr(scheduler_app, "STEPS_PER_SLICE_MAX", 1)
        monkeypatch.setattr(app, "_run_other_tasks", other_tasks)
        monkeypatch.setattr(app.scheduler, "decide", watched)
        run = asyncio.ensure_future(app.run())
        await until(lambda: app.scheduler.synced, "the first lists")
        add_gang(world, 8)

        await run

        assert 0 < evictions < 8
        assert not app.scheduler.attempt_in_progress
        kept = [pod for pod in world.local.list("pods") if pod["metadata"]["name"].startswith("low")]
        assert [pod for pod in kept if not pod["metadata"].get("deletionTimestamp")] == []

    on_virtual_time(scenario)
