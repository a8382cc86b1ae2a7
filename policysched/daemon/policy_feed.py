"""From the policies' ConfigMap to `PoliciesOffered`, and from `KeepPolicies` back into a ConfigMap of ours.

    ConfigMap seen or gone ──► newest one wins ──► compile ──► PoliciesOffered
                                                     ▲
    last known good, read once before the first ─────┘

Of the edits that come while one is being compiled only the newest is compiled next. What has been compiled is always offered:
else whoever writes to the ConfigMap more often than compiling takes would keep every edit from taking effect.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from random import Random
from typing import Any

from policysched.config.settings import Place
from policysched.daemon.compiling import POLICY_SUFFIX, Compile, as_text, policy_texts
from policysched.kube.client.api import JSON_PATCH, Api, ApiProblem, Forbidden, NotFound
from policysched.kube.client.backoff import Backoff
from policysched.kube.client.connectivity import Connectivity
from policysched.kube.decode.malformed import Malformed
from policysched.kube.watch.resources import ConfigMapGone, ConfigMapSeen, read_config_map
from policysched.lang.check.bundle import Bundle
from policysched.policy_files.parameter_values import settings_texts, without_policy
from policysched.scheduler.events import PoliciesOffered

STATE_SUFFIX = ".state.json"
SAID_AFTER_S = 5.0
"""A check that takes longer is said to be under way, for an edit seems to have no effect meanwhile."""

log = logging.getLogger(__name__)


class PolicyFeed:
    """`take` is told what the ConfigMap says by its reflector, `listed` when its first list is through; `run` compiles
    and delivers. `place` is where the texts stand and `kept_in` where the last known good ones do (empty: nowhere), for words
    about them; `params` are the settings' values for parameters, by policy; `uid` is the ConfigMap's, for events about it."""

    def __init__(
        self,
        place: str,
        kept_in: str,
        compile_texts: Compile,
        deliver: Callable[[PoliciesOffered], None],
        *,
        read_last_good: Callable[[], Awaitable[Mapping[str, str]]],
        params: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self._place, self._kept_in = place, kept_in
        self._compile = compile_texts
        self._deliver = deliver
        self._read_last_good = read_last_good
        self._newest: ConfigMapSeen | ConfigMapGone | None = None
        self._changed = asyncio.Event()
        self._settings_texts = settings_texts(params or {})
        self._said_unused: list[str] = []
        self._said_passed_over: list[str] = []
        self.uid = ""

    def take(self, event: ConfigMapSeen | ConfigMapGone) -> None:
        if isinstance(event, ConfigMapSeen):
            self.uid = event.uid
        self._newest = event
        self._changed.set()

    def listed(self) -> None:
        """The first list is through: what it did not show is not there."""
        if self._newest is None:
            self.take(ConfigMapGone())

    async def run(self) -> None:
        """Until cancelled."""
        last_good = await self._last_good()
        while True:
            await self._changed.wait()
            self._changed.clear()
            newest = self._newest
            assert newest is not None, "woken with nothing to compile"
            self._deliver(await self._offer(newest, last_good))
            last_good = None

    async def _last_good(self) -> Bundle | None:
        texts: Mapping[str, str] = await self._read_last_good()
        return await self._compile(texts, "last known good") if texts else None

    async def _offer(
        self, newest: ConfigMapSeen | ConfigMapGone, last_good: Bundle | None
    ) -> PoliciesOffered:
        if isinstance(newest, ConfigMapGone):
            return PoliciesOffered(None, "", last_good, self._place, self._kept_in)
        there = {**newest.data, **{key: as_text(raw) for key, raw in newest.binary.items()}}
        texts = {**policy_texts(there), **self._settings_texts}
        unused = without_policy(texts)
        if unused != self._said_unused and unused:
            log.warning(
                "parameters are set for policies that are not there", extra={"policies": ", ".join(unused)}
            )
        self._said_unused = unused
        passed_over = sorted(there.keys() - texts.keys())
        if passed_over != self._said_passed_over and passed_over:
            log.info(
                "keys that are not called NAME.policy or NAME.params.yaml are passed over",
                extra={"place": self._place, "keys": ", ".join(passed_over)},
            )
        self._said_passed_over = passed_over
        log.debug("compiling", extra={"place": self._place, "keys": len(texts)})
        slow = asyncio.get_running_loop().call_later(SAID_AFTER_S, self._say_slow)
        try:
            bundle = await self._compile(texts, self._place)
        finally:
            slow.cancel()
        return PoliciesOffered(bundle, newest.resource_version, last_good, self._place, self._kept_in)

    def _say_slow(self) -> None:
        log.info("the texts are still being checked; what runs, runs on", extra={"place": self._place})


class LastGood:
    """Our own ConfigMap with the texts that last checked, a key a policy, `NAME.policy`; and beside them the values of
    policies' states, `NAME.state.json`. `states` are those that `read` found. Each write says which version it is to replace, so that
    one which was given up and arrives late changes nothing."""

    def __init__(self, api: Api, place: Place, *, random: Random, connectivity: Connectivity) -> None:
        self._api = api
        self._place = place
        self._random = random
        self._connectivity = connectivity
        self._path = f"/api/v1/namespaces/{place.namespace}/configmaps"
        self._wanted: Mapping[str, str] | None = None
        self._texts: Mapping[str, str] = {}
        self._version: str | None = None  # None: to be asked for
        self.states: Mapping[str, str] = {}
        self._changed = asyncio.Event()

    @property
    def unwritten(self) -> bool:
        return self._wanted is not None

    async def read(self) -> Mapping[str, str]:
        """Empty where there is none. Tries until the server answers."""
        backoff = Backoff(self._random)
        activity = "reading the last known good policies"
        while True:
            try:
                found = read_config_map(await self._api.get(f"{self._path}/{self._place.name}"))
            except NotFound:
                self._connectivity.worked(activity)
                return {}
            except (Forbidden, Malformed) as error:
                log.warning(
                    "the last known good policies cannot be read",
                    extra={"configmap": str(self._place), "why": str(error)},
                )
                return {}
            except ApiProblem as error:
                self._connectivity.failed(activity, error)
                await asyncio.sleep(backoff.failed(error))
            else:
                self._connectivity.worked(activity)
                self._texts, self._version = policy_texts(found.data), found.resource_version or None
                self.states = {
                    key.removesuffix(STATE_SUFFIX): text
                    for key, text in found.data.items()
                    if key.endswith(STATE_SUFFIX)
                }
                return self._texts

    def keep(self, texts: Mapping[str, str]) -> None:
        """Write them, in place of what waits to be written."""
        self._want({f"{name}{POLICY_SUFFIX}": text for name, text in texts.items()}, self.states)

    def keep_states(self, texts: Mapping[str, str]) -> None:
        """Write them beside the policies."""
        self._want(self._texts, texts)

    def _want(self, texts: Mapping[str, str], states: Mapping[str, str]) -> None:
        self._texts, self.states = texts, states
        self._wanted = {**texts, **{f"{name}{STATE_SUFFIX}": text for name, text in states.items()}}
        self._changed.set()

    async def run(self) -> None:
        """Until cancelled."""
        backoff = Backoff(self._random, first_s=0.5)
        while True:
            await self._changed.wait()
            self._changed.clear()
            wanted = self._wanted
            if wanted is None:
                continue
            try:
                await self._write(wanted)
            except Forbidden as error:
                log.warning(
                    "the last known good policies are not kept: a restart with a broken policy would find none",
                    extra={"configmap": str(self._place), "why": error.message},
                )
                backoff.worked()
            except ApiProblem as error:
                await asyncio.sleep(backoff.failed(error))
                self._changed.set()
                continue
            else:
                backoff.worked()
            if self._wanted is wanted:
                self._wanted = None

    async def _write(self, data: Mapping[str, str]) -> None:
        """Replaces all of the data of the version that was seen last; after anything that went wrong that is asked for anew.
        Created only where the manifests did not make it: RBAC cannot limit a create by name, so the shipped role does without."""
        path = f"{self._path}/{self._place.name}"
        version, self._version = self._version, None
        try:
            if version is None:
                version = _version_of(await self._api.get(path))
            change: list[dict[str, Any]] = [
                {"op": "add", "path": "/data", "value": dict(data)},
                {"op": "replace", "path": "/metadata/resourceVersion", "value": version},
            ]
            self._version = _version_of(await self._api.patch(path, change, JSON_PATCH))
        except NotFound:
            body = {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": self._place.name, "namespace": self._place.namespace},
                "data": dict(data),
            }
            self._version = _version_of(await self._api.create(self._path, body))


def _version_of(config_map: Mapping[str, Any]) -> str | None:
    """Of an object as the server gave it; None where it does not say."""
    metadata = config_map.get("metadata")
    version = metadata.get("resourceVersion") if isinstance(metadata, Mapping) else None
    return version if isinstance(version, str) and version else None
