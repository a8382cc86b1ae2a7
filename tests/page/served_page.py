"""The page over a scheduler on virtual time, or over documents that a test changes, served from a thread of its own."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

from policysched.runtime.live_endpoints import LiveEndpoints
from policysched.runtime.page_documents import PageDocuments
from policysched.runtime.policy_history import PolicyHistory
from policysched.serve.main_loop_reader import LiveEndpoint
from policysched.serve.policy_try import PolicyTries
from policysched.serve.server import HttpServerOptions, HttpThread, ListenAddress
from tests.scheduler.rig import Rig
from tests.serve.served import PAGES, WELL

Json = dict[str, Any]


def documents(rig: Rig) -> PageDocuments:
    """The documents of an app that leads with this scheduler, has no metric and has bound nothing yet."""
    app: Any = SimpleNamespace(
        scheduler=rig.scheduler,
        unavailable_reason=None,
        leadership=SimpleNamespace(leads=lambda: True, holder="pod-1_a"),
        binder=SimpleNamespace(counts=SimpleNamespace(confirmed=0, refused=0, lost=0)),
        connectivity=SimpleNamespace(problem=""),
        metric_monitor=SimpleNamespace(statuses=list),
    )
    live = LiveEndpoints(rig.scheduler, lambda: None, lambda: rig.now_ns)
    return PageDocuments(app, live, PolicyHistory())


def document(rig: Rig, path: str, query: Mapping[str, str] = {}) -> Json:
    page, _ = documents(rig).by_path()[path]
    results = [step for step in page(query) if isinstance(step, Mapping)]
    assert len(results) == 1
    return dict(results[0])


@dataclass(frozen=True, slots=True)
class Served:
    """The URL of a page, and the thread and loop that make its data."""

    url: str
    main: threading.Thread
    loop: asyncio.AbstractEventLoop


@contextmanager
def serving_feeds(
    feeds: Mapping[str, tuple[LiveEndpoint, float]], policy_tries: PolicyTries | None = None
) -> Iterator[Served]:
    loop, started = asyncio.new_event_loop(), threading.Event()

    def run() -> None:
        asyncio.set_event_loop(loop)
        loop.call_soon(started.set)
        loop.run_forever()

    main = threading.Thread(target=run, daemon=True)
    main.start()
    started.wait()
    endpoints = replace(PAGES, page_feeds=feeds, policy_tries=policy_tries)
    server = HttpThread(ListenAddress("127.0.0.1", 0), WELL, endpoints, loop, HttpServerOptions())
    port = server.start()
    try:
        yield Served(f"http://127.0.0.1:{port}", main, loop)
    finally:
        server.stop()
        loop.call_soon_threadsafe(loop.stop)
        main.join(timeout=10)
        loop.close()


@contextmanager
def serving_documents(
    by_path: Callable[[str, Mapping[str, str]], Json],
    paths: list[str],
    share: float = 0.5,
    policy_tries: PolicyTries | None = None,
) -> Iterator[str]:
    """The URL of a page whose data `by_path` makes."""

    def feed(path: str) -> Any:
        def page(query: Mapping[str, str]) -> Iterator[Json]:
            yield by_path(path, query)

        return page, share

    with serving_feeds({path: feed(path) for path in paths}, policy_tries) as served:
        yield served.url
