"""The extender whole, on the server in memory: answers, binds and what becomes of one that nobody answers."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from policysched.config.layers import BadSettings
from policysched.daemon.app import Runtime
from policysched.daemon.failed_objects import FailedObjects
from policysched.daemon.sample_sources import make_sources
from policysched.evaluate import NotCounted
from policysched.extender.extender_app import ExtenderApp, NoUsablePolicy
from policysched.extender.handlers import ExtenderHandlers, ExtenderLimits
from policysched.extender.settings import read_extender_settings
from policysched.extender.telemetry import ExtenderTelemetry
from policysched.kube.client.transport import ApiRequest, ApiResponse, Transport, TransportError
from policysched.scheduler import events as e
from policysched.scheduler.extenders.extender_server import ExtenderServer
from policysched.serve.extender_routes import ExtenderHttpCall, ExtenderResponse
from policysched.serve.tls import ServerTlsFiles
from tests.builders import pod_manifest
from tests.hostile import HOSTILE_SPECS
from tests.inline import check_inline
from tests.kube.world import World, on_virtual_time, running, until

PATIENCE_S = 120.0
"""Of the machine's own clock, where an answer is wanted: it may be busy."""

FIT = "policy fit version 1\nfilter node_resources_fit\nscore flat weight 1 prefer true\n"


class Lossy:
    """A transport that loses binds while `broken`: before the server, or after it (`carried`)."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.broken = False
        self.carried = False

    async def request(self, request: ApiRequest) -> ApiResponse:
        if self.broken and request.path.endswith("/binding"):
            if self.carried:
                await self._transport.request(request)
            raise TransportError("lost")
        return await self._transport.request(request)

    def stream(self, request: ApiRequest) -> Any:
        return self._transport.stream(request)


class Extender:
    def __init__(
        self,
        world: World,
        policy: str,
        response_timeout_s: float,
        sources: Any = None,
        failed_objects: FailedObjects | None = None,
    ) -> None:
        self.world = world
        self.transport = Lossy(world.transport())
        given = {
            "policies": "kube-system/policies",
            "http": ":1",
            "sources": sources or {},
            "extender_server": {"scheduler_names": ["default-scheduler", "test"]},
        }
        settings = read_extender_settings(None, {}, given)
        runtime = Runtime(
            transport=self.transport,
            check_texts=check_inline,
            now_ns=world.now_ns,
            monotonic_s=world.loop.time,
            random=lambda name: Random(f"x/{name}"),
            identity="x",
            samples=make_sources(settings.samples, None, self.transport, now_ns=world.now_ns, random=Random),
        )
        data = {"main.policy": policy}
        if failed_objects is None:
            world.local.create(
                "configmaps",
                "kube-system",
                {"metadata": {"name": "policies", "namespace": "kube-system"}, "data": data},
            )
        self.app = ExtenderApp(settings, runtime, failed_objects)
        self.outcomes: list[str] = []
        self.desk = ExtenderHandlers(
            self.app.extender_server,
            self.app.binder,
            self.app.post,
            lambda _policy, _verb, outcome, _s: self.outcomes.append(outcome),
            leave_out=partial(self.app.leave_out, None),
            main_loop=world.loop,
            now_ns=world.now_ns,
            limits=ExtenderLimits(response_timeout_s=response_timeout_s),
        )

    async def ask(
        self,
        verb: str,
        body: object,
        *,
        policy: str = "fit",
        response_timeout_s: float | None = None,
        **options: str,
    ) -> ExtenderResponse:
        sent = body if isinstance(body, bytes) else json.dumps(body).encode()
        # The desk's deadline is on the machine's clock, which stands still beside the virtual one.
        within_s = self.desk.response_timeout_s if response_timeout_s is None else response_timeout_s
        call = ExtenderHttpCall(policy, verb, options, sent, time.monotonic() + within_s)
        work = self.desk.parse(call)
        return work if isinstance(work, ExtenderResponse) else await work()

    async def bind(self, name: str, node: str) -> ExtenderResponse:
        uid = self.world.pod(name)["metadata"]["uid"]
        return await self.ask(
            "bind", {"PodName": name, "PodNamespace": "default", "PodUID": uid, "Node": node}
        )

    async def fits(self, node: str, cpu: str) -> bool:
        probe = {"Pod": pod_manifest("probe", cpu=cpu), "NodeNames": [node]}
        reply = await self.ask("filter", probe, response_timeout_s=PATIENCE_S)
        return bool(reply.value["NodeNames"] == [node])


@asynccontextmanager
async def extender(
    policy: str = FIT, *, response_timeout_s: float = PATIENCE_S, sources: Any = None
) -> AsyncIterator[Extender]:
    world = World()
    world.add_node("a", cpu="4")
    extender = Extender(world, policy, response_timeout_s, sources)
    async with running(extender.app.run()):
        await until(
            lambda: extender.app.extender_server.synced and extender.app.extender_server.programs(),
            "the start",
        )
        yield extender
        await extender.desk.close()


def test_each_verb_reports_errors_in_its_own_form() -> None:
    async def scenario() -> None:
        async with extender() as running:
            nodes = {"Pod": pod_manifest("web"), "NodeNames": ["a"]}
            for verb in ("filter", "bind"):
                garbage, unknown = (
                    await running.ask(verb, b"{"),
                    await running.ask(verb, NAMED[verb], policy="none"),
                )
                assert (garbage.status, unknown.status) == (200, 200)
                assert "not JSON" in garbage.value["Error"]
                assert "unknown policy `none` (active: fit)" in unknown.value["Error"]
            for verb in ("prioritize", "preempt"):
                garbage, unknown = (
                    await running.ask(verb, b"{"),
                    await running.ask(verb, NAMED[verb], policy="none"),
                )
                assert (garbage.status, unknown.status) == (400, 404)
                assert "unknown policy `none`" in unknown.value
            assert (await running.ask("prioritize", nodes, scale="grand")).status == 400
            assert (await running.ask("prioritize", nodes)).value == [{"Host": "a", "Score": 10}]

    on_virtual_time(scenario)


NAMED: dict[str, dict[str, Any]] = {
    "filter": {"Pod": pod_manifest("web"), "NodeNames": ["a"]},
    "prioritize": {"Pod": pod_manifest("web"), "NodeNames": ["a"]},
    "preempt": {"Pod": pod_manifest("web"), "NodeNameToMetaVictims": {}},
    "bind": {"PodName": "web", "PodNamespace": "default", "PodUID": "u", "Node": "a"},
}


def test_an_event_that_raises_ends_the_app_and_the_next_one_leaves_its_object_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handle = ExtenderServer.handle

    def planted(server: ExtenderServer, event: e.Event, now_ns: int) -> Any:
        if isinstance(event, e.PodUpdated) and event.pod.pod.labels:
            raise OverflowError("planted")
        return handle(server, event, now_ns)

    monkeypatch.setattr(ExtenderServer, "handle", planted)

    async def scenario() -> None:
        world = World()
        world.add_node("a", cpu="4")
        first = Extender(world, FIT, PATIENCE_S)
        run = asyncio.ensure_future(first.app.run())
        await until(lambda: first.app.extender_server.synced, "the start")
        world.add_pod("bad", cpu="3", node="a", labels={"x": "y"})
        await run
        assert first.app.rereads

        second = Extender(world, FIT, PATIENCE_S, failed_objects=first.app.failed_objects)
        async with running(second.app.run()):
            await until(
                lambda: second.app.extender_server.synced and second.app.extender_server.programs(),
                "the next start",
            )
            assert (await second.fits("a", "1"), await second.fits("a", "2")) == (True, False)
            assert not second.app.rereads

    on_virtual_time(scenario)


def test_a_request_that_finds_a_pod_that_cannot_be_counted_ends_the_app(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        world = World()
        world.add_node("a", cpu="4")
        world.add_pod("bad", cpu="1", node="a")
        it = Extender(world, FIT, PATIENCE_S)
        run = asyncio.ensure_future(it.app.run())
        await until(lambda: it.app.extender_server.synced and it.app.extender_server.programs(), "the start")
        (bad,) = it.app.extender_server.pods().values()

        def planted(*_: Any) -> Any:
            raise NotCounted(bad.node, bad.pod) from OverflowError("planted")

        monkeypatch.setattr(ExtenderServer, "filter", planted)
        reply = await it.ask("filter", NAMED["filter"])
        assert "cannot be counted" in reply.value["Error"]
        await run
        assert it.app.rereads
        assert it.app.failed_objects.counts(world.now_ns()) == {"Pod": 1}
        telemetry = ExtenderTelemetry()
        telemetry.attach(it.app, world.now_ns)
        assert 'policysched_failed_objects{kind="Pod"} 1\n' in telemetry.registry.render()

    on_virtual_time(scenario)


def test_samples_are_used_and_a_metric_without_a_source_is_reported() -> None:
    def metric(name: str, source: str) -> str:
        asked = f'query = "example.com/load", source = {source}, join = node'
        return f'metric {name}: ratio {{ {asked}, unit = "1", every = 1s, stale = 9s }}\n'

    metrics = metric("load", "notes") + metric("heat", "gone")
    rules = "filter cool require load < 50% missing reject\nscore mild weight 1 lower heat normalize range(0, 1) missing neutral\n"

    async def scenario() -> None:
        async with extender(FIT + metrics + rules, sources={"notes": {"kind": "annotations"}}) as running:
            running.world.add_node("hot", annotations={"example.com/load": "0.9"})
            running.world.add_node("cold", annotations={"example.com/load": "0.1"})
            await until(
                lambda: any(status.last_good_poll for status in running.app.metric_monitor.statuses()),
                "a poll",
            )
            await asyncio.sleep(5)

            reply = await running.ask(
                "filter", {"Pod": pod_manifest("web"), "NodeNames": ["a", "hot", "cold"]}
            )

            assert reply.value["NodeNames"] == ["cold"]
            events = [e for e in running.world.local.list("events") if e["reason"] == "MetricWithoutSource"]
            assert ["the settings have no source `gone`" in event["message"] for event in events] == [True]

    on_virtual_time(scenario)


def test_pods_that_no_cluster_decides_about_are_kept_without_their_items() -> None:
    async def scenario() -> None:
        async with extender() as tested:
            spec = HOSTILE_SPECS["tolerations"](2_500)
            pending = tested.world.add_pod("big", spec=spec)["metadata"]["uid"]
            placed = tested.world.add_pod("placed", cpu="3", spec={**spec, "nodeName": "a"})["metadata"][
                "uid"
            ]
            kept = tested.app.extender_server.pods()
            await until(lambda: kept.keys() >= {pending, placed}, "the pods to be seen")
            assert (kept[pending].pod.tolerations, kept[placed].pod.tolerations) == ((), ())
            assert [await tested.fits("a", cpu) for cpu in ("1", "2")] == [True, False]

    on_virtual_time(scenario)


def test_an_expired_request_is_not_evaluated() -> None:
    async def scenario() -> None:
        async with extender(response_timeout_s=-1.0) as running:
            reply = await running.ask("filter", NAMED["filter"])
            assert (reply.status, reply.outcome) == (200, "late")
            assert "no response within" in reply.value["Error"]

    on_virtual_time(scenario)


def test_a_bind_is_executed_and_its_resources_are_reserved_at_once() -> None:
    async def scenario() -> None:
        async with extender() as running:
            running.world.add_pod("web", cpu="3")
            await until(
                lambda: (
                    running.app.extender_server.check() == []
                    and len(running.app.extender_server._core.cache.pods) == 1
                ),
                "the pod",
            )
            reply = await running.bind("web", "a")
            assert (reply.value, running.world.node_of("web")) == ({"Error": ""}, "a")
            assert not await running.fits("a", "2")
            await until(lambda: running.app.extender_server.binds_in_flight == 0, "the answer to be taken in")
            again = await running.bind("web", "elsewhere")
            assert "another client bound it to a" in again.value["Error"]

    on_virtual_time(scenario)


@pytest.mark.parametrize("carried", [True, False])
def test_a_bind_without_a_response_keeps_its_resources_until_its_outcome_is_known(*, carried: bool) -> None:
    async def scenario() -> None:
        async with extender(response_timeout_s=PATIENCE_S) as running:
            running.world.add_pod("web", cpu="3")
            await until(lambda: len(running.app.extender_server._core.cache.pods) == 1, "the pod")
            running.transport.broken, running.transport.carried = True, carried
            reply = await running.bind("web", "a")
            assert "the pod may be bound or not" in reply.value["Error"]
            assert not await running.fits("a", "2")
            assert running.app.extender_server.binds_in_flight == 1
            await until(lambda: running.app.extender_server.binds_in_flight == 0, "it to be known")
            assert await running.fits("a", "2") is not carried
            assert running.world.node_of("web") == ("a" if carried else None)

    on_virtual_time(scenario)


def test_a_pod_of_another_scheduler_is_not_bound() -> None:
    async def scenario() -> None:
        async with extender() as server:
            server.world.add_pod("web", scheduler="another")
            server.world.add_pod("served", scheduler="test")

            foreign, served = await server.bind("web", "a"), await server.bind("served", "a")

            assert "the pod's schedulerName is `another`" in foreign.value["Error"]
            assert served.value == {"Error": ""}
            assert (server.world.node_of("web"), server.world.node_of("served")) == (None, "a")

    on_virtual_time(scenario)


def test_a_delayed_check_is_an_event_on_the_config_map() -> None:
    async def scenario() -> None:
        async with extender() as server:
            server.app.report_check_delay("cannot start a process")
            await until(lambda: list(server.world.local.list("events")), "the event")
            (event,) = server.world.local.list("events")
            assert (event["reason"], event["type"]) == ("PolicyCheckDelayed", "Warning")
            assert event["involvedObject"]["name"] == "policies"

    on_virtual_time(scenario)


def test_without_a_policy_the_app_exits() -> None:
    async def scenario() -> None:
        with pytest.raises(NoUsablePolicy, match="no policy in ConfigMap kube-system/policies is valid"):
            await Extender(World(), "policy fit version 1\nnonsense\n", 4.0).app.run()

    on_virtual_time(scenario)


# ── settings ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_policies_come_from_files_or_a_configmap_and_flags_override_the_file(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(
        "policies: a/b\nhttp: :1\nextender_server: {response_timeout_s: 2}\nhttp_server: {tls: {certificate: c, key: k}}\n"
    )

    of_file = read_extender_settings(file, {}, {})
    of_flags = read_extender_settings(
        file, {}, {"policy_files": ["x"], "extender_server": {"response_timeout_s": 3}}
    )

    assert (str(of_file.policies), str(of_file.last_good), of_file.limits.response_timeout_s) == (
        "a/b",
        "a/b-last-good",
        2,
    )
    assert of_file.http.tls == ServerTlsFiles(Path("c"), Path("k"))
    assert (of_flags.policies, of_flags.last_good, of_flags.limits.response_timeout_s) == (
        (Path("x"),),
        None,
        3,
    )


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"http": ":1"}, "no policies are configured"),
        ({"policies": "a/b"}, "no listen address"),
        (
            {"policies": "a/b", "http": ":1", "http_server": {"tls": {"key": "k"}}},
            "both the certificate and its key",
        ),
        ({"policies": "a/b", "http": ":1", "http_server": {"insecure": True}}, "needs a loopback address"),
        (
            {
                "policies": "a/b",
                "http": "[::1]:1",
                "http_server": {"insecure": True, "tls": {"client_ca": "c"}},
            },
            "plain HTTP has no certificate",
        ),
        ({"policies": "a/b", "http": ":99999"}, "is not an address"),
    ],
)
def test_incomplete_settings_are_rejected(flags: dict[str, Any], words: str) -> None:
    with pytest.raises(BadSettings, match=words):
        read_extender_settings(None, {}, flags)


def test_requests_for_policies_that_do_not_exist_have_one_label() -> None:
    telemetry = ExtenderTelemetry()

    for index in range(100):
        telemetry.record_request(f"invented-{index}", "filter", "unanswered", 0.001)

    text = telemetry.registry.render()
    assert "invented" not in text
    assert (
        'policysched_extender_requests_total{policy="(other)",verb="filter",outcome="unanswered"} 100' in text
    )
