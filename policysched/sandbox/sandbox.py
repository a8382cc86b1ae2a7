"""A simulated cluster on this machine: the API server over HTTP, nodes, a kubelet and controllers.

Inside `async with Sandbox(nodes=5) as sandbox:`, kubectl can use it as a cluster without a scheduler.
Nothing is saved.
"""

import asyncio
import secrets
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from policysched.kube.client.transport import Transport
from policysched.sandbox.apiserver.server import ApiServer
from policysched.sandbox.background import run_in_background
from policysched.sandbox.controllers import Controllers
from policysched.sandbox.http_server import ApiHttpServer
from policysched.sandbox.initial_objects import create_objects, ready_nodes
from policysched.sandbox.kubeconfig import write_kubeconfig
from policysched.sandbox.kubelet import Kubelet
from policysched.sandbox.local_client import LocalClient
from policysched.sandbox.nodes import NodeShape
from policysched.sandbox.transport import MemoryTransport

Json = dict[str, Any]


class Sandbox:
    """A cluster that runs from `__aenter__` to `__aexit__`.

    `nodes` is a number of nodes with `shape`, or Node manifests; `objects` are initial objects of any
    kinds; `port` 0 selects a free port. With `kubeconfig_path` None the kubeconfig is in a temporary
    directory. Raises `ManifestRefused`, and OSError if the port is in use.
    """

    def __init__(
        self,
        *,
        nodes: int | Sequence[Json] = 5,
        shape: NodeShape | None = None,
        objects: Iterable[Json] = (),
        port: int = 0,
        kubeconfig_path: Path | None = None,
        start_s: float = 0.3,
        stop_s: float = 0.5,
    ):
        # A restarted sandbox at the same address is empty. Resource versions start with the clock, so
        # clients that watch from an old version get "expired" and list again. Uids are random, so they
        # are unique across restarts.
        self.server = ApiServer(
            now=time.time, seed=secrets.randbits(64), first_version=int(time.time() * 1000)
        )
        self._nodes = ready_nodes(nodes, shape)
        self._objects = list(objects)
        self._http = ApiHttpServer(self.server, port=port)
        self._local = LocalClient(self.server)
        self._parts = (Kubelet(self._local, start_s=start_s, stop_s=stop_s), Controllers(self._local))
        self._kubeconfig_path = kubeconfig_path
        self._stack = AsyncExitStack()

    @property
    def url(self) -> str:
        return self._http.url

    @property
    def kubeconfig_path(self) -> Path:
        assert self._kubeconfig_path is not None, "the sandbox has no kubeconfig before it is started"
        return self._kubeconfig_path

    def transport(self) -> Transport:
        """A transport to the server without HTTP."""
        return MemoryTransport(self.server)

    async def __aenter__(self) -> Self:
        create_objects(self._local, self._nodes, self._objects)
        if self._kubeconfig_path is None:
            directory = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="policysched-sandbox-"))
            self._kubeconfig_path = Path(directory) / "kubeconfig"
        await self._http.start()
        self._stack.push_async_callback(self._http.stop)
        write_kubeconfig(self._kubeconfig_path, self.url)
        for part in self._parts:
            run_in_background(self._stack, part.run())
        return self

    async def wait_until_broken(self) -> None:
        """Never returns: nothing outside this process can end."""
        await asyncio.Event().wait()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.aclose()
