"""The metrics that an app exports after a varied run on virtual time against the in-memory server."""

import asyncio
from dataclasses import dataclass
from functools import cache
from random import Random

from policysched.config.settings import read_settings
from policysched.daemon.app import Runtime
from policysched.daemon.sample_sources import make_sources
from policysched.model.identifiers import NodeName
from policysched.runtime.leadership import NoLeaderElection
from policysched.runtime.scheduler_app import SchedulerApp
from policysched.runtime.telemetry import Telemetry
from policysched.scheduler.events import NodeDeleted
from policysched.serve.http_counters import HttpCounters
from tests.inline import check_inline
from tests.kube.world import World, on_virtual_time, until


@dataclass(frozen=True, slots=True)
class Exported:
    """An exported metric: `labels` in order, without `le` of a histogram's buckets."""

    name: str
    type: str
    help: str
    labels: tuple[str, ...]
    sampled: bool


@cache
def exported() -> tuple[Exported, ...]:
    """The metrics in the order of their output."""
    text = _exposition()
    metrics: dict[str, Exported] = {}
    types: dict[str, str] = {}
    helps: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("# HELP "):
            name, _, help_text = line.removeprefix("# HELP ").partition(" ")
            helps[name] = help_text
        elif line.startswith("# TYPE "):
            name, _, kind = line.removeprefix("# TYPE ").partition(" ")
            types[name] = kind
            metrics[name] = Exported(name, kind, helps[name], (), False)
        else:
            labelled, _, _ = line.rpartition(" ")
            name, _, inside = labelled.partition("{")
            family = _family(name, types)
            labels = tuple(part.partition("=")[0] for part in inside.rstrip("}").split('",') if part)
            metrics[family] = Exported(
                family, types[family], helps[family], tuple(label for label in labels if label != "le"), True
            )
    return tuple(metrics.values())


_STATE = "state reward: float { key = pod.name  value = 0.5  keep = 90%  start = 1.0 }\n"
_SHADOW = "shadow filter few require node.pods < 80\n"
_CANARY = "canary some 10% by pod.owner.name guard pending < 2% for 1m else rollback { reweight image_locality 2 }\n"
_QUOTA = 'quota team by pod.namespace { "default" { cpu = 40 } others unlimited }\n'


def _metric(name: str, source: str) -> str:
    asks = f'query = "example.com/{name}"\n  source = {source}\n  join = node'
    return f'metric {name}: ratio {{\n  {asks}\n  unit = "1"\n  every = 5s\n  stale = 30s\n}}\n'


def _family(sample: str, types: dict[str, str]) -> str:
    if sample in types:
        return sample
    stem, _, suffix = sample.rpartition("_")
    assert suffix in ("bucket", "sum", "count") and types[stem] == "histogram", sample
    return stem


def _exposition() -> str:
    shown: list[str] = []

    async def scenario() -> None:
        world, telemetry = World(), Telemetry()
        policy = f"policy test version 1\n{_metric('load', 'notes')}{_metric('heat', 'gone')}{_STATE}{_QUOTA}{_SHADOW}include kube_default\n{_CANARY}"
        named = {"metadata": {"name": "policies"}, "data": {"test.policy": policy}}
        world.local.create("configmaps", "kube-system", named)
        world.add_node("a", cpu="1")
        world.add_pod("fits", cpu="500m", scheduler="test")
        world.add_pod("does-not", cpu="2", scheduler="test")
        turned_away = world.add_pod("turned-away", cpu="100m", scheduler="test")
        world.local.create("priorityclasses", "", {"metadata": {"name": "urgent"}, "value": 1000})
        given = {"policies": "kube-system/policies", "sources": {"notes": {"kind": "annotations"}}}
        settings, transport = read_settings(None, {}, given), world.transport()
        app = SchedulerApp(
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
            observe_decision_s=telemetry.observe_decision_s,
            observe_bind_s=telemetry.observe_bind_s,
        )
        app.malformed["Node"] = 1  # as if an object had been left out: the in-memory server has none
        app.failed_objects.note(
            NodeDeleted(NodeName("gone")), ValueError(), world.now_ns()
        )  # as if it had raised
        app.extender_caller.calls["gpu", "filter", "answered"] = 1  # as if an extender had been called
        app.scheduler.counters.count_over_budget("test")  # as if a pod had thousands of terms
        app.scheduler.counters.count_internal_error("test")  # as if an attempt had raised
        telemetry.attach(app, world.now_ns)
        telemetry.registry.collectors.append(HttpCounters().families)
        run = asyncio.ensure_future(app.run())
        await until(
            lambda: world.node_of("turned-away") and app.binder.counts.confirmed > 1, "two pods to be bound"
        )
        words = {"phase": "Failed", "reason": "OutOfcpu", "message": "too little"}
        world.local.set_status("pods", turned_away, **words)
        await until(lambda: app.scheduler.counters.kubelet_rejections, "the kubelet's word to be heard")
        await until(lambda: app.reporter.counts.conditions_written, "the other to learn why it waits")
        urgent = {"priorityClassName": "urgent"}
        world.add_pod("urgent", cpu="1", scheduler="test", priority=1000, spec=urgent)
        await until(lambda: app.evictor.counts.evicted, "the first to make room")
        await until(lambda: any(status.last_good_poll for status in app.metric_monitor.statuses()), "a poll")
        shown.append(telemetry.registry.render())
        app.request_stop()
        await run

    on_virtual_time(scenario)
    return shown[0]
