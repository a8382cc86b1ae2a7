"""The page in Chromium at 5,000 nodes and 50,000 pending pods, view by view.

The scheduler is on virtual time and some pods come and go each second; its documents, their shares of a core and the HTTP server
are those of the program. Measured are the work of the browser's main thread for each update (all its tasks: script, style, layout,
paint), and the CPU time of the server's two threads.
"""

import threading
import time
from collections.abc import Iterable, Iterator
from statistics import median
from typing import Any

from tests.bench.measuring import Row
from tests.builders import node, pending, placed, pod
from tests.page.fixtures import ARGUMENTS, chromium
from tests.page.served_page import documents, serving_feeds
from tests.scheduler.rig import Rig

_NODES, _PODS, _KINDS = 5000, 50_000, 40
_VIEWS = ("health", "pending", "queue", "nodes", "policy", "pod/default%2Fp-0")
_VIEW_S = 15
_CHANGED_EACH_S = 20
_POLICY = """\
policy test version 1
include kube_default
filter pool reject (node.labels["pool"] else "none") != (pod.labels["pool"] else "none") says "another pool"
"""
_LONG_TASKS = """
globalThis.longTasks = [];
new PerformanceObserver(list => list.getEntries().forEach(each => globalThis.longTasks.push(each.duration)))
  .observe({entryTypes: ["longtask"]});
"""


def _pod(number: int) -> Any:
    kind = number % _KINDS
    labels = {"app": f"a{kind}", "pool": "abc"[kind % 3]}
    return pod(f"p-{number}", cpu=f"{30 + kind}", memory="1Gi", labels=labels, scheduler="test")


def _cluster() -> Rig:
    nodes = [
        node(
            f"n{index:04}",
            cpu="32",
            zone=f"z{index % 3}",
            labels={"pool": "abcd"[index % 4]},
            unschedulable=index % 50 == 0,
        )
        for index in range(_NODES)
    ]
    running = [
        placed(pod(f"r-{index}", cpu="4", scheduler="test"), f"n{index:04}") for index in range(_NODES)
    ]
    rig = Rig(_POLICY, *nodes, *running, *(pending(_pod(number)) for number in range(_PODS)))
    rig.check_invariants = lambda: None  # type: ignore[method-assign]
    rig.settle()
    return rig


class _Changes:
    """Every second some pods are deleted and others created, on the main loop."""

    def __init__(self, rig: Rig) -> None:
        self._rig, self._next = rig, _PODS

    def apply(self) -> None:
        from policysched.scheduler import events as e

        rig = self._rig
        rig.now_ns += 10**9
        gone = [
            uid for uid, _ in zip(list(rig.scheduler.core.pods)[100:], range(_CHANGED_EACH_S), strict=False)
        ]
        for uid in gone:
            rig.scheduler.handle(e.PodDeleted(uid), rig.now_ns)
            rig.scheduler.handle(e.PodUpdated(pending(_pod(self._next))), rig.now_ns)
            self._next += 1
        while rig.scheduler.ready(rig.now_ns):
            rig.scheduler.decide(rig.now_ns)


class _CpuClock:
    """CPU time of the server's threads: the main loop, without the changes of the cluster, and the HTTP server."""

    def __init__(self, main: threading.Thread) -> None:
        http = next(thread for thread in threading.enumerate() if thread.name == "http")
        self._clocks = [time.pthread_getcpuclockid(thread.ident or 0) for thread in (main, http)]
        self.changes_s = 0.0

    def read_s(self) -> float:
        return sum(time.clock_gettime(clock) for clock in self._clocks) - self.changes_s


def _task_s(session: Any) -> float:
    metrics = session.send("Performance.getMetrics")["metrics"]
    return float(next(each["value"] for each in metrics if each["name"] == "TaskDuration"))


def measure() -> Iterable[Row]:
    from playwright.sync_api import sync_playwright

    program = chromium()
    if program is None:
        yield Row("the page in Chromium", "not measured: there is no Chromium")
        return
    rig = _cluster()
    changes = _Changes(rig)
    with serving_feeds(documents(rig).by_path()) as served, sync_playwright() as playwright:
        clock = _CpuClock(served.main)

        def change() -> None:
            began_s = time.thread_time()
            changes.apply()
            clock.changes_s += time.thread_time() - began_s

        running = playwright.chromium.launch(executable_path=program, args=ARGUMENTS)
        page = running.new_page(viewport={"width": 1280, "height": 800})
        page.add_init_script(_LONG_TASKS)
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable")
        for view in _VIEWS:
            yield from _measured(page, session, f"{served.url}/#{view}", view, clock, served.loop, change)
        running.close()


def _measured(
    page: Any, session: Any, url: str, view: str, clock: _CpuClock, loop: Any, change: Any
) -> Iterator[Row]:
    page.goto("about:blank")
    page.goto(url)
    while not page.evaluate("globalThis.policyschedUpdates?.length > 1"):
        time.sleep(0.2)
    first_ms = max(page.evaluate("globalThis.longTasks"), default=0.0)
    page.evaluate("globalThis.longTasks.length = 0")
    worked_ms: list[float] = []
    began_s, began_cpu_s, before_s = time.monotonic(), clock.read_s(), _task_s(session)
    for _ in range(_VIEW_S):
        loop.call_soon_threadsafe(change)
        time.sleep(1.0)
        now_s = _task_s(session)
        worked_ms.append((now_s - before_s) * 1e3)
        before_s = now_s
    share = (clock.read_s() - began_cpu_s) / (time.monotonic() - began_s)
    longest_ms = max(page.evaluate("globalThis.longTasks"), default=0.0)
    name = view.partition("/")[0]
    yield Row(
        f"{name}: the browser's main thread, for each second with an update",
        f"median {median(worked_ms):.0f} ms, at most {max(worked_ms):.0f} ms",
        f"100 ms; longest task {longest_ms:.0f} ms (when the view opens {first_ms:.0f} ms; below 50 is 0)",
    )
    yield Row(f"{name}: the server", f"{100 * share:.2f} % of a core", "3 %")
