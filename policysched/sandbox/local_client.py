"""Direct access to the API server in memory, for the sandbox's kubelet and controllers.

They are not under test, so their calls skip the transport: no JSON and no faults. Writes go through
the registry like those of every client.
"""

from collections.abc import Callable, Iterator
from typing import Any

from policysched.sandbox.apiserver.errors import StatusError
from policysched.sandbox.apiserver.kinds import ResourceKind
from policysched.sandbox.apiserver.registry import DeleteOptions
from policysched.sandbox.apiserver.server import ApiServer
from policysched.sandbox.apiserver.store import StoreChange, StoredObject

Json = dict[str, Any]


class LocalClient:
    """Reads and writes by plural, namespace and name. Callers must not modify returned objects."""

    def __init__(self, server: ApiServer):
        self._server = server
        self.now = server.now

    def kind(self, plural: str) -> ResourceKind:
        return self._server.kind(plural)

    def listen(self, plural: str, listener: Callable[[StoreChange], None]) -> Callable[[], None]:
        """Call `listener` on each change of a resource. Returns a function that stops it."""
        return self._server.store.listen(self.kind(plural).stored_as, listener)

    def get(self, plural: str, namespace: str, name: str) -> Json | None:
        entry = self._server.store.get(self.kind(plural).stored_as, (namespace, name))
        return None if entry is None else entry.obj

    def list(self, plural: str, namespace: str = "") -> Iterator[Json]:
        """List a snapshot: the collection may change during iteration."""
        entries = list(self._server.store.collection(self.kind(plural).stored_as).in_namespace(namespace))
        return (entry.obj for entry in entries)

    def create(self, plural: str, namespace: str, body: Json) -> Json:
        """Create an object. Raises `StatusError`."""
        return self._server.registry.create(self.kind(plural), namespace, body).obj

    def update(
        self, plural: str, obj: Json, change: Callable[[Json], Json], *, subresource: str = ""
    ) -> Json | None:
        """Apply `change` to a copy of the current object. None if the object is gone."""
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

    def set_status(self, plural: str, obj: Json, **fields: Any) -> Json | None:
        """Replace fields of the status; None removes a field."""

        def change(current: Json) -> Json:
            status = {**(current.get("status") or {}), **fields}
            current["status"] = {key: value for key, value in status.items() if value is not None}
            return current

        return self.update(plural, obj, change, subresource="status")

    def delete(
        self, plural: str, obj: Json, *, grace_period_s: int | None = None, propagation: str = "Background"
    ) -> None:
        """Delete exactly this object (by uid). Does nothing if it is gone."""
        metadata = obj["metadata"]
        options = DeleteOptions(grace_period_s=grace_period_s, propagation=propagation, uid=metadata["uid"])
        try:
            self._server.registry.delete(
                self.kind(plural), metadata.get("namespace", ""), metadata["name"], options
            )
        except StatusError as error:
            if error.code not in (404, 409):
                raise
