"""The ConfigMap that keeps the last known good texts and the values of policies' states, and what is not kept in it.

    saved ──save_policies, save_states──► pending ──written──► saved
                                             └──refused──► unsaved ──written──► saved
                                                              └─ reported, and repeated with backoff

A refusal is reported at once, and again only for another cause or other policies. A server that does not answer is
reported after `UNANSWERED_REPORT_S`.
"""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import Any, Literal

from policysched.config.settings import NamespacedName
from policysched.kube.client.api import (
    JSON_PATCH,
    ApiClient,
    ApiErrors,
    ApiStatusError,
    Conflict,
    Forbidden,
    NotFound,
    ServerError,
    TooManyRequests,
    Unauthorized,
)
from policysched.kube.client.backoff import Backoff
from policysched.kube.client.connectivity import Connectivity
from policysched.kube.client.transport import RequestNotSent
from policysched.kube.decode.errors import MalformedObject
from policysched.kube.watch.large_objects import RunBeside
from policysched.kube.watch.resources import decode_config_map
from policysched.policy_files.last_good_format import (
    PLAIN_BYTES_MAX,
    STATE_SUFFIX,
    UnreadableArchive,
    pack_texts,
    unpack_texts,
)
from policysched.policy_files.source_set import POLICY_SUFFIX
from policysched.scheduler.commands import ReportPolicyEvent

SaveResult = Literal["ok", "too_large", "refused", "unanswered"]

UNANSWERED_REPORT_S = 30.0
REPORT_AGAIN_S = 60.0
"""The minimum interval of reports of one cause when other policies are concerned."""
RETRY_MAX_S = 60.0
WRITE_PAUSE_S = 2.0
"""After each write, which is of all texts: teams could have one follow another, a mebibyte each that etcd keeps for minutes."""
_NAMES_MAX = 20


class LastGoodStore:
    """Texts are under `NAME.policy`, states under `NAME.state.json`; `last_good_format` says how they are stored.

    `states` are those that `read` returned. Each write names the version that it replaces, so that a late one changes
    nothing. `unsaved` and `problem` say what a restart would not find; `saves` counts writes by result. `owner_of`: the
    namespace of the team that owns a policy. It is told of its own policies. `run_beside` compresses; None: the loop does.
    """

    def __init__(
        self,
        api: ApiClient,
        location: NamespacedName,
        *,
        random: Random,
        connectivity: Connectivity,
        report: Callable[[ReportPolicyEvent], None],
        run_beside: RunBeside | None,
        owner_of: Callable[[str], str | None] = lambda _policy: None,
    ) -> None:
        self._api = api
        self._place = location
        self._random = random
        self._connectivity = connectivity
        self._report = report
        self._run_beside = run_beside
        self._owner_of = owner_of
        self._told: Mapping[str, list[str]] = {}  # by team: which of its policies it knows to be unsaved
        self._path = f"/api/v1/namespaces/{location.namespace}/configmaps"
        self._pending: Mapping[str, str] | None = None
        self._texts: Mapping[str, str] = {}
        self._stored: Mapping[str, str] = {}  # as last read or written
        self._version: str | None = None  # None: not known
        self._plain_bytes_max = PLAIN_BYTES_MAX
        self._failing_since_s: float | None = None
        self._reported: tuple[str, tuple[str, ...]] | None = None
        self._reported_s = float("-inf")
        self._changed = asyncio.Event()
        self.states: Mapping[str, str] = {}
        self.unsaved: tuple[str, ...] = ()
        self.problem = ""
        self.saves: dict[SaveResult, int] = {}

    @property
    def policies(self) -> list[str]:
        """The names of the policies whose texts are to be kept."""
        return [_policy_of(key) for key in self._texts]

    @property
    def has_pending_write(self) -> bool:
        """Whether a stop should wait: a write that was refused is not worth waiting for."""
        return self._pending is not None and not self.problem

    async def read(self) -> Mapping[str, str]:
        """The policy texts by key, empty where there is none. Retries until the server responds."""
        backoff = Backoff(self._random)
        activity = "reading the last known good policies"
        while True:
            try:
                config_map = decode_config_map(await self._api.get(f"{self._path}/{self._place.name}"))
                texts = unpack_texts(config_map)
            except NotFound:
                self._connectivity.record_success(activity)
                return {}
            except (Forbidden, MalformedObject, UnreadableArchive) as error:
                message = f"cannot read the last known good policies in ConfigMap {self._place}: {error}"
                self._report(ReportPolicyEvent("Warning", "LastGoodNotRead", message))
                return {}
            except ApiErrors as error:
                self._connectivity.record_failure(activity, error)
                await asyncio.sleep(backoff.next_delay_s(error))
            else:
                self._connectivity.record_success(activity)
                self._stored, self._version = texts, config_map.resource_version or None
                self._texts = {key: text for key, text in texts.items() if key.endswith(POLICY_SUFFIX)}
                self.states = {
                    key.removesuffix(STATE_SUFFIX): text
                    for key, text in texts.items()
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
        self._pending = {**texts, **{f"{name}{STATE_SUFFIX}": text for name, text in states.items()}}
        self._changed.set()

    # ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """Until cancelled."""
        backoff = Backoff(self._random, initial_s=0.5, max_s=RETRY_MAX_S)
        while True:
            await self._changed.wait()
            self._changed.clear()
            wanted = self._pending
            if wanted is None:
                continue
            try:
                omitted = await self._write(wanted)
            except RequestNotSent:
                await asyncio.sleep(backoff.next_delay_s())
                self._changed.set()
            except ApiErrors as error:
                if isinstance(error, ApiStatusError) and error.status in (413, 422):
                    # This server's limit may be lower: try it compressed, then again as it was.
                    self._plain_bytes_max = 0 if self._plain_bytes_max else PLAIN_BYTES_MAX
                    if not self._plain_bytes_max:
                        self._changed.set()
                        continue
                self._note_failure(wanted, error)
                await self._wait_for_change(backoff.next_delay_s(error))
                self._changed.set()
            else:
                backoff.reset()
                self._note_written(wanted, omitted)
                if self._pending is wanted:
                    self._pending = None
                await asyncio.sleep(WRITE_PAUSE_S)

    async def _wait_for_change(self, longest_s: float) -> None:
        """A newer content may be accepted where the last one was refused."""
        try:
            async with asyncio.timeout(longest_s):
                await self._changed.wait()
        except TimeoutError:
            return

    async def _write(self, texts: Mapping[str, str]) -> tuple[str, ...]:
        """Replaces all data of the last known version, which is read again after any error; returns the keys that did not
        fit. Creates the ConfigMap only where the manifests did not: RBAC cannot limit `create` by name, so the shipped
        role does not allow it."""
        pack = partial(pack_texts, texts, self._plain_bytes_max, self._owner_of)  # nobody changes these texts
        packed = pack() if self._run_beside is None else await self._run_beside(pack)
        path = f"{self._path}/{self._place.name}"
        version, self._version = self._version, None
        try:
            if version is None:
                version = _resource_version(await self._api.get(path))
            change: list[dict[str, Any]] = [
                {"op": "add", "path": "/data", "value": dict(packed.data)},
                {"op": "add", "path": "/binaryData", "value": dict(packed.binary_data)},
                {"op": "replace", "path": "/metadata/resourceVersion", "value": version},
            ]
            self._version = _resource_version(await self._api.patch(path, change, JSON_PATCH))
        except NotFound:
            body = {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": self._place.name, "namespace": self._place.namespace},
                "data": dict(packed.data),
                "binaryData": dict(packed.binary_data),
            }
            self._version = _resource_version(await self._api.create(self._path, body))
        return packed.omitted

    # ── what is not kept ─────────────────────────────────────────────────────────────────────────────────────────────

    def _note_written(self, texts: Mapping[str, str], omitted: tuple[str, ...]) -> None:
        self._stored = {key: text for key, text in texts.items() if key not in omitted}
        self._failing_since_s = None
        self._count("too_large" if omitted else "ok")
        if omitted:
            self._report_unsaved(texts, "too large", "they do not fit into a ConfigMap, even compressed")
            return
        self.unsaved, self.problem = (), ""
        self._tell_teams("")
        if self._reported is not None:
            self._reported = None
            message = f"the last known good texts of all policies are saved again in ConfigMap {self._place}"
            self._report(ReportPolicyEvent("Normal", "LastGoodSaved", message))

    def _note_failure(self, wanted: Mapping[str, str], error: BaseException) -> None:
        if isinstance(error, Conflict):
            return  # another version: read it and write again
        now_s = asyncio.get_running_loop().time()
        if self._failing_since_s is None:
            self._failing_since_s = now_s
        refused = isinstance(error, ApiStatusError) and not isinstance(
            error, Unauthorized | TooManyRequests | ServerError
        )
        self._count("refused" if refused else "unanswered")
        if refused or now_s - self._failing_since_s >= UNANSWERED_REPORT_S or self.problem:
            cause = str(error.status) if isinstance(error, ApiStatusError) else "no answer"
            self._report_unsaved(wanted, cause, f"the write failed ({cause}): {error}")

    def _report_unsaved(self, wanted: Mapping[str, str], cause: str, reason: str) -> None:
        changed = [key for key in wanted if self._stored.get(key) != wanted[key]]
        self.unsaved = tuple(sorted({_policy_of(key) for key in changed}))
        removed = sorted(
            _policy_of(key) for key in self._stored if key.endswith(POLICY_SUFFIX) and key not in wanted
        )
        effects = []
        if changed:
            names = _short_list(
                [_description(key) for key in sorted(changed, key=lambda key: (_is_state(key), key))]
            )
            effects.append(f"not saved: {names}; a restart with a broken text uses an older text, or none")
        if removed:
            effects.append(f"removed, but not deleted yet: {_short_list(removed)}")
        self.problem = f"cannot save the last known good policies in ConfigMap {self._place}: {_short(reason)}; {'; '.join(effects)}"
        self._tell_teams(reason)
        now_s = asyncio.get_running_loop().time()
        concerned = (*self.unsaved, *removed)
        same_cause = self._reported is not None and self._reported[0] == cause
        if same_cause and (self._reported == (cause, concerned) or now_s - self._reported_s < REPORT_AGAIN_S):
            return
        self._reported, self._reported_s = (cause, concerned), now_s
        self._report(ReportPolicyEvent("Warning", "LastGoodNotSaved", self.problem))

    def _tell_teams(self, reason: str) -> None:
        """What changed for each team."""
        unsaved: dict[str, list[str]] = {owner: [] for owner in self._told}
        for name in self.unsaved:
            owner = self._owner_of(name)
            if owner is not None:
                unsaved.setdefault(owner, []).append(name)
        for owner, names in unsaved.items():
            if not names:
                message = "the last known good texts of this namespace's policies are saved again"
                self._report(ReportPolicyEvent("Normal", "LastGoodSaved", message, owner))
            elif names != self._told.get(owner):
                message = (
                    f"the last known good texts or states of {_short_list(names)} are not saved: {_short(reason)}; "
                    f"a restart with a broken text uses an older text, or none"
                )
                self._report(ReportPolicyEvent("Warning", "LastGoodNotSaved", message, owner))
        self._told = {owner: names for owner, names in unsaved.items() if names}

    def _count(self, result: SaveResult) -> None:
        self.saves[result] = self.saves.get(result, 0) + 1


async def is_first_start(api: ApiClient, config_map: NamespacedName, timeout_s: float) -> bool:
    """Whether the ConfigMap exists and is empty: no leader of this configuration has had an active policy, so no request
    of one is in flight. Raises API errors."""
    try:
        response = await api.get(
            f"/api/v1/namespaces/{config_map.namespace}/configmaps/{config_map.name}", timeout_s=timeout_s
        )
    except NotFound:
        return False  # a leader that may not create it leaves no trace
    return not response.get("data") and not response.get("binaryData")


def _policy_of(key: str) -> str:
    return key.removesuffix(STATE_SUFFIX).removesuffix(POLICY_SUFFIX)


def _is_state(key: str) -> bool:
    return key.endswith(STATE_SUFFIX)


def _description(key: str) -> str:
    return f"the state of {_policy_of(key)}" if _is_state(key) else _policy_of(key)


def _short_list(names: list[str]) -> str:
    hidden_count = len(names) - _NAMES_MAX
    return ", ".join(names[:_NAMES_MAX]) + (f" and {hidden_count} more" if hidden_count > 0 else "")


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 300 else f"{line[:300]}..."


def _resource_version(config_map: Mapping[str, Any]) -> str | None:
    """The resourceVersion of an object, or None."""
    metadata = config_map.get("metadata")
    version = metadata.get("resourceVersion") if isinstance(metadata, Mapping) else None
    return version if isinstance(version, str) and version else None
