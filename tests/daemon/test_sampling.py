"""The whole program and its sources of samples, on virtual time: pods go where the samples say, and what nobody serves is told."""

import asyncio
import json
from collections.abc import Callable
from random import Random
from typing import Any

import jsonschema
import orjson
import pytest

from policysched.config.settings import read_settings
from policysched.daemon.app import Runtime
from policysched.daemon.sample_sources import make_sources
from policysched.daemon.status_documents import DecisionsDocument, policy_document
from policysched.kube.client.transport import ApiRequest, ApiResponse
from policysched.metric_sources.metrics_api import PATH
from policysched.runtime.leadership import NoLeaderElection
from policysched.runtime.scheduler_app import SchedulerApp
from policysched.sandbox.transport import MemoryTransport
from policysched.schemas import schema
from tests.inline import check_inline
from tests.kube.world import World, on_virtual_time, until

POLICY = """\
policy test version 1
metric load: {type} {{
  query = "{query}"
  {source}
  unit = "{unit}"
  join = node
  every = 5s
  stale = 30s
}}
include kube_default
filter cool require load < {limit} missing reject scaleup no
"""


class WithMetricsApi(MemoryTransport):
    """The server in memory, and what metrics-server would answer in its name."""

    answer: Callable[[], tuple[int, Any]]

    async def request(self, request: ApiRequest) -> ApiResponse:
        if request.path != PATH:
            return await super().request(request)
        assert request.method == "GET"
        status, body = self.answer()
        return ApiResponse(status, orjson.dumps(body), {})


def app_with(
    world: World, policy: str, sources: Any, transport: MemoryTransport | None = None
) -> SchedulerApp:
    data = {"test.policy": policy}
    world.local.create("configmaps", "kube-system", {"metadata": {"name": "policies"}, "data": data})
    settings = read_settings(None, {}, {"policies": "kube-system/policies", "sources": sources})
    transport = transport or world.transport()
    return SchedulerApp(
        settings,
        Runtime(
            transport=transport,
            check_texts=check_inline,
            now_ns=world.now_ns,
            monotonic_s=world.loop.time,
            random=Random,
            identity="one",
            samples=make_sources(settings.samples, None, transport, now_ns=world.now_ns, random=Random),
        ),
        NoLeaderElection(),
    )


def annotated(**more: Any) -> str:
    return POLICY.format(
        **{"type": "ratio", "query": "example.com/load", "source": "", "unit": "1", "limit": "50%", **more}
    )


def test_a_pod_is_placed_by_node_annotations_and_the_record_has_their_age() -> None:
    pages: list[dict[str, Any]] = []

    async def scenario() -> None:
        world = World()
        world.add_node("busy", annotations={"example.com/load": "0.9,2026-01-01T00:00:00Z"})
        world.add_node("quiet", annotations={"example.com/load": "0.1,2025-12-31T23:59:50Z"})
        app = app_with(world, annotated(), {"notes": {"kind": "annotations"}})
        run = asyncio.ensure_future(app.run())
        world.add_pod("web", scheduler="test")

        await until(lambda: world.node_of("web"), "the pod to be bound")
        pages.append(json.loads(DecisionsDocument(app.scheduler, lambda: None).look(1, "")()))
        pages.append(
            policy_document(
                app.scheduler, str(app.settings.policies), app.metric_monitor.statuses(), world.now_ns()
            )
        )
        assert world.node_of("web") == "quiet"
        app.request_stop()
        await run

    on_virtual_time(scenario)

    for page, name in zip(pages, ("decisions", "policy"), strict=True):
        jsonschema.validate(page, schema(name))
    (decision,) = pages[0]["decisions"]
    assert decision["samples"]["load"]["value"] == 0.1
    assert 10 <= decision["samples"]["load"]["age_s"] <= 13
    metric = pages[1]["policies"][0]["metrics"]["load"]
    assert (metric["source"], metric["last_good"]["nodes"], metric["failure"]) == ("notes", 2, None)


def test_an_annotation_that_is_not_renewed_becomes_stale_and_the_missing_clause_applies() -> None:
    async def scenario() -> None:
        world = World()
        world.add_node("only", annotations={"example.com/load": "0.1,2026-01-01T00:00:00Z"})
        app = app_with(world, annotated(), {"notes": {"kind": "annotations"}})
        run = asyncio.ensure_future(app.run())
        await asyncio.sleep(31)

        world.add_pod("web", scheduler="test")
        await asyncio.sleep(5)

        assert world.node_of("web") is None
        (reason,) = [pod.pending_message for pod in app.scheduler._core.pods.values()]
        assert reason.startswith("0/1 nodes are available: 1 node(s) had no sample of load.")
        app.request_stop()
        await run

    on_virtual_time(scenario)


@pytest.mark.parametrize(
    "when", ["0001-01-01T00:00:00Z", "0001-01-01T00:00:00+23:59", "1600-12-31T23:59:59Z"]
)
def test_a_time_that_no_64_bits_hold_is_a_sample_of_old_and_ends_nothing(when: str) -> None:
    async def scenario() -> None:
        world = World()
        world.add_node("never", annotations={"example.com/load": f"0.1,{when}"})
        world.add_node("now", annotations={"example.com/load": "0.2"})
        app = app_with(world, annotated(), {"notes": {"kind": "annotations"}})
        run = asyncio.ensure_future(app.run())
        await asyncio.sleep(6)

        world.add_pod("web", scheduler="test")
        await until(lambda: world.node_of("web"), "the pod to be bound")

        assert world.node_of("web") == "now"
        app.request_stop()
        await run

    on_virtual_time(scenario)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("source = gone", "the settings have no source `gone`"),
        ("source = usage", 'source `usage`: the metrics API has "cpu" and "memory", not `example.com/load`'),
        ("", "it names no source and the settings have several: notes, usage"),
    ],
)
def test_a_metric_without_a_source_is_reported_on_the_configmap_once(source: str, words: str) -> None:
    async def scenario() -> None:
        world = World()
        world.add_node("a")
        sources = {"notes": {"kind": "annotations"}, "usage": {"kind": "metrics-api"}}
        app = app_with(world, annotated(source=source), sources)
        run = asyncio.ensure_future(app.run())
        await asyncio.sleep(60)

        events = [event for event in world.local.list("events") if event["reason"] == "MetricWithoutSource"]
        assert [event["message"] for event in events] == [
            f"policy `test`: metric `load` has no value on any node: {words}"
        ]
        assert events[0]["involvedObject"]["kind"] == "ConfigMap"
        page = policy_document(
            app.scheduler, str(app.settings.policies), app.metric_monitor.statuses(), world.now_ns()
        )
        assert page["policies"][0]["metrics"]["load"]["unserved"] == words
        app.request_stop()
        await run

    on_virtual_time(scenario)


def usage_of(world: World, transport: WithMetricsApi) -> SchedulerApp:
    policy = POLICY.format(type="cpu", query="cpu", source="", unit="cores", limit="2")
    return app_with(world, policy, {"usage": {"kind": "metrics-api"}}, transport)


def test_a_pod_is_placed_by_samples_of_the_metrics_api() -> None:
    async def scenario() -> None:
        world = World()
        for name in ("busy", "quiet"):
            world.add_node(name)
        transport = WithMetricsApi(world.server)
        used = {"busy": "3500m", "quiet": "250000000n"}
        items = [
            {
                "metadata": {"name": name},
                "timestamp": "2026-01-01T00:00:00Z",
                "usage": {"cpu": cpu, "memory": "1Gi"},
            }
            for name, cpu in used.items()
        ]
        transport.answer = lambda: (200, {"items": items})
        app = usage_of(world, transport)
        run = asyncio.ensure_future(app.run())
        world.add_pod("web", scheduler="test")

        await until(lambda: world.node_of("web"), "the pod to be bound")
        assert world.node_of("web") == "quiet"
        app.request_stop()
        await run

    on_virtual_time(scenario)


@pytest.mark.parametrize(
    ("status", "kind", "words"),
    [
        (403, "credentials", "apply deploy/metrics-api.yaml"),
        (404, "status", "the metrics API is not installed"),
        (503, "status", "the API server returned 503"),
        (200, "malformed", "the response is not a NodeMetricsList"),
    ],
)
def test_a_metrics_api_that_does_not_answer_well_stops_nothing(status: int, kind: str, words: str) -> None:
    async def scenario() -> None:
        world = World()
        world.add_node("a")
        transport = WithMetricsApi(world.server)
        transport.answer = lambda: (status, {"kind": "Status"})
        app = usage_of(world, transport)
        run = asyncio.ensure_future(app.run())
        world.add_pod("plain", scheduler="test")
        await asyncio.sleep(30)

        (source_status,) = app.metric_monitor.statuses()
        assert source_status.last_failure is not None and (
            source_status.last_failure.kind,
            words in source_status.last_failure.message,
        ) == (kind, True)
        assert not run.done()
        app.request_stop()
        await run

    on_virtual_time(scenario)


@pytest.mark.parametrize(
    ("verify", "problems"), [(True, []), (False, ["TLS verification is disabled by the settings"])]
)
def test_a_server_without_certificate_verification_is_logged_at_the_start(
    verify: bool, problems: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    source = {"kind": "prometheus", "url": "https://prometheus", "tls": {"verify": verify}}
    settings = read_settings(None, {}, {"policies": "a/b", "sources": {"p": source}})

    async def scenario() -> None:
        make_sources(settings.samples, None, World().transport(), now_ns=lambda: 0, random=Random)

    on_virtual_time(scenario)

    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == problems
