"""Checks the policies' ConfigMap and delivers `PoliciesUpdated`.

    ConfigMap updated or deleted ──► newest wins ──► check ──────► PoliciesUpdated
                                                       ▲               ▲
    the operator's last known good, before the first ──┘               │
    those of teams, a batch after each ────────────────────────────────┘

`daemon.policy_checker` checks the texts in a worker process. Of the edits that arrive during a check only the newest is
checked next. Every checked bundle is delivered; otherwise writing to the ConfigMap more often than a check takes would
keep every edit from taking effect. Texts of teams may take long to check, so the first delivery waits for them only if there is
nothing else to run.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from policysched.daemon.policy_checker import CheckTexts, decode_text, policy_texts
from policysched.kube.watch.resources import ConfigMapDeleted, ConfigMapUpdated
from policysched.lang.check.bundle import PolicyBundle
from policysched.policy_files.parameter_values import parameters_without_policy, settings_parameter_texts
from policysched.policy_files.source_set import POLICY_SUFFIX
from policysched.scheduler.events import PoliciesUpdated
from policysched.scheduler.policies.saved_texts import is_of_team, with_saved_team

LAST_GOOD_BATCH_CHARS = 2**20
"""Checking this much takes about 4 s of processor time."""
SLOW_CHECK_WARNING_S = 5.0
"""A longer check is logged, since the edit seems to have no effect meanwhile."""

log = logging.getLogger(__name__)


class PolicyFeed:
    """The reflector calls `on_config_map` for each version, and `on_listed` after its first list; `run` checks and
    delivers. `location` and `kept_in` name the location of the texts and of the last known good ones (empty: none) in
    messages; `params` are the settings' parameter values by policy; `is_elsewhere` says whether a team owns the name of a policy; `uid` is the ConfigMap's, for events; `texts` are those of the
    latest check, with the settings' parameter values."""

    def __init__(
        self,
        location: str,
        kept_in: str,
        check_texts: CheckTexts,
        deliver: Callable[[PoliciesUpdated], None],
        *,
        read_last_good: Callable[[], Awaitable[Mapping[str, str]]],
        params: Mapping[str, Mapping[str, Any]] | None = None,
        is_elsewhere: Callable[[str], bool] = lambda _policy: False,
    ) -> None:
        self._place, self._kept_in = location, kept_in
        self._check = check_texts
        self._deliver = deliver
        self._is_elsewhere = is_elsewhere
        self._read_last_good = read_last_good
        self._latest_event: ConfigMapUpdated | ConfigMapDeleted | None = None
        self._changed = asyncio.Event()
        self._settings_texts = settings_parameter_texts(params or {})
        self._reported_unused: list[str] = []
        self._reported_ignored: list[str] = []
        self.uid = ""
        self.texts: Mapping[str, str] = {}

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
        texts = await self._read_last_good()
        of_teams = deque(_batches({key: text for key, text in texts.items() if is_of_team(text)}))
        last_good: PolicyBundle | None = None
        for batch in _batches({key: text for key, text in texts.items() if not is_of_team(text)}):
            last_good = await self._check_last_good(batch, last_good)
        while True:
            await self._changed.wait()
            self._changed.clear()
            newest = self._latest_event
            assert newest is not None, "nothing to check"
            offer = await self._offer(newest, last_good)
            while of_teams and not _can_run(offer):
                last_good = await self._check_last_good(of_teams.popleft(), last_good)
                offer = replace(offer, last_good=last_good)
            self._deliver(replace(offer, unchecked_texts=_texts_by_name(of_teams)))
            last_good = None
            while of_teams:
                late = await self._check_last_good(of_teams.popleft(), None)
                self._deliver(replace(offer, last_good=late, unchecked_texts=_texts_by_name(of_teams)))
                if self._changed.is_set():
                    break

    async def _check_last_good(self, batch: Mapping[str, str], before: PolicyBundle | None) -> PolicyBundle:
        """Those before and a batch: the expanded texts are longer than the ConfigMap's, and each check has a time limit."""
        sources = {} if before is None else dict(before.sources)
        for key, source in (await self._check(batch, "last known good")).sources.items():
            sources[key] = with_saved_team(source, batch[key])
        return PolicyBundle(sources)

    async def _offer(
        self, newest: ConfigMapUpdated | ConfigMapDeleted, last_good: PolicyBundle | None
    ) -> PoliciesUpdated:
        if isinstance(newest, ConfigMapDeleted):
            self.texts = {}
            return PoliciesUpdated(None, "", last_good, self._place, self._kept_in)
        data = {**newest.data, **{key: decode_text(raw) for key, raw in newest.binary.items()}}
        texts = {**policy_texts(data), **self._settings_texts}
        unused = [policy for policy in parameters_without_policy(texts) if not self._is_elsewhere(policy)]
        if unused != self._reported_unused and unused:
            log.warning(
                "parameters are set for policies that do not exist", extra={"policies": ", ".join(unused)}
            )
        self._reported_unused = unused
        ignored = sorted(data.keys() - texts.keys())
        if ignored != self._reported_ignored and ignored:
            log.info(
                "ignoring keys not named NAME.policy, NAME.params.yaml or NAME.removed",
                extra={"location": self._place, "keys": ", ".join(ignored)},
            )
        self._reported_ignored = ignored
        log.debug("checking the policies", extra={"location": self._place, "keys": len(texts)})
        slow = asyncio.get_running_loop().call_later(SLOW_CHECK_WARNING_S, self._warn_slow_check)
        try:
            bundle = await self._check(texts, self._place)
        finally:
            slow.cancel()
        self.texts = texts
        return PoliciesUpdated(bundle, newest.resource_version, last_good, self._place, self._kept_in)

    def _warn_slow_check(self) -> None:
        log.info(
            "still checking the edit; the active policies are unchanged", extra={"location": self._place}
        )


def _can_run(offer: PoliciesUpdated) -> bool:
    bundles = [bundle for bundle in (offer.bundle, offer.last_good) if bundle is not None]
    return any(source.program is not None for bundle in bundles for source in bundle.sources.values())


def _texts_by_name(batches: Iterable[Mapping[str, str]]) -> dict[str, str]:
    return {key.removesuffix(POLICY_SUFFIX): text for batch in batches for key, text in batch.items()}


def _batches(texts: Mapping[str, str]) -> Iterator[dict[str, str]]:
    batch: dict[str, str] = {}
    batch_chars = 0
    for key, text in texts.items():
        if batch and batch_chars + len(text) > LAST_GOOD_BATCH_CHARS:
            yield batch
            batch, batch_chars = {}, 0
        batch[key] = text
        batch_chars += len(text)
    if batch:
        yield batch
