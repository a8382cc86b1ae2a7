"""The cost of one polling interval for the decision loop: a response with a series for every node,
from bytes to columns.

All of it delays decisions; it happens in steps, between which the loop decides. The measure is the
processor time of the thread, so that other load of the machine does not count.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from random import Random
from statistics import median

import orjson

from policysched.evaluate import Evaluator
from policysched.evaluate import compile as compile_program
from policysched.lang.check import check_sources
from policysched.metric_sources.poll_status import SourcePollStatus
from policysched.metric_sources.polling import PollingSource
from policysched.metric_sources.prometheus import PrometheusQueryClient
from policysched.metric_sources.source import SampleConsumer
from policysched.model.nodes import Node
from policysched.model.pods import QueuedPodInfo
from policysched.scheduler import events as e
from policysched.scheduler.scheduler import Scheduler
from policysched.text import Source
from tests.bench.clusters import NODES, cluster, program
from tests.bench.measuring import Row, shown
from tests.builders import pod

TEXT = """\
policy bench version 1
metric net_rx: bandwidth {
  query = "rx"
  unit = "B/s"
  join = instance
  every = 15s
  stale = 90s
  assume = 1Mbps
}
include kube_default
outage { above = 50%, then = disable }
filter link_cool require net_rx < 800Mbps missing reject scaleup no
score quiet weight 5 lower net_rx normalize range(0Mbps, 1Gbps) missing worst
"""


class Answers:
    """A transport with one response, with the labels of a node exporter."""

    def __init__(self, addresses: list[str], rng: Random) -> None:
        series = [
            {
                "metric": {"instance": f"{address}:9100", "job": "node-exporter", "cluster": "bench"},
                "value": [1_795_000_000.781, str(rng.uniform(0, 125e6))],
            }
            for address in addresses
        ]
        self.body = orjson.dumps({"status": "success", "data": {"resultType": "vector", "result": series}})

    async def query(self, query: str) -> bytes:
        return self.body


def measure() -> Iterable[Row]:
    known = cluster()
    nodes = {
        name: replace(node, addresses=(_address(number), f"{name}.example.com"))
        for number, (name, node) in enumerate(known.nodes.items())
    }
    checked = program(TEXT)
    metric = checked.metrics["net_rx"]
    answers = Answers([node.addresses[0] for node in nodes.values()], Random(1))
    arrived: list[e.SamplesArrived] = []
    asker = PrometheusQueryClient(answers, now_ns=time.time_ns)
    source = PollingSource(asker, SourcePollStatus("bench"), now_ns=time.time_ns, random=Random(1))
    customer = SampleConsumer(lambda: {"bench": {"net_rx": metric}}, lambda: nodes, arrived.append)

    async def one_poll() -> None:
        measured = await asker.fetch(asker.query_for(metric), lambda: nodes)
        await source._deliver(measured, {("bench", "net_rx"): metric}, customer)

    steps_s: list[float] = []

    def poll() -> None:
        steps_s[:] = _steps_s(one_poll)

    poll()  # the first builds the index of the nodes' addresses
    first_s = sum(steps_s)
    poll_s = _cpu_s(poll, 9)
    handle_s = _cpu_s(_taking_over(nodes.values(), arrived), 9)

    plan, evaluator = compile_program(checked), Evaluator(known)
    evaluator.build_columns(plan)
    web, facts = pod("web", cpu="100m", scheduler="bench"), QueuedPodInfo(0, 1)

    def evaluate() -> None:
        evaluator.evaluate(
            plan, web, now_ns=time.time_ns(), facts=facts, samples={"net_rx": arrived[-1].samples}
        )

    evaluate()
    same_s = _cpu_s(evaluate, 9)

    def evaluate_anew() -> None:
        arrived.append(replace(arrived[-1], samples=replace(arrived[-1].samples)))
        evaluate()

    fresh_s = max(0.0, _cpu_s(evaluate_anew, 9) - same_s)
    whole_s = poll_s + handle_s + fresh_s
    yield Row(f"an interval's samples of {NODES:,} nodes, in decision time", shown(whole_s), "under 50 ms")
    yield Row("  parse, join and convert", shown(poll_s))
    yield Row("  its longest step without a pause", shown(max(steps_s)))
    yield Row("  take over in the core", shown(handle_s))
    yield Row("  columns and verdicts anew", shown(fresh_s))
    yield Row("  the first poll, which looks up all nodes' addresses", shown(first_s))


def _taking_over(nodes: Iterable[Node], arrived: list[e.SamplesArrived]) -> Callable[[], object]:
    """The core's handling of samples while a policy uses them."""
    scheduler, source = Scheduler(), Source("bench.policy", TEXT)
    for node in nodes:
        scheduler.handle(e.NodeUpdated(node), time.time_ns())
    scheduler.handle(e.PoliciesUpdated(check_sources({"bench.policy": source}), "1"), time.time_ns())
    scheduler.handle(e.Synced(), time.time_ns())
    while scheduler.ready(time.time_ns()):
        scheduler.decide(time.time_ns())
    assert scheduler.programs(), "the policy runs"
    return lambda: scheduler.handle(arrived[-1], time.time_ns())


def _cpu_s(run: Callable[[], object], times: int) -> float:
    taken = []
    for _ in range(times):
        began_s = time.thread_time()
        run()
        taken.append(time.thread_time() - began_s)
    return median(taken)


def _address(number: int) -> str:
    return f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"


def _steps_s(work: Callable[[], object]) -> list[float]:
    """The duration of each step between two suspensions of a coroutine that only yields."""
    steps_s: list[float] = []
    coroutine = work()
    assert asyncio.iscoroutine(coroutine)
    while True:
        began_s = time.thread_time()
        try:
            coroutine.send(None)
        except StopIteration:
            steps_s.append(time.thread_time() - began_s)
            return steps_s
        steps_s.append(time.thread_time() - began_s)
