"""Access of the sandbox's kubelet and controllers to a real API server: reads from watches, writes by requests.

A write waits for its response, and its result is read at once, as in memory: the watch brings the same
version later, which is then not news. An update is made from the last version that is known; after a
conflict it is made again from the current one.
"""

import asyncio
import copy
import http.client
import ssl
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import partial
from random import Random
from typing import Any

import orjson

from policysched.kube.client.api import ApiClient
from policysched.kube.client.connectivity import Connectivity
from policysched.kube.watch.reflector import Reflector
from policysched.kube.watch.resources import WatchedResource
from policysched.sandbox.apiserver.custom_resources import DEFINITIONS, custom_kinds
from policysched.sandbox.apiserver.errors import StatusError
from policysched.sandbox.apiserver.kinds import KINDS, ResourceKind
from policysched.sandbox.apiserver.store import ChangeType, Key, StoreChange, StoredObject
from policysched.sandbox.local_client import ClusterClient

Json = dict[str, Any]
Watched = Json | str | bool
"""An object, the uid of a deleted one, or whether the server serves the kind."""

_CONFLICTS_MAX = 5
_TIMEOUT_S = 30.0


class RemoteClient(ClusterClient):
    """`host` is `HOST:PORT`. `start_task` runs the watches; `is_listed`: those of all built-in kinds have begun."""

    def __init__(
        self,
        host: str,
        tls: ssl.SSLContext,
        token: str,
        api: ApiClient,
        start_task: Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"],
    ) -> None:
        self.now = time.time
        self._connection = http.client.HTTPSConnection(host, context=tls, timeout=_TIMEOUT_S)
        self._token = token
        self._api = api
        self._start_task = start_task
        self._random = Random()
        self._connectivity = Connectivity()
        self._objects: dict[str, dict[Key, StoredObject]] = {}
        self._keys: dict[str, tuple[str, Key]] = {}
        self._listeners: dict[str, list[Callable[[StoreChange], None]]] = {}
        self._watches: dict[str, asyncio.Task[None]] = {}
        self._begun: dict[str, asyncio.Event] = {}
        for kind in KINDS:
            self._watch(kind)

    async def is_listed(self) -> bool:
        return all(begun.is_set() for begun in self._begun.values())

    @property
    def kinds(self) -> Sequence[ResourceKind]:
        definitions = self._objects.get(DEFINITIONS, {}).values()
        return (*KINDS, *custom_kinds(entry.obj for entry in definitions))

    def kind(self, plural: str) -> ResourceKind:
        return next(kind for kind in self.kinds if plural in (kind.rules, kind.stored_as))

    def listen(self, plural: str, listener: Callable[[StoreChange], None]) -> Callable[[], None]:
        kind = self.kind(plural)
        self._watch(kind)
        listeners = self._listeners.setdefault(kind.stored_as, [])
        listeners.append(listener)

        def stop() -> None:
            listeners.remove(listener)
            if kind.custom is not None and not listeners:
                self._watches.pop(kind.stored_as).cancel()

        return stop

    def get(self, plural: str, namespace: str, name: str) -> Json | None:
        entry = self._collection(plural).get((namespace, name))
        return None if entry is None else entry.obj

    def list(self, plural: str, namespace: str = "") -> Iterator[Json]:
        entries = sorted(self._collection(plural).items())
        return (entry.obj for key, entry in entries if not namespace or key[0] == namespace)

    def create(self, plural: str, namespace: str, body: Json) -> Json:
        kind = self.kind(plural)
        typed = {**body, "apiVersion": kind.api_version, "kind": kind.name}
        return self._take(kind, self._request("POST", _path(kind, namespace), typed))

    def update(
        self, plural: str, obj: Json, change: Callable[[Json], Json], *, subresource: str = ""
    ) -> Json | None:
        kind, metadata = self.kind(plural), obj["metadata"]
        namespace, name = metadata.get("namespace", ""), metadata["name"]
        path = _path(kind, namespace, name, subresource)
        current = self.get(plural, namespace, name)
        for conflicts in range(_CONFLICTS_MAX):
            if current is None:
                return None
            changed = change(copy.deepcopy(current))
            version = {"resourceVersion": current["metadata"]["resourceVersion"]}
            body = {
                **changed,
                "apiVersion": kind.api_version,
                "kind": kind.name,
                "metadata": {**changed["metadata"], **version},
            }
            try:
                return self._take(kind, self._request("PUT", path, body))
            except StatusError as error:
                if error.code == 404:
                    return None
                if error.code != 409 or conflicts == _CONFLICTS_MAX - 1:
                    raise
            current = self._read(kind, namespace, name)
        raise AssertionError("unreachable: the last conflict is raised")

    def delete(
        self, plural: str, obj: Json, *, grace_period_s: int | None = None, propagation: str = "Background"
    ) -> None:
        metadata = obj["metadata"]
        options: Json = {"propagationPolicy": propagation, "preconditions": {"uid": metadata["uid"]}}
        if grace_period_s is not None:
            options["gracePeriodSeconds"] = grace_period_s
        path = _path(self.kind(plural), metadata.get("namespace", ""), metadata["name"])
        try:
            self._request("DELETE", path, options)
        except StatusError as error:
            if error.code not in (404, 409):
                raise

    def _read(self, kind: ResourceKind, namespace: str, name: str) -> Json | None:
        try:
            return self._take(kind, self._request("GET", _path(kind, namespace, name)))
        except StatusError as error:
            if error.code == 404:
                return None
            raise

    # ── watches ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _watch(self, kind: ResourceKind) -> None:
        resource = kind.stored_as
        if resource in self._watches:
            return
        self._objects.setdefault(resource, {})
        begun = self._begun[resource] = asyncio.Event()
        reflector: Reflector[Watched] = Reflector(
            self._api,
            WatchedResource(
                kind=kind.name,
                path=_path(kind, ""),
                key=lambda metadata: str(metadata["uid"]),
                updated_event=dict,
                deleted_event=str,
                keep_when_malformed=lambda _: False,
                served_event=bool,
                may_end=kind.custom is not None,
            ),
            partial(self._on_event, kind),
            random=self._random,
            connectivity=self._connectivity,
            on_listed=begun.set,
        )
        self._watches[resource] = self._start_task(reflector.run())

    def _on_event(self, kind: ResourceKind, event: Watched) -> None:
        if isinstance(event, bool):
            if not event:
                self._begun[kind.stored_as].set()
        elif isinstance(event, str):
            self._remove(event)
        else:
            self._take(kind, event)

    def _take(self, kind: ResourceKind, obj: Json) -> Json:
        """Remember an object, and tell the listeners if it is news. Returns it without `kind` and `apiVersion`."""
        obj = {field: value for field, value in obj.items() if field not in ("kind", "apiVersion")}
        metadata = obj["metadata"]
        key = (metadata.get("namespace", ""), metadata["name"])
        entry = StoredObject(key, obj, int(metadata["resourceVersion"]))
        before = self._objects[kind.stored_as].get(key)
        if before is not None and before.version >= entry.version:
            return obj
        if before is not None and before.obj["metadata"]["uid"] != metadata["uid"]:
            # Its deletion comes later, or never if it was not watched.
            self._remove(before.obj["metadata"]["uid"])
            before = None
        self._objects[kind.stored_as][key] = entry
        self._keys[metadata["uid"]] = (kind.stored_as, key)
        self._tell(kind.stored_as, "MODIFIED" if before else "ADDED", entry, before)
        return obj

    def _remove(self, uid: str) -> None:
        resource, key = self._keys.pop(uid, ("", ("", "")))
        entry = self._objects.get(resource, {}).get(key)
        if entry is not None and entry.obj["metadata"]["uid"] == uid:
            del self._objects[resource][key]
            self._tell(resource, "DELETED", entry, entry)

    def _tell(
        self, resource: str, change: ChangeType, entry: StoredObject, before: StoredObject | None
    ) -> None:
        for listener in tuple(self._listeners.get(resource, ())):
            listener(StoreChange(entry.version, change, entry, before))

    def _collection(self, plural: str) -> dict[Key, StoredObject]:
        return self._objects.get(self.kind(plural).stored_as, {})

    # ── requests ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _request(self, method: str, path: str, body: Json | None = None) -> Json:
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        encoded = None if body is None else orjson.dumps(body)
        try:
            status, answer = self._send(method, path, encoded, headers)
        except (http.client.HTTPException, OSError):
            # The server closes idle connections. A create that arrived twice answers 409.
            self._connection.close()
            try:
                status, answer = self._send(method, path, encoded, headers)
            except (http.client.HTTPException, OSError) as error:
                self._connection.close()
                raise StatusError(503, "ServiceUnavailable", f"{method} {path}: {error}") from error
        content: Json = (
            orjson.loads(answer) if answer[:1] == b"{" else {"message": answer.decode(errors="replace")}
        )
        if status >= 300:
            raise StatusError(status, str(content.get("reason", "")), str(content.get("message", "")))
        return content

    def _send(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> tuple[int, bytes]:
        self._connection.request(method, path, body, headers)
        response = self._connection.getresponse()
        return response.status, response.read()


def _path(kind: ResourceKind, namespace: str, name: str = "", subresource: str = "") -> str:
    root = f"/apis/{kind.api_version}" if kind.group else f"/api/{kind.version}"
    scope = f"namespaces/{namespace}/" if kind.namespaced and namespace else ""
    return "/".join(part for part in (f"{root}/{scope}{kind.plural}", name, subresource) if part)
