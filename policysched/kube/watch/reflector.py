"""A reflector: lists a resource in pages, then watches it from the list's version, and emits events.

    listing ──complete list──► watching ──closed or broken──► watching again, from the last version received
       ▲                          │
       └───── 410, or an error in the stream ─────┘

Whatever the connection does (broken streams, half lines, repeated or stale events), the emitted events are correct and
in order for each object: a version that is not newer is not emitted, an object that a relist does not show is emitted
as deleted, and a malformed object is reported once per version and skipped. Large objects are decoded beside the event
loop, and those behind them are emitted first (`large_objects`).
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Set
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, Generic, TypeVar

from policysched.kube.client.api import (
    ApiClient,
    ApiErrors,
    ApiStatusError,
    Expired,
    Forbidden,
    ListPage,
    NotFound,
    ServerError,
    watch_error,
)
from policysched.kube.client.backoff import Backoff
from policysched.kube.client.connectivity import Connectivity
from policysched.kube.client.transport import JSON, METADATA_LIST_ONLY
from policysched.kube.client.watch_lines import WatchEvent
from policysched.kube.decode.errors import MalformedObject, log_malformed
from policysched.kube.decode.primitives import resource_version, version_number
from policysched.kube.watch.known_objects import Decoded, KnownObject, KnownObjects
from policysched.kube.watch.large_objects import (
    LARGE_LINE_BYTES,
    LargeObjects,
    RunBeside,
    as_line,
    decode_large,
    is_large,
    params_to_list,
    read_unread,
)
from policysched.kube.watch.outdated_objects import read_outdated
from policysched.kube.watch.resources import WatchedResource

log = logging.getLogger(__name__)
Json = Mapping[str, Any]
Emitted = TypeVar("Emitted")

NOT_FOUND_BEFORE_END = 3
"""How often in a row a kind that was served is requested again before it counts as no longer served."""

BUSY_MAX_S = 0.005
"""How long events of a watch are applied until other tasks run."""

CHANGED_MAX = 100
"""So many changed objects are read one by one after a list of metadata."""

SERVER_ERRORS_BEFORE_RELIST = 3
"""After this many 5xx responses, the server may never be able to serve a watch from that version."""


@dataclass(frozen=True, slots=True)
class ReflectorSettings:
    """`page_size` objects per request. The server ends a watch after a time drawn from `watch_min_s` to `watch_max_s`, so
    that clients do not reconnect at once. A kind that the server does not serve is requested again after
    `unserved_retry_s`."""

    page_size: int = 500
    watch_min_s: int = 300
    watch_max_s: int = 600
    idle_timeout_s: float = 150.0
    page_timeout_s: float = 30.0
    unserved_retry_s: float = 30.0


class Reflector(Generic[Emitted]):
    """`emit` receives every event. `on_listed` is called after each complete list, `on_malformed` for each version of a malformed
    object, `on_unserved` when the server turns out not to serve the kind. `run_beside` is for kinds with large objects; None:
    they are decoded in their turn. Those of the first list wait for `before_large`. `holds`: nothing is emitted until `release`. Runs
    until cancelled; no error ends it."""

    def __init__(
        self,
        api: ApiClient,
        resource: WatchedResource[Emitted],
        emit: Callable[[Emitted], None],
        *,
        random: Random,
        connectivity: Connectivity,
        settings: ReflectorSettings = ReflectorSettings(),
        on_listed: Callable[[], None] = lambda: None,
        on_malformed: Callable[[MalformedObject], None] | None = None,
        on_unserved: Callable[[ApiStatusError], None] = lambda _error: None,
        run_beside: RunBeside | None = None,
        before_large: asyncio.Event | None = None,
        holds: bool = False,
    ) -> None:
        self._api = api
        self._before_large = before_large
        self._resource = resource
        self._versions = (resource, *resource.older)
        self._not_found = 0
        self._random = random
        self._connectivity = connectivity
        self._settings = settings
        self._on_listed = on_listed
        self._on_malformed = on_malformed or log_malformed
        self._on_unserved = on_unserved
        self._run_beside = None if resource.decode_line is None else run_beside
        self._large = LargeObjects()
        self._backoff = Backoff(random, initial_s=0.2, max_s=15.0)
        self._known = KnownObjects(resource, emit, self._on_malformed, holds=holds)
        self._version = ""
        self._highest_version = 0
        self._connection_lost = self._watch_failing = False
        self._served: str | None = None  # the path that is served; "": none
        self.kind = resource.kind
        self._activity = f"watching {resource.kind} objects"
        self._interruptible: asyncio.Timeout | None = None
        self._unconfirmed = self._interrupted = False
        self.lists_total = self.watches_total = 0

    @property
    def objects_known(self) -> int:
        return len(self._known.objects)

    def release(self) -> None:
        """Emit what is held, and read at once what has changed: the watch may be late, or its connection dead. `on_listed`
        follows, as after a first list."""
        self._known.release()
        self._unconfirmed = self._interrupted = True
        if self._interruptible is not None:
            self._interruptible.reschedule(asyncio.get_running_loop().time())

    async def run(self) -> None:
        """List and watch for ever."""
        if self._run_beside is None:
            await self._list_and_watch()
            return
        async with asyncio.TaskGroup() as group:
            group.create_task(self._decode_large_objects(self._run_beside), name=f"large {self.kind}")
            group.create_task(read_unread(self._large, self._read_again), name=f"unread {self.kind}")
            if self._resource.outdated is not None:
                work = read_outdated(self._resource.outdated, self._decoded_objects, self._read_again)
                group.create_task(work, name=f"outdated {self.kind}")
            await self._list_and_watch()

    async def _list_and_watch(self) -> None:
        while True:
            self._interruptible = interruptible = asyncio.timeout(None)
            try:
                async with interruptible:
                    await self._list_and_watch_until_released()
            except TimeoutError:
                if not interruptible.expired():
                    raise

    async def _list_and_watch_until_released(self) -> None:
        page_size = self._settings.page_size
        while True:
            self._interrupted = False
            try:
                if not self._version or (self._unconfirmed and not await self._confirm()):
                    this_size, page_size = page_size, self._settings.page_size
                    await self._list(this_size)
                if self._connection_lost and await self._server_is_older():
                    self._version = ""
                    continue
                await self._watch()
            except Expired as error:
                # On a busy cluster the pages of a list can expire: then list without pages, as client-go does.
                page_size = self._settings.page_size if self._version else 0
                self._watch_failing |= bool(self._version)
                self._version = ""
                await self._back_off(error)
            except (NotFound, Forbidden) as error:
                await self._on_not_served(error)
            except ServerError as error:
                # Such as "Too large resource version" (504) from a server that lost its data: waiting does not help.
                if self._backoff.failures >= SERVER_ERRORS_BEFORE_RELIST:
                    self._version, self._watch_failing = "", True
                await self._back_off(error)
            except ApiErrors as error:
                self._connection_lost = True
                await self._back_off(error)

    async def _on_not_served(self, error: NotFound | Forbidden) -> None:
        """Try the other versions of the kind, then wait. A kind that was served may be missing for a moment only, such as
        while its definition is replaced."""
        if self._version and self._resource.may_end and self._not_found < NOT_FOUND_BEFORE_END:
            self._not_found += 1
            await self._back_off(error)
        elif self._resource.served_event is None or (self._version and not self._resource.may_end):
            self._connection_lost = True
            self._not_found += 1
            if self._resource.served_event is not None and self._not_found >= NOT_FOUND_BEFORE_END:
                self._end_confirmation()  # what is known stays
            await self._back_off(error)
        else:
            self._version, self._connection_lost = "", False
            at = self._versions.index(self._resource) + 1
            if at < len(self._versions):
                self._resource = self._versions[at]
                return
            self._resource = self._versions[0]
            if self._resource.may_end:
                for key in list(self._known.objects):
                    self._delete(key, self._highest_version)
                self._known.forget_deleted()
            assert self._resource.served_event is not None, f"{self.kind} has no served_event"
            await self._wait_until_served(self._resource.served_event(False), error)

    async def _wait_until_served(self, event: Emitted, error: ApiStatusError) -> None:
        """The kind is optional and the server does not serve it: report an empty list and retry later."""
        if self._served != "":
            self._served, self._unconfirmed = "", True
            self._on_unserved(error)
            self._known.emit_served(event)
        self._end_confirmation()
        self._connectivity.record_success(self._activity)
        await asyncio.sleep(self._settings.unserved_retry_s)

    def _end_confirmation(self) -> None:
        """Not if this was released only just: what was requested before confirms nothing, and the request is interrupted soon."""
        if self._unconfirmed and not self._interrupted:
            self._unconfirmed = False
            self._on_listed()

    async def _server_is_older(self) -> bool:
        """After a broken connection: whether the server is behind the version that we know. A server restored from a backup
        would keep a watch from that version silent until it catches up."""
        pages = self._pages(1)
        page = await anext(pages)
        await pages.aclose()
        self._connection_lost = False
        return 0 < version_number(page.resource_version) < self._highest_version

    async def _back_off(self, error: Exception) -> None:
        if isinstance(error, Expired):
            log.debug("a version expired; relisting", extra={"kind": self.kind, "error": str(error)})
        else:
            self._connectivity.record_failure(self._activity, error)
        await asyncio.sleep(self._backoff.next_delay_s(error))

    # ── listing ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _list(self, page_size: int) -> None:
        listed, is_first = set[str](), not self.lists_total or self._unconfirmed
        version, paused_s = "", asyncio.get_running_loop().time()
        async for page in self._pages(page_size):
            version = self._begin_page(page, version)
            for obj in page.items:
                if (key := self._known.key_of(obj)) is not None:
                    listed.add(key)
                    await self._upsert_listed(key, resource_version(obj["metadata"]), obj, is_first=is_first)
                paused_s = await self._pause_if_busy(paused_s)
        self.lists_total += 1
        self._end_list(version, listed)

    def _begin_page(self, page: ListPage, version: str) -> str:
        """The version of the list. `version`: of the pages before; empty at the first one."""
        if not version:
            self._large.clear()  # the list has newer versions of all
        self._handle_version_rollback(version_number(page.resource_version))
        return page.resource_version

    def _end_list(self, version: str, listed: Set[str]) -> None:
        self._version = version
        self._connection_lost, self._not_found, self._unconfirmed = False, 0, True
        as_of = version_number(version)
        for key in [key for key in self._known.objects if key not in listed]:
            self._delete(key, as_of)
        self._connectivity.record_success(self._activity)
        if not self._watch_failing:  # else only a watch ends the failure: do not relist in a tight loop
            self._backoff.reset()
        self._report_served()
        self._end_confirmation()

    async def _confirm(self) -> bool:
        """Lists the metadata alone, and reads the objects of which another version is known. False: they are so many that
        a whole list takes less."""
        listed, changed = set[str](), dict[str, Mapping[str, str]]()
        version, paused_s = "", asyncio.get_running_loop().time()
        async for page in self._pages(self._settings.page_size, accept=METADATA_LIST_ONLY):
            version = self._begin_page(page, version)
            for obj in page.items:
                if (key := self._known.key_of(obj)) is not None:
                    meta = obj["metadata"]
                    listed.add(key)
                    if self._known.is_newer(key, resource_version(meta)):
                        changed[key] = params_to_list(str(meta.get("namespace") or ""), str(meta.get("name")))
                        if len(changed) > CHANGED_MAX:
                            return False
                paused_s = await self._pause_if_busy(paused_s)
        for key, params in changed.items():
            async for page in self._pages(1, params):
                for obj in page.items:
                    if self._known.key_of(obj) == key:  # else it is gone, and the watch tells
                        await self._upsert_listed(key, resource_version(obj["metadata"]), obj, is_first=True)
        self._end_list(version, listed)
        return True

    def _pages(
        self, size: int, params: Mapping[str, str] | None = None, accept: str = JSON
    ) -> AsyncGenerator[ListPage, None]:
        resource, timeout_s = self._resource, self._settings.page_timeout_s
        query = {**resource.params, **(params or {})}
        return self._api.pages(resource.path, query, page_size=size, timeout_s=timeout_s, accept=accept)

    def _decoded_objects(self) -> dict[str, object]:
        """Empty before the first list is complete."""
        return {key: each.decoded for key, each in self._known.objects.items()} if self.lists_total else {}

    async def _read_again(self, key: str, params: Mapping[str, str]) -> None:
        async for page in self._pages(1, params):
            for obj in page.items:
                reflected = self._known.objects.get(key)
                is_known = self.lists_total and (reflected is not None or self._large.is_unread(key))
                if is_known and self._known.key_of(obj) == key:
                    version = resource_version(obj["metadata"])
                    if reflected is not None and version == reflected.version:
                        reflected.version -= 1
                    await self._upsert_listed(key, version, obj)

    async def _upsert_listed(self, key: str, version: int, obj: Json, *, is_first: bool = False) -> None:
        """The first list waits for its large objects that count for others, and they are decoded without rests: nothing is decided
        before. Others, and those of a later list, wait as in a watch, so that events after the list do not."""
        if self._run_beside is None or not is_large(obj):
            self._large.discard(key, version)
            self._upsert(key, version, obj)
        elif self._known.is_newer(key, version):
            may_wait = not (is_first and self._resource.counts_for_others(obj))
            if may_wait and (line := as_line(obj)) is not None:
                self._large.put(key, version, obj["metadata"], line)
            else:
                if self._before_large is not None:
                    await self._before_large.wait()
                decode = partial(self._decode, obj, self._known.objects.get(key))
                decoded = await self._run_beside(partial(decode_large, self.kind, key, decode, rests=False))
                self._known.store(key, version, decoded)

    def _report_served(self) -> None:
        if self._resource.served_event is not None and self._served != self._resource.path:
            self._served = self._resource.path
            self._known.emit_served(self._resource.served_event(True))

    def _handle_version_rollback(self, as_of: int) -> None:
        """A list older than known events: etcd was restored from a backup, and the list is authoritative."""
        if 0 < as_of < self._highest_version:
            about = {"kind": self._resource.kind, "was": self._highest_version, "now": as_of}
            log.warning("resource versions went backwards (restored backup?); relisting", extra=about)
            self._known.forget_versions()
        self._highest_version = as_of

    # ── watching ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def _watch(self) -> None:
        lifetime_s = self._random.randint(self._settings.watch_min_s, self._settings.watch_max_s)
        received = False
        async with self._api.watch(
            self._resource.path,
            self._resource.params,
            resource_version=self._version,
            server_closes_after_s=lifetime_s,
            idle_timeout_s=self._settings.idle_timeout_s,
            large_bytes=None if self._run_beside is None else LARGE_LINE_BYTES,
        ) as events:
            self.watches_total += 1
            self._not_found = 0
            self._connectivity.record_success(self._activity)
            paused_s = asyncio.get_running_loop().time()
            async for event in events:
                if event.type != "ERROR":
                    received, self._watch_failing = True, False
                    self._backoff.reset()
                self._apply(event)
                paused_s = await self._pause_if_busy(paused_s)
        if not received:  # do not reconnect in a tight loop to a server that closes each watch at once
            await asyncio.sleep(self._backoff.next_delay_s())

    async def _pause_if_busy(self, paused_s: float) -> float:
        """A page or a chunk can have many objects: others run between them. `paused_s`: when that was last."""
        loop = asyncio.get_running_loop()
        if loop.time() - paused_s < BUSY_MAX_S:
            return paused_s
        await asyncio.sleep(0)
        return loop.time()

    def _apply(self, event: WatchEvent) -> None:
        if event.type == "ERROR":
            raise watch_error(event.object)
        self._advance_version(event.object)
        if event.type == "BOOKMARK" or (key := self._known.key_of(event.object)) is None:
            return
        version = resource_version(event.object["metadata"])
        if event.type == "DELETED":
            reflected = self._known.objects.get(key)
            if reflected is None or reflected.version <= version:
                self._delete(key, version)
        elif event.large is None:
            self._large.discard(key, version)
            self._upsert(key, version, event.object)
        elif self._known.is_newer(key, version):
            self._large.put(key, version, event.object["metadata"], event.large)

    async def _decode_large_objects(self, run_beside: RunBeside) -> None:
        decode_line = self._resource.decode_line
        assert decode_line is not None, f"{self.kind} has no decode_line"
        while True:
            large = await self._large.take()
            generation, reflected = self._large.generation, self._known.objects.get(large.key)
            decode = partial(decode_line, large.line, None if reflected is None else reflected.decoded)
            decoded = await run_beside(partial(decode_large, self.kind, large.key, decode))
            if generation == self._large.generation and self._known.is_newer(large.key, large.version):
                self._known.store(large.key, large.version, decoded)
                if isinstance(decoded, tuple) and self._resource.outdated is not None:
                    self._resource.outdated.decoded_beside(decoded[1])

    def _advance_version(self, obj: Json) -> None:
        meta = obj.get("metadata")
        version = str(meta.get("resourceVersion") or "") if isinstance(meta, Mapping) else ""
        if version and version_number(version) >= version_number(self._version):
            self._version = version
            self._highest_version = max(self._highest_version, version_number(version))

    def _upsert(self, key: str, version: int, obj: Json) -> None:
        if self._known.is_newer(key, version):
            self._known.store(key, version, self._decode(obj, self._known.objects.get(key)))

    def _decode(
        self, obj: Json, reflected: KnownObject[Emitted] | None
    ) -> Decoded[Emitted] | MalformedObject:
        """The event, and what the next version can be decoded with."""
        try:
            if self._resource.decode_update is None:
                return self._resource.updated_event(obj), None
            return self._resource.decode_update(obj, None if reflected is None else reflected.decoded)
        except MalformedObject as malformed:
            return malformed

    def _delete(self, key: str, version: int) -> None:
        self._large.discard(key, version)
        self._known.delete(key, version)
