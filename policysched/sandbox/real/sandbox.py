"""`policysched sandbox --real`: simulated nodes, kubelet and controllers on a real kube-apiserver."""

import asyncio
import ssl
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from policysched.kube.client.api import ApiClient, ApiErrors
from policysched.kube.client.session import ConnectionSettings, connect
from policysched.sandbox.background import run_in_background
from policysched.sandbox.controllers import Controllers
from policysched.sandbox.initial_objects import create_objects, ready_nodes
from policysched.sandbox.kubeconfig import Credentials, write_kubeconfig
from policysched.sandbox.kubelet import Kubelet
from policysched.sandbox.real.programs import HOST, ControlPlane, ProgramFailed, Programs
from policysched.sandbox.real.remote_client import RemoteClient

Json = dict[str, Any]

_READY_WITHIN_S = 120.0


class RealSandbox:
    """A cluster that runs from `__aenter__` to `__aexit__`. Raises `ManifestRefused` and `ProgramFailed`."""

    def __init__(
        self,
        programs: Programs,
        *,
        nodes: int | Sequence[Json] = 5,
        objects: Iterable[Json] = (),
        port: int = 0,
        kubeconfig_path: Path,
    ) -> None:
        self._programs = programs
        self._nodes = ready_nodes(nodes)
        self._objects = list(objects)
        self._port = port
        self._kubeconfig_path = kubeconfig_path
        self._stack = AsyncExitStack()
        self._control_plane: ControlPlane | None = None
        self._parts: list[asyncio.Task[None]] = []

    @property
    def url(self) -> str:
        assert self._control_plane is not None, "the sandbox has no address before it is started"
        return self._control_plane.url

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def wait_until_broken(self) -> None:
        """Raises `ProgramFailed` when a program of the control plane or a part of the sandbox has ended."""
        assert self._control_plane is not None, "not started"
        while True:
            self._control_plane.raise_if_ended()
            for part in self._parts:
                if part.done():
                    raise ProgramFailed(f"the simulated kubelet or controllers failed: {part.exception()!r}")
            await asyncio.sleep(0.5)

    async def _start(self) -> None:
        folder = Path(
            self._stack.enter_context(tempfile.TemporaryDirectory(prefix="policysched-sandbox-real-"))
        )
        control_plane = self._control_plane = ControlPlane(self._programs, folder, port=self._port)
        self._stack.callback(control_plane.stop)
        control_plane.start()
        await _until(control_plane.has_certificate, control_plane)
        certificate = control_plane.certificate_path.read_bytes()
        write_kubeconfig(
            self._kubeconfig_path, control_plane.url, Credentials(control_plane.token, certificate)
        )
        transport = await self._stack.enter_async_context(
            await connect(
                ConnectionSettings(kubeconfig=self._kubeconfig_path, user_agent="policysched-sandbox")
            )
        )
        api = ApiClient(transport)
        await _until(lambda: _is_ready(api), control_plane)
        client = RemoteClient(
            f"{HOST}:{control_plane.port}",
            ssl.create_default_context(cadata=certificate.decode()),
            control_plane.token,
            api,
            lambda work: run_in_background(self._stack, work),
        )
        await _until(client.is_listed, control_plane)
        create_objects(client, self._nodes, self._objects)
        self._parts = [
            run_in_background(self._stack, part.run()) for part in (Kubelet(client), Controllers(client))
        ]


async def _until(happened: Callable[[], Awaitable[bool]], control_plane: ControlPlane) -> None:
    try:
        async with asyncio.timeout(_READY_WITHIN_S):
            while not await happened():
                control_plane.raise_if_ended()
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise ProgramFailed(f"kube-apiserver is not ready after {_READY_WITHIN_S:g} s") from None


async def _is_ready(api: ApiClient) -> bool:
    """Ready, with the namespace in which pods are created by default."""
    try:
        await api.get("/api/v1/namespaces/default")
    except ApiErrors:
        return False
    return True
