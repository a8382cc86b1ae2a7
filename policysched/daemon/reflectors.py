"""Objects of the API server as events: one reflector per kind, and `Synced` once each has its first full list."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from random import Random
from typing import Any

from policysched.kube.client.api import ApiClient, ApiStatusError
from policysched.kube.client.connectivity import Connectivity
from policysched.kube.decode.errors import MalformedObject, log_malformed
from policysched.kube.watch.large_objects import RunBeside
from policysched.kube.watch.reflector import Reflector, ReflectorSettings
from policysched.kube.watch.resources import NODES, WatchedResource
from policysched.kube.write.recent_keys import RecentKeys
from policysched.scheduler.events import Event, Synced

log = logging.getLogger(__name__)

MALFORMED_LOG_INTERVAL_S = 60.0
"""Between two log lines about the same object, which somebody may change all the time."""


class ReflectorSet:
    """`malformed` counts the skipped object versions by kind."""

    def __init__(
        self,
        api: ApiClient,
        post: Callable[[Event], None],
        *,
        random: Callable[[str], Random],
        connectivity: Connectivity,
        settings: ReflectorSettings,
        run_beside: RunBeside | None = None,
    ) -> None:
        self._api = api
        self._post = post
        self._random = random
        self._connectivity = connectivity
        self._settings = settings
        self._run_beside = run_beside
        self._unlisted = set[str]()
        self._holds = False
        self._nodes_listed: asyncio.Event | None = None
        self._unserved: dict[str, ApiStatusError] = {}
        self._kinds: list[str] = []
        self.reflectors: list[Reflector[Any]] = []
        self.malformed: dict[str, int] = {}
        self._malformed_lately = RecentKeys[tuple[str, str]](MALFORMED_LOG_INTERVAL_S)

    def add_cluster_reflectors(
        self, resources: Sequence[WatchedResource[Any]], *, holds: bool = False
    ) -> dict[str, Coroutine[Any, Any, None]]:
        """The coroutines to run, by kind; they post every object. Call once: `Synced` follows when all are listed. `holds`: they,
        and reflectors that are added later, post nothing until `release`."""
        self._kinds = [resource.kind for resource in resources]
        self._unlisted, self._holds = set(self._kinds), holds
        if any(resource.kind == NODES.kind for resource in resources):
            self._nodes_listed = asyncio.Event()
        return {
            resource.kind: self.add_reflector(resource, self._post, partial(self._on_listed, resource.kind))
            for resource in resources
        }

    def release(self) -> None:
        """Post what is held, and `Synced` once it is confirmed."""
        self._unlisted, self._holds = set(self._kinds), False
        for reflector in self.reflectors:
            reflector.release()

    @property
    def problem(self) -> str:
        """Which kinds have no complete list yet; empty if all have. Safe from any thread."""
        unlisted = sorted(self._unlisted)
        if not self._kinds:
            return "nothing is read yet"
        return f"not listed yet: {', '.join(unlisted)}" if unlisted else ""

    def add_reflector(
        self, resource: WatchedResource[Any], emit: Callable[[Any], None], on_listed: Callable[[], None]
    ) -> Coroutine[Any, Any, None]:
        """The coroutine of one more reflector, which `Synced` does not wait for."""
        reflector: Reflector[Any] = Reflector(
            self._api,
            resource,
            emit,
            random=self._random(f"reflect {resource.kind}"),
            connectivity=self._connectivity,
            settings=self._settings,
            on_listed=on_listed,
            on_malformed=self._on_malformed,
            on_unserved=partial(self._on_unserved, resource.kind),
            run_beside=self._run_beside,
            before_large=self._nodes_listed,  # of a large pod, what nodes have is kept
            holds=self._holds,
        )
        self.reflectors.append(reflector)
        return reflector.run()

    def _on_listed(self, kind: str) -> None:
        if kind not in self._unlisted:
            return
        self._unlisted.discard(kind)
        if kind == NODES.kind and self._nodes_listed is not None:
            self._nodes_listed.set()
        if self._unlisted:
            return
        self._log_unserved()
        if self._holds:
            log.info("the cache of this standby is complete")
        else:
            self._post(Synced())

    def _on_unserved(self, kind: str, error: ApiStatusError) -> None:
        self._unserved[kind] = error
        if not self._unlisted:
            self._log_unserved()

    def _log_unserved(self) -> None:
        """One line for all optional kinds at the start, later one for each change."""
        if self._unserved:
            kinds = ", ".join(f"{kind} ({error.status})" for kind, error in sorted(self._unserved.items()))
            log.info("the API server does not serve these optional kinds", extra={"kinds": kinds})
            self._unserved.clear()

    def _on_malformed(self, malformed: MalformedObject) -> None:
        self.malformed[malformed.kind] = self.malformed.get(malformed.kind, 0) + 1
        lately, now_s = self._malformed_lately, asyncio.get_running_loop().time()
        lately.expire(now_s)
        if (key := (malformed.kind, malformed.name)) in lately:
            return
        lately.note(key, now_s)
        log_malformed(malformed)
