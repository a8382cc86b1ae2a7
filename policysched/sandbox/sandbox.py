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

import yaml

from policysched.kube.client.transport import Transport
from policysched.sandbox.apiserver.errors import StatusError
from policysched.sandbox.apiserver.server import ApiServer
from policysched.sandbox.apiserver.timestamps import timestamp
from policysched.sandbox.controllers import Controllers
from policysched.sandbox.http_server import ApiHttpServer
from policysched.sandbox.kubelet import Kubelet
from policysched.sandbox.local_client import LocalClient
from policysched.sandbox.nodes import NodeShape, make_nodes, ready_node
from policysched.sandbox.transport import MemoryTransport
from policysched.sandbox.volume_controller import STANDARD_CLASS

Json = dict[str, Any]


class ManifestRefused(Exception):
    """The API server of the sandbox rejected an initial object."""


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
        now = timestamp(time.time())
        self._nodes = (
            make_nodes(nodes, shape, now=now)
            if isinstance(nodes, int)
            else [ready_node(node, now, at=at) for at, node in enumerate(nodes, start=1)]
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
        assert self._kubeconfig_path is not None, "the sandbox has no kubeconfig before it is started"
        return self._kubeconfig_path

    def transport(self) -> Transport:
        """A transport to the server without HTTP."""
        return MemoryTransport(self.server)

    async def __aenter__(self) -> Self:
        own_class = any(manifest.get("kind") == "StorageClass" for manifest in self._objects)
        self._create_all((*self._nodes, *self._objects, *(() if own_class else (STANDARD_CLASS,))))
        if self._kubeconfig_path is None:
            directory = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="policysched-sandbox-"))
            self._kubeconfig_path = Path(directory) / "kubeconfig"
        await self._http.start()
        self._stack.push_async_callback(self._http.stop)
        _write_kubeconfig(self._kubeconfig_path, self.url)
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
        """Create the objects in order of their dependencies, with new uids.

        Owner references get the new uids. A reference to an owner that is not among the manifests is
        dropped, because its dependents would be collected as garbage.
        """
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
        label = f"{name} {manifest['metadata'].get('name')}"
        kind = next((k for k in self.server.kinds if (k.api_version, k.name) == (api_version, name)), None)
        if kind is None:
            raise ManifestRefused(f"{label}: the sandbox does not serve {api_version} {name}")
        namespace = manifest["metadata"].get("namespace", "default") if kind.namespaced else ""
        if (
            local.get(kind.plural, namespace, manifest["metadata"].get("name", "")) is not None
            and kind.plural in _BUILT_IN
        ):
            return None
        try:
            return local.create(kind.plural, namespace, manifest)
        except StatusError as error:
            raise ManifestRefused(f"{label}: {error.message}") from error


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
"""Kinds with built-in objects in the sandbox. A manifest of the same name is ignored."""


def _log_task_failure(task: "asyncio.Task[None]") -> None:
    """Log the failure of a task; otherwise the sandbox would seem to hang."""
    if not task.cancelled() and (error := task.exception()) is not None:
        context = {"message": "a task of the sandbox failed", "exception": error, "task": task}
        asyncio.get_running_loop().call_exception_handler(context)


async def _stop(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


_KUBECONFIG_NAME = "policysched-sandbox"


def _write_kubeconfig(path: Path, url: str) -> None:
    """Write a kubeconfig with mode 0600: kubectl warns about others. Raises OSError with the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    try:
        path.write_text(_kubeconfig(url), encoding="utf-8")
    except OSError as error:  # the error of a full disk has no path
        raise OSError(error.errno, error.strerror, str(path)) from error


def _kubeconfig(url: str) -> str:
    """Plain HTTP without credentials. The only and current context is the server at `url`."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": _KUBECONFIG_NAME, "cluster": {"server": url}}],
        "users": [{"name": _KUBECONFIG_NAME, "user": {}}],
        "contexts": [
            {
                "name": _KUBECONFIG_NAME,
                "context": {"cluster": _KUBECONFIG_NAME, "user": _KUBECONFIG_NAME, "namespace": "default"},
            }
        ],
        "current-context": _KUBECONFIG_NAME,
    }
    return yaml.safe_dump(config, sort_keys=False)
