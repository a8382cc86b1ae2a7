"""A whole pretend cluster on this machine: the API server behind HTTP, nodes, a kubelet and the controllers.

`async with Sandbox(nodes=5) as sandbox:` and `kubectl --kubeconfig` takes it for a cluster without a scheduler. All
of it is forgotten at the end.
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
from policysched.sandbox.apiserver.errors import StatusError
from policysched.sandbox.apiserver.server import ApiServer
from policysched.sandbox.apiserver.timestamps import timestamp
from policysched.sandbox.controllers import Controllers
from policysched.sandbox.http_server import ApiHttpServer
from policysched.sandbox.kubeconfig import write_kubeconfig
from policysched.sandbox.kubelet import Kubelet
from policysched.sandbox.local_client import LocalClient
from policysched.sandbox.nodes import NodeShape, make_nodes, ready_node
from policysched.sandbox.transport import MemoryTransport
from policysched.sandbox.volume_controller import STANDARD_CLASS

Json = dict[str, Any]


class ManifestRefused(Exception):
    """An object that the sandbox was to begin with was refused by its API server."""


class Sandbox:
    """The cluster from `__aenter__` to `__aexit__`.

    `nodes` is a count (of `shape`) or Node manifests; `objects` are manifests of any kinds that are there from the
    start; `port` 0 takes a free one. `kubeconfig_path` None puts the kubeconfig into a directory that goes with the
    sandbox. Raises `ManifestRefused` and OSError (the port is taken).
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
        # A sandbox that is started anew at the same address has forgotten everything. Versions that begin with the
        # clock make that plain: who still watches from a version of before is told that it is gone, and lists again.
        # And uids are drawn anew, for no two objects ever share one, not even across the end of a cluster.
        self.server = ApiServer(
            now=time.time, seed=secrets.randbits(64), first_version=int(time.time() * 1000)
        )
        now = timestamp(time.time())
        self._nodes = (
            make_nodes(nodes, shape, now=now)
            if isinstance(nodes, int)
            else [ready_node(n, now) for n in nodes]
        )
        self._objects = list(objects)
        self._http = ApiHttpServer(self.server, port=port)
        self._kubelet = Kubelet(self.server, start_s=start_s, stop_s=stop_s)
        self._controllers = Controllers(self.server)
        self._kubeconfig_path = kubeconfig_path
        self._stack = AsyncExitStack()

    @property
    def url(self) -> str:
        return self._http.url

    @property
    def kubeconfig_path(self) -> Path:
        assert self._kubeconfig_path is not None, "asked for the kubeconfig of a sandbox that is not up"
        return self._kubeconfig_path

    def transport(self) -> Transport:
        """A way to the server that does not go through HTTP."""
        return MemoryTransport(self.server)

    async def __aenter__(self) -> Self:
        own_class = any(manifest.get("kind") == "StorageClass" for manifest in self._objects)
        self._create_all((*self._nodes, *self._objects, *(() if own_class else (STANDARD_CLASS,))))
        if self._kubeconfig_path is None:
            directory = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="policysched-sandbox-"))
            self._kubeconfig_path = Path(directory) / "kubeconfig"
        await self._http.start()
        self._stack.push_async_callback(self._http.stop)
        write_kubeconfig(self._kubeconfig_path, self.url)
        for part in (self._kubelet, self._controllers):
            task = asyncio.create_task(part.run())
            task.add_done_callback(_log_task_failure)
            self._stack.push_async_callback(_stop, task)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    def _create_all(self, manifests: Iterable[Json]) -> None:
        """Create in an order in which everything finds what it needs, under new uids: owners are followed to theirs,
        and an owner that is not among the manifests is forgotten, or its objects would be collected as garbage."""
        local = LocalClient(self.server)
        new_uids: dict[str, str] = {}
        for manifest in sorted(
            manifests, key=lambda manifest: _CREATION_ORDER.get(str(manifest.get("kind")), _CREATED_LAST)
        ):
            metadata = manifest.get("metadata") or {}
            kept = {key: value for key, value in metadata.items() if key not in ("resourceVersion", "uid")}
            owners = [
                {**owner, "uid": new_uids[owner["uid"]]}
                for owner in metadata.get("ownerReferences") or ()
                if owner.get("uid") in new_uids
            ]
            created = self._create(local, {**manifest, "metadata": {**kept, "ownerReferences": owners}})
            if created is not None and "uid" in metadata:
                new_uids[metadata["uid"]] = created["metadata"]["uid"]

    def _create(self, local: LocalClient, manifest: Json) -> Json | None:
        api_version, name = manifest.get("apiVersion"), manifest.get("kind")
        words = f"{name} {manifest['metadata'].get('name')}"
        kind = next((k for k in self.server.kinds if (k.api_version, k.name) == (api_version, name)), None)
        if kind is None:
            raise ManifestRefused(f"{words}: the sandbox does not serve {api_version} {name}")
        namespace = manifest["metadata"].get("namespace", "default") if kind.namespaced else ""
        if (
            local.get(kind.plural, namespace, manifest["metadata"].get("name", "")) is not None
            and kind.plural in _BUILT_IN
        ):
            return None
        try:
            return local.create(kind.plural, namespace, manifest)
        except StatusError as refusal:
            raise ManifestRefused(f"{words}: {refusal.message}") from refusal


_CREATION_ORDER = {
    "Namespace": 0,
    "PriorityClass": 1,
    "StorageClass": 1,
    "Node": 2,
    "Deployment": 3,
    "ReplicaSet": 4,
    "Job": 5,
    "Pod": 9,
}
_CREATED_LAST = 8
_BUILT_IN = ("namespaces", "priorityclasses", "serviceaccounts")
"""Kinds of which the sandbox has some of its own: a manifest of the same name changes nothing."""


def _log_task_failure(task: "asyncio.Task[None]") -> None:
    """A part that dies must not die in silence: the sandbox would go on and seem to hang."""
    if not task.cancelled() and (error := task.exception()) is not None:
        context = {"message": "a part of the sandbox died", "exception": error, "task": task}
        asyncio.get_running_loop().call_exception_handler(context)


async def _stop(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
