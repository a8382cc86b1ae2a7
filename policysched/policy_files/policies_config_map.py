"""The policies in a cluster's two ConfigMaps, and the key that removes one of them.

The key removes the policy for every process that reads the ConfigMap, now and after a restart. The text is not changed,
so deleting the key restores the policy.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from policysched.kube.client.api import JSON_PATCH, ApiClient, Forbidden, NotFound
from policysched.kube.watch.resources import decode_config_map
from policysched.policy_files.last_good_format import STATE_SUFFIX, UnreadableArchive, unpack_texts
from policysched.policy_files.parameter_values import policy_name_in
from policysched.policy_files.source_set import POLICY_SUFFIX, REMOVED_SUFFIX, removed_name
from policysched.scheduler.canaries import Canaries, CanaryRecord

_FIELD_MANAGER = "policysched"


class RemovalRefused(Exception):
    """Nothing was changed. The message is one line."""


@dataclass(frozen=True, slots=True)
class ListedPolicy:
    """`key` holds the text, None if there is none. `kept`: whether a last known good text is kept, None if that cannot be
    read. `canary`: what is kept about its canary, None without one. `removal`: the reason of the removal, which may be empty; None if the policy is not removed."""

    name: str
    key: str | None
    kept: bool | None
    removal: str | None
    canary: CanaryRecord | None = None


class PoliciesConfigMap:
    """Reads and changes the ConfigMaps at `policies` and `last_good`, each `namespace, name`. Besides RemovalRefused and
    MalformedObject, its methods raise the errors of `ApiClient`."""

    def __init__(self, api: ApiClient, policies: tuple[str, str], last_good: tuple[str, str]) -> None:
        self._api = api
        self._place = "/".join(policies)
        self._path, self._last_good_path = _path(*policies), _path(*last_good)
        self._kept_place = "/".join(last_good)

    async def read(self) -> list[ListedPolicy]:
        """By name."""
        data = await self._data()
        kept, canaries = await self._kept()
        keys = _keys_by_policy(data)
        removals = {name: text for key, text in data.items() if (name := removed_name(key)) is not None}
        return [
            ListedPolicy(
                name,
                keys.get(name),
                None if kept is None else name in kept,
                removals.get(name),
                canaries.get(name),
            )
            for name in sorted({*keys, *removals, *(kept or ())})
        ]

    async def remove(self, name: str, reason: str, *, dry_run: bool) -> bool:
        """Adds the key. False: the policy is removed already, for this reason."""
        data = await self._data()
        key = f"{name}{REMOVED_SUFFIX}"
        if data.get(key) == reason:
            return False
        if key not in data:
            await self._check_known(name, data)
        change = {"op": "add", "path": f"/data/{key}", "value": reason}
        # Without data there is no map that a key could be added to.
        await self._patch(change if data else {"op": "add", "path": "/data", "value": {key: reason}}, dry_run)
        return True

    async def restore(self, name: str, *, dry_run: bool) -> str | None:
        """Deletes the key. Returns the key of the text that becomes active, None if there is none."""
        data = await self._data()
        key = f"{name}{REMOVED_SUFFIX}"
        if key not in data:
            raise RemovalRefused(f"policy `{name}` is not removed: ConfigMap {self._place} has no key {key}")
        await self._patch({"op": "remove", "path": f"/data/{key}"}, dry_run)
        return _keys_by_policy(data).get(name)

    async def _patch(self, change: Mapping[str, object], dry_run: bool) -> None:
        params = {"fieldManager": _FIELD_MANAGER} | ({"dryRun": "All"} if dry_run else {})
        await self._api.patch(self._path, [dict(change)], JSON_PATCH, params=params)

    async def _check_known(self, name: str, data: Mapping[str, str]) -> None:
        """A misspelt name would remove nothing, and look as if it had."""
        kept, _ = await self._kept()
        policy_names = {*_keys_by_policy(data), *(kept or ())}
        if name in policy_names:
            return
        close = get_close_matches(name, sorted(policy_names), n=1)
        hint = f" (did you mean `{close[0]}`?)" if close else ""
        unread = f" (ConfigMap {self._kept_place} cannot be read)" if kept is None else ""
        raise RemovalRefused(
            f"neither ConfigMap {self._place} nor {self._kept_place}{unread} has a policy `{name}`{hint}"
        )

    async def _data(self) -> Mapping[str, str]:
        return decode_config_map(await self._api.get(self._path)).data

    async def _kept(self) -> tuple[set[str] | None, Mapping[str, CanaryRecord]]:
        """The names of kept texts, None if the user may not read them, and the canaries by policy."""
        try:
            texts = unpack_texts(decode_config_map(await self._api.get(self._last_good_path)))
        except NotFound:
            return set(), {}
        except (Forbidden, UnreadableArchive):
            return None, {}
        saved = Canaries(lambda _: None)
        saved.restore(
            {
                key.removesuffix(STATE_SUFFIX): text
                for key, text in texts.items()
                if key.endswith(STATE_SUFFIX)
            }
        )
        names = {key.removesuffix(POLICY_SUFFIX) for key in texts if key.endswith(POLICY_SUFFIX)}
        return names, saved.records


def _keys_by_policy(data: Mapping[str, str]) -> dict[str, str]:
    """The key of each policy text, by the name in its header. Libraries have none."""
    names = {key: policy_name_in(text) for key, text in sorted(data.items()) if key.endswith(POLICY_SUFFIX)}
    return {name: key for key, name in names.items() if name is not None}


def _path(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{namespace}/configmaps/{name}"
