"""The API servers that the contract tests run on: in memory, the same behind HTTP, and a real
kube-apiserver.
"""

import asyncio
import ssl
import tempfile
import time
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from policysched.sandbox.apiserver import ApiServer
from policysched.sandbox.http_server import ApiHttpServer
from policysched.sandbox.transport import MemoryTransport
from tests.contract.transports import Api, HttpTransport
from tests.simulation.virtual_time import VirtualTimeLoop

SERVERS = ("memory", "http", pytest.param("real", marks=pytest.mark.control_plane))


@pytest.fixture(params=SERVERS)
def api(request: pytest.FixtureRequest) -> Iterator[Api]:
    match request.param:
        case "memory":
            yield from in_memory()
        case "http":
            yield from _over_http()
        case "real":
            yield from _real(request)


@pytest.fixture
def memory_api() -> Iterator[Api]:
    """For properties of the simulated server alone, and for tests that need old versions to be
    compacted.
    """
    yield from in_memory()


def in_memory() -> Iterator[Api]:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        loop = runner.get_loop()
        server = ApiServer(now=lambda: 1_700_000_000 + loop.time(), bookmark_every_s=1.0)
        yield Api(runner, MemoryTransport(server), make_history_old=server.compact_history)


def _over_http() -> Iterator[Api]:
    with asyncio.Runner() as runner:
        server = ApiServer(now=time.time, bookmark_every_s=0.1)
        front = ApiHttpServer(server)
        runner.run(front.start())
        transport = HttpTransport(front.url)
        try:
            yield Api(runner, transport, make_history_old=server.compact_history)
        finally:
            runner.run(transport.close())
            runner.run(front.stop())


def _real(request: pytest.FixtureRequest) -> Iterator[Api]:
    control_plane = request.getfixturevalue("control_plane")
    context = _context_of(control_plane.kubeconfig_path)
    with asyncio.Runner() as runner:
        transport = HttpTransport(control_plane.url, context)
        try:
            yield Api(runner, transport, make_history_old=control_plane.forget_history)
        finally:
            runner.run(transport.close())


def _context_of(kubeconfig: Path) -> ssl.SSLContext:
    """The TLS context of a kubeconfig that embeds its certificates."""
    config = yaml.safe_load(kubeconfig.read_text())
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    context = ssl.create_default_context(cadata=b64decode(cluster["certificate-authority-data"]).decode())
    with tempfile.TemporaryDirectory() as folder:
        certificate, key = Path(folder) / "certificate", Path(folder) / "key"
        certificate.write_bytes(b64decode(user["client-certificate-data"]))
        key.write_bytes(b64decode(user["client-key-data"]))
        context.load_cert_chain(certificate, key)
    return context
