"""The faulty transport in a thread of its own, for tests that wait by polling."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from tests.controlplane.cluster import ControlPlane
from tests.e2e.chaos.fault_profile import QUIET
from tests.e2e.chaos.faulty_transport import FaultyTransport
from tests.e2e.chaos.restarted_program import plain_kubeconfig
from tests.e2e.chaos.seed import admin_session


@contextmanager
def proxied(control_plane: ControlPlane, kubeconfig: Path) -> Iterator[FaultyTransport]:
    """A proxy without random faults. Writes the kubeconfig that leads to it."""
    started: list[FaultyTransport] = []
    ready, ended = threading.Event(), threading.Event()

    async def serve() -> None:
        async with (
            admin_session(control_plane) as session,
            FaultyTransport(session, control_plane.url, QUIET, 0) as transport,
        ):
            started.append(transport)
            ready.set()
            await asyncio.to_thread(ended.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert ready.wait(60.0), "the proxy did not start"
        (transport,) = started
        kubeconfig.write_text(yaml.safe_dump(plain_kubeconfig(transport.url)))
        yield transport
    finally:
        ended.set()
        thread.join()
