"""The API server: maps a request to a response or an open watch.

`ApiServer` composes the other modules and never waits. It resolves the path, runs the verb and renders
the result in the requested format; a `StatusError` from any step becomes the response.
"""

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

import orjson

from policysched.kube.client.transport import ApiResponse
from policysched.sandbox.apiserver.apply import Apply
from policysched.sandbox.apiserver.custom_resources import DEFINITIONS, custom_kinds
from policysched.sandbox.apiserver.discovery import VERSION, discovery, openapi
from policysched.sandbox.apiserver.errors import (
    StatusError,
    bad_request,
    gone,
    method_not_allowed,
    success_status,
)
from policysched.sandbox.apiserver.events import as_core_v1, as_events_v1
from policysched.sandbox.apiserver.field_validation import validate_fields
from policysched.sandbox.apiserver.kinds import KINDS, ResourceKind
from policysched.sandbox.apiserver.lists import ObjectListPage, list_page, read_number, read_version
from policysched.sandbox.apiserver.patches import read_patch
from policysched.sandbox.apiserver.registry import DeleteOptions, ResourceRegistry
from policysched.sandbox.apiserver.requests import (
    RequestTarget,
    RouteTable,
    ServerRequest,
    read_body,
    wanted_form,
    wants_aggregated_discovery,
)
from policysched.sandbox.apiserver.reviews import is_review, review
from policysched.sandbox.apiserver.selectors import parse_filter
from policysched.sandbox.apiserver.store import ObjectStore, StoreChange, StoredObject
from policysched.sandbox.apiserver.subresources import apply_scale, bind, evict, scale_of
from policysched.sandbox.apiserver.tables import TableView, table
from policysched.sandbox.apiserver.timestamps import timestamp
from policysched.sandbox.apiserver.watch import (
    EventView,
    JsonEventView,
    WatchSubscription,
    check_watch_list,
)

Json = dict[str, Any]

_JSON_HEADERS = {"content-type": "application/json"}
_WATCH_S = 1800.0
"""How long a watch lives that does not say: the real server draws between 30 and 60 minutes."""

_FIRST_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
_SYSTEM_CLASSES = (
    (
        "system-cluster-critical",
        2_000_000_000,
        "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
    ),
    (
        "system-node-critical",
        2_000_001_000,
        "Used for system critical pods that must not be moved from their current node.",
    ),
)


class ApiServer:
    """A Kubernetes API in memory.

    `now` gives seconds since 1970; `seed` decides uids and generated names; `history_changes_max` is how many changes
    of each resource a watch can begin before (at least; 410 beyond); bookmarks come each `bookmark_every_s`.
    `extra_kinds` are served besides the usual ones.
    """

    def __init__(
        self,
        *,
        now: Callable[[], float],
        seed: int = 0,
        first_version: int = 1,
        history_changes_max: int = 10_000,
        bookmark_every_s: float = 60.0,
        extra_kinds: Sequence[ResourceKind] = (),
    ):
        self.now = now
        self.store = ObjectStore(history_changes_max=history_changes_max, first_version=first_version)
        self.store.listen(DEFINITIONS, self._definition_changed)
        self.serve(extra_kinds)
        self.registry = ResourceRegistry(self.store, now, Random(seed))
        self._bookmark_every_s = bookmark_every_s
        self._subscriptions: dict[WatchSubscription, str] = {}
        for namespace in _FIRST_NAMESPACES:
            self.registry.create(self.kind("namespaces"), "", {"metadata": {"name": namespace}})
        for name, value, description in _SYSTEM_CLASSES:
            body = {"metadata": {"name": name}, "value": value, "description": description}
            self.registry.create(self.kind("priorityclasses"), "", body)

    def serve(self, extra_kinds: Sequence[ResourceKind]) -> None:
        """Serve exactly these kinds besides the usual ones from now on, as when a CRD is installed or deleted."""
        self._extra_kinds = tuple(extra_kinds)
        definitions = self.store.collection(DEFINITIONS).entries.values()
        self.kinds = (*KINDS, *extra_kinds, *custom_kinds(entry.obj for entry in definitions))
        self._routes = RouteTable(self.kinds)
        self._json_views = {kind.api_version + kind.plural: _json_view(kind) for kind in self.kinds}
        by_name = [(name, kind) for kind in self.kinds for name in (kind.stored_as, kind.plural)]
        self._by_name = dict(reversed(by_name))

    def kind(self, name: str) -> ResourceKind:
        """The row of a resource by its plural, with or without the group; the first version if there are two."""
        return self._by_name[name]

    def _definition_changed(self, change: StoreChange) -> None:
        """Serve the kinds of a CustomResourceDefinition, or remove them with their objects, without regard to finalizers."""
        if change.type == "DELETED":
            resource = change.entry.key[1]
            for key in tuple(self.store.collection(resource).keys):
                self.store.remove(resource, key)
            for subscription, watched in tuple(self._subscriptions.items()):
                if watched == resource:
                    subscription.terminate()
        self.serve(self._extra_kinds)

    @property
    def open_watches(self) -> int:
        return len(self._subscriptions)

    def cut_watches(self) -> None:
        """End all open watches, as a restart of the server does."""
        for subscription in tuple(self._subscriptions):
            subscription.terminate()

    def compact_history(self, resource: str | None = None) -> None:
        """Make all versions before the current one too old for watches and lists of `resource` (None: all)."""
        self.store.compact(resource)

    def handle(self, call: ServerRequest) -> ApiResponse | WatchSubscription:
        """Handle a request. Never raises for client errors."""
        try:
            if is_review(call.path):
                return self._review(call)
            if call.path.startswith(("/api/", "/apis/")) and call.path.count("/") >= (
                3 if call.path[4] == "/" else 4
            ):
                return self._handle_resource(call)
            return self._handle_other(call)
        except StatusError as refusal:
            return ApiResponse(refusal.code, refusal.body(), _JSON_HEADERS)

    def _review(self, call: ServerRequest) -> ApiResponse:
        if call.method != "POST":
            raise method_not_allowed(f"the sandbox does not serve {call.method} {call.path}")
        return _json(review(call.path, _require_object(read_body(call))), 201)

    def _handle_other(self, call: ServerRequest) -> ApiResponse:
        path = call.path.rstrip("/") or "/"
        if call.method not in ("GET", "HEAD"):
            raise method_not_allowed(f"the sandbox does not serve {call.method} {path}")
        if path in ("/healthz", "/livez", "/readyz"):
            return ApiResponse(200, b"ok", {"content-type": "text/plain; charset=utf-8"})
        if path == "/version":
            return _json(VERSION)
        if path.startswith("/openapi"):
            return _json(openapi(self.kinds, path))
        if path.startswith("/api"):
            aggregated = path in ("/api", "/apis") and wants_aggregated_discovery(call.accept)
            answer = discovery(self.kinds, path, aggregated=aggregated)
            if not aggregated:
                return _json(answer)
            form = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
            return ApiResponse(200, orjson.dumps(answer), {"content-type": form})
        raise StatusError(404, "NotFound", f"the sandbox does not serve {path}")

    def _handle_resource(self, call: ServerRequest) -> ApiResponse | WatchSubscription:
        target = self._routes.find(call.path)
        dry_run = _read_dry_run(call.params)
        if target.subresource:
            return self._handle_subresource(call, target, dry_run=dry_run)
        kind = target.kind
        match call.method, bool(target.name):
            case ("GET", False):
                if call.params.get("watch") in ("true", "1"):
                    return self._watch(call, target)
                return self._list(call, target)
            case ("GET", True):
                if call.params.get("watch") in ("true", "1"):
                    return self._watch(call, target)
                return self._object_response(
                    call, kind, self.registry.get(kind, target.namespace, target.name)
                )
            case ("POST", False):
                if kind.namespaced and not target.namespace:
                    raise method_not_allowed(f"{kind.plural} are created in a namespace")
                warnings = validate_fields(kind, call)
                body = _to_stored_version(kind, read_body(call))
                created = self.registry.create(kind, target.namespace, body, dry_run=dry_run)
                return self._object_response(call, kind, created, 201, warnings)
            case ("PUT", True) | ("PATCH", True):
                return self._write(call, target, dry_run=dry_run)
            case ("DELETE", True):
                return self._delete(call, target)
            case ("DELETE", False):
                return self._delete_collection(call, target)
        raise method_not_allowed(f"the sandbox does not serve {call.method} on {call.path}")

    def _handle_subresource(
        self, call: ServerRequest, target: RequestTarget, *, dry_run: bool
    ) -> ApiResponse:
        kind, namespace, name = target.kind, target.namespace, target.name
        match target.subresource, call.method:
            case ("binding", "POST"):
                bind(self.registry, kind, namespace, name, read_body(call), dry_run=dry_run)
                return _json(success_status(code=201), 201)
            case ("eviction", "POST"):
                evict(self.registry, kind, namespace, name, read_body(call))
                return _json(success_status(code=201), 201)
            case ("scale", "GET"):
                return _json(scale_of(kind, self.registry.get(kind, namespace, name)))
            case ("scale", "PUT" | "PATCH"):
                change = self._scale_change(call, kind, namespace, name)
                scaled = self.registry.patch(kind, namespace, name, change, dry_run=dry_run)
                return _json(scale_of(kind, scaled))
            case ("status", "GET"):
                return self._object_response(call, kind, self.registry.get(kind, namespace, name))
            case ("status", "PUT" | "PATCH") | ("finalize", "PUT"):
                return self._write(call, target, dry_run=dry_run)
        raise method_not_allowed(
            f"the sandbox does not serve {call.method} on {kind.plural}/{target.subresource}"
        )

    def _scale_change(
        self, call: ServerRequest, kind: ResourceKind, namespace: str, name: str
    ) -> Callable[[Json], Json]:
        if call.method == "PUT":
            wanted = read_body(call)
        else:
            patch = read_patch(call, kind)
            wanted = patch(scale_of(kind, self.registry.get(kind, namespace, name)))
            if isinstance(wanted, dict) and "resourceVersion" not in str(call.body):
                wanted["metadata"].pop("resourceVersion", None)
        return lambda obj: apply_scale(kind, obj, wanted)

    def _write(self, call: ServerRequest, target: RequestTarget, *, dry_run: bool) -> ApiResponse:
        kind, namespace, name, subresource = target.kind, target.namespace, target.name, target.subresource
        warnings = validate_fields(kind, call)
        if call.method == "PUT":
            body = _to_stored_version(kind, read_body(call))
            entry, created = self.registry.replace(
                kind, namespace, name, body, subresource=subresource, dry_run=dry_run
            )
            return self._object_response(call, kind, entry, 201 if created else 200, warnings)
        if call.content_type.startswith("application/apply-patch"):
            entry, created = self.registry.apply(
                kind, namespace, name, self._read_apply(call, target), dry_run=dry_run
            )
            return self._object_response(call, kind, entry, 201 if created else 200, warnings)
        patch = read_patch(call, kind)
        if kind.group == "events.k8s.io":
            entry = self.registry.patch(
                kind, namespace, name, lambda obj: as_core_v1(patch(as_events_v1(obj))), dry_run=dry_run
            )
        else:
            entry = self.registry.patch(
                kind, namespace, name, patch, subresource=subresource, dry_run=dry_run
            )
        return self._object_response(call, kind, entry, 200, warnings)

    def _read_apply(self, call: ServerRequest, target: RequestTarget) -> Apply:
        manager = call.params.get("fieldManager")
        if not manager:
            raise bad_request("fieldManager is required for apply patch")
        config = _require_object(read_body(call))
        return Apply(
            config,
            manager,
            force=call.params.get("force") == "true",
            subresource=target.subresource,
            api_version=target.kind.api_version,
            time=timestamp(self.now()),
        )

    def _delete(self, call: ServerRequest, target: RequestTarget) -> ApiResponse:
        kind = target.kind
        options = DeleteOptions.read(_require_object(read_body(call)), call.params)
        deleted = self.registry.delete(kind, target.namespace, target.name, options)
        if not deleted.removed or kind.returned_when_deleted:
            return self._object_response(call, kind, deleted.entry)
        details = {"name": target.name, "kind": kind.plural, "uid": deleted.entry.obj["metadata"]["uid"]}
        if kind.group:
            details["group"] = kind.group
        return _json(success_status(details))

    def _delete_collection(self, call: ServerRequest, target: RequestTarget) -> ApiResponse:
        kind = target.kind
        if kind.namespaced and not target.namespace:
            raise method_not_allowed(f"{kind.plural} are deleted in one namespace at a time")
        options = DeleteOptions.read(_require_object(read_body(call)), call.params)
        wanted = parse_filter(kind, target.namespace, call.params)
        page = list_page(self.store, kind.stored_as, wanted, {})
        for entry in page.entries:
            self.registry.delete(kind, entry.key[0], entry.key[1], options)
        return self._list_response(call, kind, page)

    def _list(self, call: ServerRequest, target: RequestTarget) -> ApiResponse:
        kind = target.kind
        wanted = parse_filter(kind, target.namespace, call.params)
        return self._list_response(call, kind, list_page(self.store, kind.stored_as, wanted, call.params))

    def _list_response(self, call: ServerRequest, kind: ResourceKind, page: ObjectListPage) -> ApiResponse:
        metadata: Json = {"resourceVersion": str(page.version)}
        if page.continue_token:
            metadata["continue"] = page.continue_token
        if page.remaining is not None:
            metadata["remainingItemCount"] = page.remaining
        if wanted_form(call.accept) == "table":
            include = call.params.get("includeObject", "Metadata")
            return _json(table(kind, page.entries, metadata, self.now(), include))
        items = b",".join(_encoded(kind, entry) for entry in page.entries)
        head = b'{"kind":"%s","apiVersion":"%s","metadata":' % (
            kind.list_kind.encode(),
            kind.api_version.encode(),
        )
        return ApiResponse(200, b'%s%s,"items":[%s]}' % (head, orjson.dumps(metadata), items), _JSON_HEADERS)

    def _object_response(
        self,
        call: ServerRequest,
        kind: ResourceKind,
        entry: StoredObject,
        status: int = 200,
        headers: Mapping[str, str] = {},
    ) -> ApiResponse:
        if wanted_form(call.accept) == "table":
            metadata = {"resourceVersion": entry.obj["metadata"].get("resourceVersion", "")}
            include = call.params.get("includeObject", "Metadata")
            return _json(table(kind, [entry], metadata, self.now(), include), status)
        headers = {**_JSON_HEADERS, **headers} if headers else _JSON_HEADERS
        return ApiResponse(status, kind.prefix + _encoded(kind, entry)[1:], headers)

    def _watch(self, call: ServerRequest, target: RequestTarget) -> WatchSubscription:
        kind, params, now_s = target.kind, call.params, self.now()
        if target.name:
            params = {**params, "fieldSelector": f"metadata.name={target.name}"}
        wanted = parse_filter(kind, target.namespace, params)
        version = read_version(params.get("resourceVersion"))
        bookmarks = params.get("allowWatchBookmarks") in ("true", "1")
        sends_initial = params.get("sendInitialEvents")
        check_watch_list(sends_initial, params)
        timeout_s = read_number(params, "timeoutSeconds")
        subscription = WatchSubscription(
            self._event_view(call, kind),
            wanted,
            now_s=now_s,
            ends_at_s=now_s + (timeout_s or _WATCH_S),
            bookmark_every_s=self._bookmark_every_s if bookmarks else None,
            version=lambda: self.store.version,
        )
        collection = self.store.collection(kind.stored_as)
        begins_with_all = sends_initial == "true" or (sends_initial is None and not version)
        if begins_with_all:
            entries = [
                entry for entry in collection.in_namespace(wanted.namespace) if wanted.matches(entry.obj)
            ]
            # The end is marked for all watches with bookmarks, with or without `sendInitialEvents`.
            subscription.send_initial(entries, marks_the_end=bookmarks)
        elif version and version < collection.compacted:
            subscription.fail(gone(f"too old resource version: {version} ({collection.compacted + 1})"))
            return subscription
        elif version:
            for change in collection.changes_after(version):
                subscription.on_change(change)
        stop_listening = self.store.listen(kind.stored_as, subscription.on_change)
        self._subscriptions[subscription] = kind.stored_as

        def close() -> None:
            stop_listening()
            del self._subscriptions[subscription]

        subscription.on_close = close
        return subscription

    def _event_view(self, call: ServerRequest, kind: ResourceKind) -> EventView:
        if wanted_form(call.accept) == "table":
            return TableView(kind, self.now, call.params.get("includeObject", "Metadata"))
        return self._json_views[kind.api_version + kind.plural]


def _json_view(kind: ResourceKind) -> JsonEventView:
    head = {"kind": kind.name, "apiVersion": kind.api_version}
    return JsonEventView(kind.prefix, head, as_events_v1 if kind.group == "events.k8s.io" else None)


def _encoded(kind: ResourceKind, entry: StoredObject) -> bytes:
    if kind.group == "events.k8s.io":
        return orjson.dumps(as_events_v1(entry.obj))
    return entry.encoded


def _to_stored_version(kind: ResourceKind, body: Any) -> Any:
    """Convert a body to its stored version."""
    return as_core_v1(body) if kind.group == "events.k8s.io" and isinstance(body, dict) else body


def _require_object(body: Any) -> Json:
    if not isinstance(body, dict):
        raise bad_request("the body is an object")
    return body


def _read_dry_run(params: Mapping[str, str]) -> bool:
    value = params.get("dryRun", "")
    if value not in ("", "All"):
        raise bad_request(f'dryRun: Unsupported value: "{value}": supported values: "All"')
    return value == "All"


def _json(body: Json, status: int = 200) -> ApiResponse:
    return ApiResponse(status, orjson.dumps(body), _JSON_HEADERS)
