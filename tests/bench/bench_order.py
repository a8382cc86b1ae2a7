"""What it costs that nothing is overtaken (ADR 47): CPU time of that part of the queue, for the pods of `tests.bench.beside`.

The least of some turns, as other programs only add to it. A tenth of a pod's CPU time in that bench (2.62 s for 3,000 pods) is
the limit. The last row has more than that bench: 20 pods that differ and fit nowhere are ahead of the others, and a pod ends
after every 100th placement, so that those ahead are attempted again before the next one.
"""

from collections.abc import Callable, Iterable
from time import thread_time_ns
from typing import Any
from unittest.mock import patch

from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.limits import SchedulerLimits
from policysched.scheduler.queue.scheduling_queue import SchedulingQueue
from policysched.scheduler.scheduler import Scheduler
from tests.bench.measuring import Row
from tests.builders import namespace, node, pending, placed, pod
from tests.scheduler.rig import bundle

NODES, PODS, TURNS, NAMESPACES, AHEAD, EVENT_EVERY = 1_000, 2_000, 5, 100, 20, 100
START_NS = 1_800_000_000 * 10**9
DECISION_NS = 10**6
ORDERS = {
    "by priority and age": "",
    "by three keys": 'queue by (pod.labels["rank"] else "none") desc, pod.priority desc, pod.created\n',
    "by share": "queue by namespace.share.cpu, pod.priority desc, pod.created\n",
}


class _Run:
    def __init__(self, order: str, ahead: int) -> None:
        self._now_ns = START_NS
        self.attempts = 0
        self._scheduler = Scheduler(SchedulerLimits(binds_in_flight_max=10**9))
        text = f"policy bench version 1\ninclude kube_default\n{order}"
        self._handle(e.PoliciesUpdated(bundle({"bench.policy": text}), "1", None, "bench", "bench"))
        for index in range(NODES):
            self._handle(e.NodeUpdated(node(f"n{index}", cpu="32", memory="64Gi")))
        for index in range(NAMESPACES):
            self._handle(e.NamespaceUpdated(namespace(f"ns{index}")))
        self._running = [
            placed(pod(f"r{index}", cpu="100m", scheduler="other"), f"n{index}")
            for index in range(PODS // EVENT_EVERY if ahead else 0)
        ]
        for observed in self._running:
            self._handle(e.PodUpdated(observed))
        for index in range(ahead):
            first = pod(f"a{index}", cpu=str(40 + index), priority=1, labels={"rank": "z"}, scheduler="bench")
            self._handle(e.PodUpdated(pending(first)))
        for index in range(PODS):
            usual = pod(
                f"p{index}",
                namespace=f"ns{index % NAMESPACES}",
                cpu="100m",
                memory="64Mi",
                labels={"rank": f"{index % 7}"},
                scheduler="bench",
            )
            self._handle(e.PodUpdated(pending(usual)))
        self._handle(e.Synced())

    def _handle(self, event: e.Event) -> None:
        self._scheduler.handle(event, self._now_ns)

    def decide_all(self) -> None:
        binds = events = 0
        while binds < PODS:
            assert self._scheduler.ready(self._now_ns), f"only {binds} pods are bound"
            self.attempts += 1
            binds += sum(isinstance(command, c.Bind) for command in self._scheduler.decide(self._now_ns))
            self._now_ns += DECISION_NS
            if self._running and binds >= (events + 1) * EVENT_EVERY:
                events += 1
                self._handle(e.PodDeleted(self._running.pop().pod.uid))


class _Stopwatch:
    """CPU time in `yield_to_earlier`, with that of the clock."""

    def __init__(self, method: Callable[..., bool]) -> None:
        self._method = method
        self.total_ns = 0

    def __call__(self, *arguments: Any, **more: Any) -> bool:
        began_ns = thread_time_ns()
        yields = self._method(*arguments, **more)
        self.total_ns += thread_time_ns() - began_ns
        return yields


def _order_us(order: str, ahead: int) -> tuple[float, float]:
    """Microseconds in the order, and attempts, for each placed pod."""
    run = _Run(order, ahead)
    watch = _Stopwatch(SchedulingQueue.yield_to_earlier)
    with patch.object(SchedulingQueue, "yield_to_earlier", lambda *called, **more: watch(*called, **more)):
        run.decide_all()
    return watch.total_ns / PODS / 1000, run.attempts / PODS


def _attempts_if_nothing_yields(order: str, ahead: int) -> float:
    run = _Run(order, ahead)
    with patch.object(SchedulingQueue, "yield_to_earlier", lambda *_, **__: False):
        run.decide_all()
    return run.attempts / PODS


def measure() -> Iterable[Row]:
    usual, *others = ORDERS.items()
    for (name, order), ahead in ((usual, 0), *((other, 0) for other in others), (usual, AHEAD)):
        least_us, attempts = min(_order_us(order, ahead) for _ in range(TURNS))
        without = _attempts_if_nothing_yields(order, ahead)
        case = f"order {name}" + (f", {ahead} ahead that fit nowhere, with events" if ahead else "")
        yield Row(
            case,
            f"{least_us:.1f} µs a placement; {attempts:.2f} attempts, {without:.2f} if nothing yields",
            "87 µs",
        )
