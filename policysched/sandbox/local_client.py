"""Access of the sandbox's kubelet and controllers to the cluster, and the direct one to the API server in memory.

They are not under test, so their calls skip the transport: no JSON and no faults. Writes go through
the registry like those of every client.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from policysched.sandbox.apiserver.errors import StatusError
from policysched.sandbox.apiserver.kinds import ResourceKind
from policysched.sandbox.apiserver.registry import DeleteOptions
from policysched.sandbox.apiserver.server import ApiServer
from policysched.sandbox.apiserver.store import StoreChange, StoredObject

Json = dict[str, Any]


class ClusterClient(ABC):
    """Reads and writes by plural, namespace and name; a custom resource is named with its group. Nothing waits, and what was
    written is read at once. Callers must not modify returned objects. `now` is seconds since 1970.
    """

    now: Callable[[], float]

    @property
    @abstractmethod
    def kinds(self) -> Sequence[ResourceKind]: ...

    @abstractmethod
    def kind(self, plural: str) -> ResourceKind: ...

    @abstractmethod
    def listen(self, plural: str, listener: Callable[[StoreChange], None]) -> Callable[[], None]:
        """Call `listener` on each change of a resource. Returns a function that stops it."""

    @abstractmethod
    def get(self, plural: str, namespace: str, name: str) -> Json | None: ...

    @abstractmethod
    def list(self, plural: str, namespace: str = "") -> Iterator[Json]:
        """List a snapshot: the collection may change during iteration."""

    @abstractmethod
    def create(self, plural: str, namespace: str, body: Json) -> Json:
        """Create an object. Raises `StatusError`."""

    @abstractmethod
    def update(
        self, plural: str, obj: Json, change: Callable[[Json], Json], *, subresource: str = ""
    ) -> Json | None:
        """Apply `change` to a copy of the current object. None if the object is gone."""

    @abstractmethod
    def delete(
        self, plural: str, obj: Json, *, grace_period_s: int | None = None, propagation: str = "Background"
    ) -> None:
        """Delete exactly this object (by uid). Does nothing if it is gone."""

    def set_status(self, plural: str, obj: Json, **fields: Any) -> Json | None:
        """Replace fields of the status; None removes a field."""

        def change(current: Json) -> Json:
            status = {**(current.get("status") or {}), **fields}
            current["status"] = {key: value for key, value in status.items() if value is not None}
            return current

        return self.update(plural, obj, change, subresource="status")


class LocalClient(ClusterClient):
    """The API server in memory."""

    def __init__(self, server: ApiServer):
        self._server = server
        self.now = server.now

    @property
    def kinds(self) -> Sequence[ResourceKind]:
        return self._server.kinds

    def kind(self, plural: str) -> ResourceKind:
        return self._server.kind(plural)

    def listen(self, plural: str, listener: Callable[[StoreChange], None]) -> Callable[[], None]:
        return self._server.store.listen(self.kind(plural).stored_as, listener)

    def get(self, plural: str, namespace: str, name: str) -> Json | None:
        entry = self._server.store.get(self.kind(plural).stored_as, (namespace, name))
        return None if entry is None else entry.obj

    def list(self, plural: str, namespace: str = "") -> Iterator[Json]:
        entries = list(self._server.store.collection(self.kind(plural).stored_as).in_namespace(namespace))
        return (entry.obj for entry in entries)

    def create(self, plural: str, namespace: str, body: Json) -> Json:
        return self._server.registry.create(self.kind(plural), namespace, body).obj

    def update(
        self, plural: str, obj: Json, change: Callable[[Json], Json], *, subresource: str = ""
    ) -> Json | None:
        metadata = obj["metadata"]
        namespace, name = metadata.get("namespace", ""), metadata["name"]
        try:
            entry: StoredObject = self._server.registry.patch(
                self.kind(plural), namespace, name, change, subresource=subresource
            )
        except StatusError as error:
            if error.code == 404:
                return None
            raise
        return entry.obj

    def delete(
        self, plural: str, obj: Json, *, grace_period_s: int | None = None, propagation: str = "Background"
    ) -> None:
        metadata = obj["metadata"]
        options = DeleteOptions(grace_period_s=grace_period_s, propagation=propagation, uid=metadata["uid"])
        try:
            self._server.registry.delete(
                self.kind(plural), metadata.get("namespace", ""), metadata["name"], options
            )
        except StatusError as error:
            if error.code not in (404, 409):
                raise
