"""Checks the policies that teams own, each namespace by itself, and adds them to those of the operator.

    operator's PoliciesUpdated ─────────────────────────────┬──► PoliciesUpdated with the texts of all teams
        └─ its libraries ─┐                                 │
    a team's ConfigMap ───┴─► one check per namespace ──────┘

A team's policy without a valid text runs its last known good one, checked with the operator's current texts. If it does
not pass, the policy is suspended. Libraries of the operator that are broken or deleted change nothing.

A namespace has a check of its own with its own limits, in a worker process that the operator's texts do not use. The
namespaces take turns by the time that their checks took, and one that was just checked pauses, so that a team that edits now and
then waits for the check in progress, not for one of each team whose texts are slow and change all the time.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from policysched.config.settings import NamespacedName
from policysched.config.team_settings import TeamPolicySettings
from policysched.daemon.policy_checker import CheckTeamTexts, PolicyTexts, TeamBase, decode_text
from policysched.kube.watch.resources import ConfigMapUpdated, TeamConfigMapUpdated
from policysched.lang.check.bundle import CheckedSource, PolicyBundle
from policysched.lang.diagnostics.catalogue import make_diagnostic
from policysched.lang.ir.program import Program, TeamSource, removed_program, suspended_program
from policysched.policy_files.parameter_values import SETTINGS_KEY_PREFIX, policy_name_in
from policysched.policy_files.source_set import PARAMETERS_SUFFIX, POLICY_SUFFIX
from policysched.scheduler.events import PoliciesUpdated
from policysched.scheduler.policies.policy_names import owns_name, team_of_key
from policysched.scheduler.policies.rejection_message import errors_of, rejection_message
from policysched.scheduler.policy_permissions import PolicyPermissions
from policysched.text import Diagnostic, Source, Span
from policysched.text.sanitize import sanitize_line

PAUSE_S = 2.0
"""Between two checks of one namespace, at least; and at least `PAUSE_FACTOR` times as long as the last one took."""
PAUSE_FACTOR = 4.0

CHECK_CREDIT_S = 20.0
"""A team that edits seldom saves up no more time of checks than this."""

log = logging.getLogger(__name__)


class TeamPolicyFeed:
    """The reflector calls `on_config_map` and `on_listed`, the operator's feed `on_operator_update`; `run` checks. `texts`
    returns the operator's texts that were checked last, and `deliver` gets the result."""

    def __init__(
        self,
        settings: TeamPolicySettings,
        permissions: PolicyPermissions,
        location: str,
        check: CheckTeamTexts,
        texts: Callable[[], PolicyTexts],
        deliver: Callable[[PoliciesUpdated], None],
    ) -> None:
        self._settings, self._permissions, self._place = settings, permissions, location
        self._check, self._texts, self._deliver = check, texts, deliver
        self._teams = permissions.owners()
        self._content: dict[str, ConfigMapUpdated] = {}
        self._checked: dict[str, Mapping[str, CheckedSource]] = {}
        self._good: dict[
            str, dict[str, Program]
        ] = {}  # by namespace and name, the last one that passed the check
        self._removed = set[str]()  # by the operator, since the start
        self._fallbacks: dict[str, Mapping[str, Program]] = {}
        self._unread = set(self._teams)
        self._listed = False
        self._due: dict[str, None] = {}  # namespaces to check, in their order
        self._pause_until_s: dict[str, float] = {}
        self._used_s: dict[str, float] = {}  # by namespace, start-time fair queueing
        self._virtual_s = 0.0
        self._changed = asyncio.Event()
        self._operator: PoliciesUpdated | None = None
        self._last_good: PolicyBundle | None = None
        self._base: TeamBase | None = None
        self._revision = 0
        self._delivered = False

    def config_map(self, namespace: str) -> NamespacedName:
        """The ConfigMap of a team."""
        return NamespacedName(namespace, self._settings.config_map)

    def uid(self, namespace: str) -> str:
        """The UID of a team's ConfigMap, for events; empty if there is none."""
        content = self._content.get(namespace)
        return "" if content is None else content.uid

    def on_config_map(self, event: TeamConfigMapUpdated) -> None:
        """A ConfigMap of a namespace that owns no policies is ignored."""
        if event.namespace not in self._teams:
            return
        if event.content is None:
            self._content.pop(event.namespace, None)
        else:
            self._content[event.namespace] = event.content
        self._request_check(event.namespace)

    def on_listed(self) -> None:
        """The first list is complete: other namespaces have no texts."""
        if not self._listed:
            self._listed = True
            for namespace in self._unread - self._content.keys():
                self._request_check(namespace)

    def on_operator_update(self, event: PoliciesUpdated) -> None:
        """The operator's texts changed. All teams are checked again if a library or a parameter of the settings did."""
        self._operator = event
        for name in _removed_names(event):
            self._good.get(self._permissions.owner(name) or "", {}).pop(name, None)
            self._removed.add(name)
        base = self._new_base(event)
        changed = base is not None and base != self._base
        self._base = base or self._base
        if event.last_good is not None:
            self._last_good = self._take_last_good(event.last_good)
        if changed:
            for namespace in {**self._content, **self._good}:
                self._request_check(namespace)
        self._changed.set()
        self._offer()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            delay_s = self._delay_s()
            self._changed.clear()
            if delay_s is None or delay_s > 0:
                try:
                    async with asyncio.timeout(delay_s):
                        await self._changed.wait()
                except TimeoutError:
                    pass
                continue
            await self._check_next()

    # ── checks ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _request_check(self, namespace: str) -> None:
        self._due.setdefault(namespace)
        self._changed.set()

    def _delay_s(self) -> float | None:
        """How long to wait for the first namespace whose pause is over; None: nothing can be checked."""
        if self._base is None or not self._due:
            return None
        now_s = asyncio.get_running_loop().time()
        return min(self._pause_until_s.get(namespace, now_s) for namespace in self._due) - now_s

    async def _check_next(self) -> None:
        """Checks the namespace whose checks took least, the one that has waited longest of equal ones, of those whose pause is over."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        due = [name for name in self._due if self._pause_until_s.get(name, began_s) <= began_s]
        namespace = min(due, key=self._used_of)
        self._virtual_s = max(self._virtual_s, self._used_of(namespace))
        del self._due[namespace]
        sources, fallbacks = await self._check_namespace(namespace)
        took_s = loop.time() - began_s
        self._used_s[namespace] = self._used_of(namespace) + took_s
        least_s = self._virtual_s - CHECK_CREDIT_S  # of those that are not kept
        self._used_s = {team: used_s for team, used_s in self._used_s.items() if used_s > least_s}
        self._pause_until_s[namespace] = loop.time() + max(PAUSE_S, PAUSE_FACTOR * took_s)
        results, before = (sources, fallbacks), (self._checked.get(namespace), self._fallbacks.get(namespace))
        if namespace in self._unread or results != before:
            self._unread.discard(namespace)
            self._checked[namespace], self._fallbacks[namespace] = results
            self._offer()

    def _used_of(self, namespace: str) -> float:
        return max(self._used_s.get(namespace, 0.0), self._virtual_s - CHECK_CREDIT_S)

    async def _check_namespace(
        self, namespace: str
    ) -> tuple[Mapping[str, CheckedSource], Mapping[str, Program]]:
        """What the team's texts are, and what runs of its policies without a valid text. What raises is invalid, for this
        team alone."""
        try:
            sources = await self._check_team(namespace)
            return sources, await self._check_good(namespace, sources)
        except Exception as error:
            log.exception(
                "a team's policies could not be checked, please report this bug",
                extra={"namespace": namespace},
            )
            message = sanitize_line(f"internal error: {type(error).__name__}: {error}")
        key, base, good = f"{namespace}/", self._base, self._good.get(namespace, {})
        problem = _diagnostic("PS901", message, f"ConfigMap {self.config_map(namespace)}", "report this bug")
        suspension = f"the texts of namespace {namespace} cannot be checked: {message}"
        fallbacks = {
            name: program
            if base is not None and _has_base(program, base)
            else suspended_program(program, f"policy {name} is suspended: {suspension}")
            for name, program in good.items()
        }
        return {key: CheckedSource(key, False, None, (problem,), None)}, fallbacks

    async def _check_team(self, namespace: str) -> Mapping[str, CheckedSource]:
        content = self._content.get(namespace)
        if content is None:
            return {}
        base = self._base
        assert base is not None, "nothing to check with"
        data = {**content.data, **{key: decode_text(raw) for key, raw in content.binary.items()}}
        location = f"ConfigMap {self.config_map(namespace)}"
        texts, too_many = self._within_limits(namespace, data, location)
        checked = (await self._check(texts, location, base)).sources
        return {
            key: self._check_name(namespace, _with_team(source, texts, base))
            for key, source in {**checked, **too_many}.items()
            if key.startswith(f"{namespace}/")
        }

    async def _check_good(
        self, namespace: str, sources: Mapping[str, CheckedSource]
    ) -> Mapping[str, Program]:
        """What runs of the team's policies without a valid text, by name."""
        good = self._good.setdefault(namespace, {})
        valid = {source.program.name: source.program for source in sources.values() if source.program}
        for name, program in valid.items():
            good.pop(name, None)  # the newest last
            good[name] = program
        forgotten = [name for name in good if name not in valid][
            : max(0, len(good) - self._settings.texts_max)
        ]
        base = self._base
        assert base is not None, "nothing to check with"
        removed = {
            name: removed_program(name, self._removal(namespace, good.pop(name))) for name in forgotten
        }
        without_text = {name: program for name, program in good.items() if name not in valid}
        fallbacks = {**without_text, **removed}
        old = {name: program for name, program in without_text.items() if not _has_base(program, base)}
        texts: dict[str, str] = {}
        for name, program in old.items():
            assert program.team is not None, f"{name} was not checked as a team's"
            texts[f"{namespace}/{name}{POLICY_SUFFIX}"] = program.team.text
            if program.team.params:
                texts[f"{name}{PARAMETERS_SUFFIX}"] = program.team.params
        if texts:
            checked = (
                await self._check(texts, f"last known good texts of namespace {namespace}", base)
            ).sources
            for name, program in old.items():
                source = _with_team(checked[f"{namespace}/{name}{POLICY_SUFFIX}"], texts, base)
                if source.program is None:
                    fallbacks[name] = suspended_program(program, self._suspension(name, source))
                else:
                    good[name] = fallbacks[name] = source.program
        return fallbacks

    def _removal(self, namespace: str, program: Program) -> str:
        return (
            f"policy {program.name} is removed: it has no text, and namespace {namespace} has since had {self._settings.texts_max} "
            f"other policies, which is the limit; add its text, or give the pod another schedulerName"
        )

    def _suspension(self, name: str, source: CheckedSource) -> str:
        """`name` is not in the source of a text that was not read to its header, which took too long, for example."""
        return (
            f"policy {name} is suspended: neither its text nor its last known good text passes the check "
            f"with the operator's {self._settings.required_base}, which has changed: {rejection_message(source)}"
        )

    def _within_limits(
        self, namespace: str, data: PolicyTexts, location: str
    ) -> tuple[dict[str, str], dict[str, CheckedSource]]:
        """The texts to check, policies under `NAMESPACE/KEY`, and the first one that exceeds the limits: one for all, since
        each has a status, an event and metrics."""
        settings = self._settings
        texts: dict[str, str] = {}
        too_many: dict[str, CheckedSource] = {}
        first_beyond = ""
        size = beyond = 0
        for key in sorted(data):
            if not key.endswith((POLICY_SUFFIX, PARAMETERS_SUFFIX)):
                continue
            full_key = f"{namespace}/{key}" if key.endswith(POLICY_SUFFIX) else key
            size += len(data[key].encode("utf-8", "surrogatepass"))
            if len(texts) < settings.texts_max and size <= settings.bytes_max:
                texts[full_key] = data[key]
            elif key.endswith(POLICY_SUFFIX):
                beyond += 1
                first_beyond = first_beyond or full_key
        if first_beyond:
            message = (
                f"the texts up to this one exceed the limit of namespace {namespace}: "
                f"{settings.texts_max} texts, {settings.bytes_max:,} bytes; policies that are not checked: {beyond}"
            )
            problem = _diagnostic(
                "PS913", message, f"{location} key {first_beyond}", "remove or shorten texts"
            )
            name = policy_name_in(data[first_beyond.removeprefix(f"{namespace}/")])
            too_many[first_beyond] = CheckedSource(first_beyond, False, None, (problem,), name)
        return texts, too_many

    def _check_name(self, namespace: str, source: CheckedSource) -> CheckedSource:
        """Rejects a policy whose name the settings do not give to this namespace."""
        if source.program is None or self._permissions.owner(source.program.name) == namespace:
            return source
        return _without_program(
            source,
            f"the settings do not let namespace {namespace} own a policy called `{source.program.name}`",
            f"take a name that an entry of `policy_permissions.policies_allowed` with `owner: {namespace}` allows",
        )

    # ── delivery ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _new_base(self, event: PoliciesUpdated) -> TeamBase | None:
        """The operator's libraries, an earlier text for a broken one. None: there is no required base that passes the check,
        so nothing changes."""
        sources = {} if event.bundle is None else event.bundle.sources
        texts, before = self._texts(), {} if self._base is None else self._base.texts
        base = {
            key: texts[key]
            for key in texts
            if key.startswith(SETTINGS_KEY_PREFIX) and self._is_owned_key(key)
        }
        for key, source in sources.items():
            if source.is_library and not errors_of(source) and key in texts:
                base[key] = texts[key]
            elif errors_of(source) and key in before:
                base[key] = before[key]
        required = self._settings.required_base
        return TeamBase(base, self._place, required) if required in base else None

    def _take_last_good(self, bundle: PolicyBundle) -> PolicyBundle:
        """Those of teams run at once only if they were checked with the operator's texts of now. What a team has had since
        is newer."""
        sources = dict(bundle.sources)
        for key, source in bundle.sources.items():
            program = source.program
            if program is None or program.team is None or program.name in self._removed:
                continue
            owner = self._permissions.owner(program.name)
            if owner is None or not owns_name(program.team, program.name, self._permissions):
                continue  # the registry rejects it
            self._good.setdefault(owner, {}).setdefault(program.name, program)
            self._request_check(owner)
            if self._base is not None and not _has_base(program, self._base):
                message = (
                    f"policy {program.name} is suspended: its last known good text is being checked with the "
                    f"operator's {self._settings.required_base}, which has changed"
                )
                sources[key] = replace(source, program=suspended_program(program, message))
        return PolicyBundle(sources)

    def _is_owned_key(self, key: str) -> bool:
        policy = key.removeprefix(SETTINGS_KEY_PREFIX).removesuffix(PARAMETERS_SUFFIX)
        return self._permissions.owner(policy) is not None

    def _offer(self) -> None:
        """Delivers the operator's texts with those of all teams. The first time it waits for the teams if the operator
        has nothing to run: a process without any policy ends."""
        event = self._operator
        if event is None:
            return
        operator = {} if event.bundle is None else event.bundle.sources
        runs = self._last_good is not None or any(source.program is not None for source in operator.values())
        if not self._delivered and self._unread and not runs:
            return
        names = {name for source in operator.values() if (name := _policy_name(source)) is not None}
        teams = {
            key: _yield_name(source, names, self._place)
            for sources in self._checked.values()
            for key, source in sources.items()
        }
        bundle = PolicyBundle({**operator, **teams}) if teams or event.bundle is not None else None
        fallbacks = {
            name: program
            for by_name in self._fallbacks.values()
            for name, program in by_name.items()
            if name not in names
        }
        last_good, self._last_good = self._last_good, None
        self._delivered = True
        self._revision += 1  # the registry ignores a version that it has seen
        version = f"{event.resource_version}+{self._revision}" if event.resource_version else ""
        self._deliver(
            replace(
                event,
                bundle=bundle,
                resource_version=version,
                last_good=last_good,
                unread_teams=frozenset(self._unread),
                fallbacks=fallbacks,
            )
        )


def _policy_name(source: CheckedSource) -> str | None:
    return source.policy_name if source.program is None else source.program.name


def _removed_names(event: PoliciesUpdated) -> Iterator[str]:
    sources = {} if event.bundle is None else event.bundle.sources
    yield from (
        source.program.name for source in sources.values() if source.program and source.program.removed
    )


def _has_base(program: Program, base: TeamBase) -> bool:
    return program.team is not None and program.team.base_sha256 == base.sha256


def _with_team(source: CheckedSource, texts: PolicyTexts, base: TeamBase) -> CheckedSource:
    """The source with what the team wrote; `texts` are those that were checked."""
    if source.program is None:
        return source
    params = texts.get(f"{source.program.name}{PARAMETERS_SUFFIX}", "")
    return replace(
        source,
        program=replace(
            source.program,
            team=TeamSource(texts[source.key], params, base.sha256, team_of_key(source.key) or ""),
        ),
    )


def _yield_name(source: CheckedSource, operator_names: set[str], location: str) -> CheckedSource:
    """Rejects a team's policy of a name that the operator's ConfigMap has."""
    if source.program is None or source.program.name not in operator_names:
        return source
    message = f"{location} has a policy called `{source.program.name}`, or removes it"
    return _without_program(source, message, "use another name, or ask the operator")


def _without_program(source: CheckedSource, message: str, help_text: str) -> CheckedSource:
    assert source.program is not None, f"{source.key} is already rejected"
    problem = make_diagnostic("PS912", message, source.program.name_span, label="not allowed", help=help_text)
    return replace(
        source,
        program=None,
        policy_name=source.program.name,
        diagnostics=(problem, *source.diagnostics),
    )


def _diagnostic(code: str, message: str, location: str, help_text: str) -> Diagnostic:
    return make_diagnostic(code, message, Span(Source(location, ""), 0, 0), help=help_text)
