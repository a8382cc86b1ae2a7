"""Checks the policies' ConfigMap, delivers `PoliciesUpdated`, and stores the last known good texts in a second ConfigMap.

    ConfigMap updated or deleted ──► newest wins ──► check ──► PoliciesUpdated
                                                       ▲
    last known good, read once before the first ───────┘

`daemon.policy_checker` checks the texts in a worker process. Of the edits that arrive during a check only the newest is
checked next. Every checked bundle is delivered; otherwise writing to the ConfigMap more often than a check takes would
keep every edit from taking effect.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from random import Random
from typing import Any

from policysched.config.settings import NamespacedName
from policysched.daemon.policy_checker import POLICY_SUFFIX, CheckTexts, decode_text, policy_texts
from policysched.kube.client.api import JSON_PATCH, ApiClient, ApiErrors, Forbidden, NotFound
from policysched.kube.client.backoff import Backoff
from policysched.kube.client.connectivity import Connectivity
from policysched.kube.decode.errors import MalformedObject
from policysched.kube.watch.resources import ConfigMapDeleted, ConfigMapUpdated, decode_config_map
from policysched.lang.check.bundle import PolicyBundle
from policysched.policy_files.parameter_values import parameters_without_policy, settings_parameter_texts
from policysched.scheduler.events import PoliciesUpdated

STATE_SUFFIX = ".state.json"
SLOW_CHECK_WARNING_S = 5.0
"""A longer check is logged, since the edit seems to have no effect meanwhile."""

log = logging.getLogger(__name__)


class PolicyFeed:
    """The reflector calls `on_config_map` for each version, and `on_listed` after its first list; `run` checks and
    delivers. `place` and `kept_in` name the location of the texts and of the last known good ones (empty: none) in
    messages; `params` are the settings' parameter values by policy; `uid` is the ConfigMap's, for events."""

    def __init__(
        self,
        place: str,
        kept_in: str,
        check_texts: CheckTexts,
        deliver: Callable[[PoliciesUpdated], None],
        *,
        read_last_good: Callable[[], Awaitable[Mapping[str, str]]],
        params: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self._place, self._kept_in = place, kept_in
        self._check = check_texts
        self._deliver = deliver
        self._read_last_good = read_last_good
        self._latest_event: ConfigMapUpdated | ConfigMapDeleted | None = None
        self._changed = asyncio.Event()
        self._settings_texts = settings_parameter_texts(params or {})
        self._reported_unused: list[str] = []
        self._reported_ignored: list[str] = []
        self.uid = ""

    def on_config_map(self, event: ConfigMapUpdated | ConfigMapDeleted) -> None:
        if isinstance(event, ConfigMapUpdated):
            self.uid = event.uid
        self._latest_event = event
        self._changed.set()

    def on_listed(self) -> None:
        """The first list is complete: a ConfigMap that it did not contain does not exist."""
        if self._latest_event is None:
            self.on_config_map(ConfigMapDeleted())

    async def run(self) -> None:
        """Until cancelled."""
        last_good = await self._check_last_good()
        while True:
            await self._changed.wait()
            self._changed.clear()
            newest = self._latest_event
            assert newest is not None, "nothing to check"
            self._deliver(await self._offer(newest, last_good))
            last_good = None

    async def _check_last_good(self) -> PolicyBundle | None:
        texts: Mapping[str, str] = await self._read_last_good()
        return await self._check(texts, "last known good") if texts else None

    async def _offer(
        self, newest: ConfigMapUpdated | ConfigMapDeleted, last_good: PolicyBundle | None
    ) -> PoliciesUpdated:
        if isinstance(newest, ConfigMapDeleted):
            return PoliciesUpdated(None, "", last_good, self._place, self._kept_in)
        there = {**newest.data, **{key: decode_text(raw) for key, raw in newest.binary.items()}}
        texts = {**policy_texts(there), **self._settings_texts}
        unused = parameters_without_policy(texts)
        if unused != self._reported_unused and unused:
            log.warning(
                "parameters are set for policies that do not exist", extra={"policies": ", ".join(unused)}
            )
        self._reported_unused = unused
        ignored = sorted(there.keys() - texts.keys())
        if ignored != self._reported_ignored and ignored:
            log.info(
                "ignoring keys that are not named NAME.policy or NAME.params.yaml",
                extra={"place": self._place, "keys": ", ".join(ignored)},
            )
        self._reported_ignored = ignored
        log.debug("checking the policies", extra={"place": self._place, "keys": len(texts)})
        slow = asyncio.get_running_loop().call_later(SLOW_CHECK_WARNING_S, self._warn_slow_check)
        try:
            bundle = await self._check(texts, self._place)
        finally:
            slow.cancel()
        return PoliciesUpdated(bundle, newest.resource_version, last_good, self._place, self._kept_in)

    def _warn_slow_check(self) -> None:
        log.info("still checking the edit; the active policies are unchanged", extra={"place": self._place})


class LastGoodStore:
    """The ConfigMap with the last known good texts, one key `NAME.policy` per policy, and the values of policies' states
    under `NAME.state.json`. `states` are those that `read` returned. Each write names the version that it replaces, so
    that a late one changes nothing."""

    def __init__(
        self, api: ApiClient, place: NamespacedName, *, random: Random, connectivity: Connectivity
    ) -> None:
        self._api = api
        self._place = place
        self._random = random
        self._connectivity = connectivity
        self._path = f"/api/v1/namespaces/{place.namespace}/configmaps"
        self._pending_data: Mapping[str, str] | None = None
        self._texts: Mapping[str, str] = {}
        self._version: str | None = None  # None: not known
        self.states: Mapping[str, str] = {}
        self._changed = asyncio.Event()

    @property
    def has_pending_write(self) -> bool:
        return self._pending_data is not None

    async def read(self) -> Mapping[str, str]:
        """Empty where there is none. Retries until the server responds."""
        backoff = Backoff(self._random)
        activity = "reading the last known good policies"
        while True:
            try:
                config_map = decode_config_map(await self._api.get(f"{self._path}/{self._place.name}"))
            except NotFound:
                self._connectivity.record_success(activity)
                return {}
            except (Forbidden, MalformedObject) as error:
                log.warning(
                    "cannot read the last known good policies",
                    extra={"configmap": str(self._place), "why": str(error)},
                )
                return {}
            except ApiErrors as error:
                self._connectivity.record_failure(activity, error)
                await asyncio.sleep(backoff.next_delay_s(error))
            else:
                self._connectivity.record_success(activity)
                self._texts, self._version = (
                    policy_texts(config_map.data),
                    config_map.resource_version or None,
                )
                self.states = {
                    key.removesuffix(STATE_SUFFIX): text
                    for key, text in config_map.data.items()
                    if key.endswith(STATE_SUFFIX)
                }
                return self._texts

    def save_policies(self, texts: Mapping[str, str]) -> None:
        """Requests a write, which replaces a pending one."""
        self._request_write({f"{name}{POLICY_SUFFIX}": text for name, text in texts.items()}, self.states)

    def save_states(self, texts: Mapping[str, str]) -> None:
        """Requests a write of the policies' states beside the texts."""
        self._request_write(self._texts, texts)

    def _request_write(self, texts: Mapping[str, str], states: Mapping[str, str]) -> None:
        self._texts, self.states = texts, states
        self._pending_data = {**texts, **{f"{name}{STATE_SUFFIX}": text for name, text in states.items()}}
        self._changed.set()

    async def run(self) -> None:
        """Until cancelled."""
        backoff = Backoff(self._random, initial_s=0.5)
        while True:
            await self._changed.wait()
            self._changed.clear()
            wanted = self._pending_data
            if wanted is None:
                continue
            try:
                await self._write(wanted)
            except Forbidden as error:
                log.warning(
                    "cannot save the last known good policies; a restart with an invalid policy would have none to run",
                    extra={"configmap": str(self._place), "why": error.message},
                )
                backoff.reset()
            except ApiErrors as error:
                await asyncio.sleep(backoff.next_delay_s(error))
                self._changed.set()
                continue
            else:
                backoff.reset()
            if self._pending_data is wanted:
                self._pending_data = None

    async def _write(self, data: Mapping[str, str]) -> None:
        """Replaces all data of the last known version, which is read again after any error. Creates the ConfigMap only where
        the manifests did not: RBAC cannot limit `create` by name, so the shipped role does not allow it."""
        path = f"{self._path}/{self._place.name}"
        version, self._version = self._version, None
        try:
            if version is None:
                version = _resource_version(await self._api.get(path))
            change: list[dict[str, Any]] = [
                {"op": "add", "path": "/data", "value": dict(data)},
                {"op": "replace", "path": "/metadata/resourceVersion", "value": version},
            ]
            self._version = _resource_version(await self._api.patch(path, change, JSON_PATCH))
        except NotFound:
            body = {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": self._place.name, "namespace": self._place.namespace},
                "data": dict(data),
            }
            self._version = _resource_version(await self._api.create(self._path, body))


def _resource_version(config_map: Mapping[str, Any]) -> str | None:
    """The resourceVersion of an object, or None."""
    metadata = config_map.get("metadata")
    version = metadata.get("resourceVersion") if isinstance(metadata, Mapping) else None
    return version if isinstance(version, str) and version else None
