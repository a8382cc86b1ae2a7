"""The policy registry: active policies, and the status of each text in the ConfigMap.

A policy becomes active as a whole or not at all. The last valid text of each name stays active while
its key is broken, after its key or the whole ConfigMap is deleted, and across a restart, because
every text that becomes active is saved in a ConfigMap of last known good texts. There are no built-in
defaults: a process without a valid or last known good policy has nothing to run (`startup_error`).

**A policy renamed under its key.** Pods name the policy, not the key. A header changed from `a` to
`b` is therefore a new policy `b`, and a policy `a` without a key, as if the key of `a` had been
deleted: `a` stays active with its last known good text and a warning event, next to `b`. Otherwise a
typo in a header would strand every pod of `a` silently.

**Removal** is a key of its own, `NAME.removed`: the compiler replaces the text of the policy by a
program that refuses its pods (`removed_program`). It is activated as any other text and is not saved.
After the key is deleted it stays, with a message that says so, until a text of that name is active or
`PolicyReload` forgets it.
Binds in flight finish. The removal of a name that the settings do not allow only deletes its saved text.

    (none) ──checked──► active ──its key breaks──► last known good ──checked──► active
                          └──no key contains it────► missing ──checked──► active
    (any) ──NAME.removed──► removed ──the key is deleted, checked──► active
    (any) ──a team's text, broken or gone, does not check on the changed base──► suspended ──checked──► active
    (any) ──no text of it that has not raised──► suspended ──another text checked, or later──► active
    (none) ──its key is broken──► rejected ──checked──► active
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from policysched.evaluate import Plan
from policysched.lang.check.bundle import CheckedSource
from policysched.lang.ir.program import Program, removed_program
from policysched.scheduler.commands import Command, Log, ReportPolicyEvent, SavePolicyTexts
from policysched.scheduler.events import PoliciesUpdated
from policysched.scheduler.policies.extender_capabilities import ExtendersByName
from policysched.scheduler.policies.policy_names import (
    reject_by_settings,
    reject_duplicate_names,
    team_of_key,
    without_disallowed_removals,
)
from policysched.scheduler.policies.policy_status import (
    PolicyPhase,
    PolicyStatus,
    ReloadResult,
    reload_result,
)
from policysched.scheduler.policies.rejection_message import (
    active_message,
    errors_of,
    format_duration,
    header_name,
    missing_message,
    no_policy_message,
    no_text_message,
    rejection_message,
    saved_text,
    short_sha,
)
from policysched.scheduler.policies.saved_texts import saved_form
from policysched.scheduler.policy_permissions import PolicyPermissions
from policysched.scheduler.queue.equivalence import program_reads_queue
from policysched.text import Diagnostic


@dataclass(frozen=True, slots=True)
class RunningPolicy:
    """An active policy. `since_ns`: when this text became active in this process.

    `reads_queue`: see `queue.equivalence`. `saved`: see `saved_form`.
    """

    program: Program
    plan: Plan
    since_ns: int
    reads_queue: bool
    saved: str


class PolicyRegistry:
    """Active policies by name, and the status of each name and key. See the diagram above.

    A text that uses an extender missing in `extenders`, or has a name that `permissions` does not allow, is as broken as
    one that fails the check.
    """

    def __init__(self, extenders: ExtendersByName, permissions: PolicyPermissions) -> None:
        self.extenders = extenders
        self._permissions = permissions
        self.running: dict[str, RunningPolicy] = {}
        self.resource_version: str | None = None
        self.reloads: dict[ReloadResult, int] = {}
        self._status: dict[str, PolicyStatus] = {}
        self._broken_keys: dict[str, PolicyStatus] = {}
        self._name_of_key: dict[str, str] = {}
        self._offered: dict[str, CheckedSource] = {}
        self._reported: dict[str, str] = {}
        self._saved_texts: dict[str, str] = {}
        self._may_save = False
        self._disallowed_removals: frozenset[str] = frozenset()
        self._fallbacks: Mapping[str, Program] = {}
        self._first_offer = True
        self.startup_error: str | None = None

    def status(self) -> list[PolicyStatus]:
        """Active policies first, then keys without one, each sorted. Any thread may ask."""
        return [
            status for by_name in (self._status, self._broken_keys) for _, status in sorted(by_name.items())
        ]

    def programs(self) -> dict[str, Program]:
        """The active programs by name, without removed policies."""
        return {
            name: running.program for name, running in self.running.items() if not running.program.removed
        }

    def removed_without_key(self) -> list[str]:
        """The removed policies that nothing removes any more, in the order in which they began to run."""
        wanted = self._offered.keys() | self._fallbacks.keys()
        return [name for name in self.running if self._is_removed(name) and name not in wanted]

    def forget(self, name: str) -> None:
        """A removed policy that nothing needs."""
        del self.running[name], self._status[name]

    # ── updates ───────────────────────────────────────────────────────────────────────────────────────────────────

    def apply_update(self, event: PoliciesUpdated, now_ns: int) -> tuple[list[Command], list[Program]]:
        """Apply the current content of the ConfigMap; return commands and the programs to activate.
        The caller calls `activate` (or `reject`) for each program once its plan is ready."""
        if (
            not self._first_offer
            and event.last_good is None
            and event.resource_version
            and event.resource_version == self.resource_version
        ):
            return [], []
        out: list[Command] = []
        last_good = self._take_last_good(event, out)
        offered, self._disallowed_removals = without_disallowed_removals(event.bundle, self._permissions)
        checked = reject_by_settings(offered, self._permissions, self.extenders)
        checked = reject_duplicate_names(checked, lambda name, first: self._owns_name(name, first, last_good))
        valid = {source.program.name: source for source in checked.values() if source.program is not None}
        broken = {key: source for key, source in checked.items() if errors_of(source)}
        wanted = {name: source.program for name, source in valid.items() if source.program is not None}
        for name, program in (*event.fallbacks.items(), *last_good.items()):
            wanted.setdefault(name, program)
        self._fallbacks = event.fallbacks
        without_text = {
            name: removed_program(name, no_text_message(name, event, self._permissions.owner(name)))
            for name in self.running
            if self._is_removed(name) and not _is_text(self._offered.get(name))
        }
        self._offered = valid
        programs = {**without_text, **wanted}.values()
        changed = [program for program in programs if self._sha(program.name) != program.sha256]

        out += self._note_valid(valid, checked, now_ns)
        fallen_back = self._note_broken(broken, valid, wanted, out, now_ns)
        for name in dict.fromkeys([*self.running, *wanted]):
            if name in valid or name in fallen_back:
                continue
            if self._is_removed(name):
                self._status[name] = replace(self._status[name], key=None)
            else:
                self._fall_back(name, None, "missing", (), wanted.get(name), now_ns)
                out += self._report_missing(name, wanted.get(name), event)
        for key in [
            key for key in self._reported if key not in checked and not key.startswith(_MISSING_KEY_PREFIX)
        ]:
            del self._reported[key]  # the key is deleted, so its report is obsolete
        code = next((errors_of(source)[0].code for source in broken.values()), None)
        result = reload_result(code, missing=event.bundle is None, changed=bool(changed))
        self.reloads[result] = self.reloads.get(result, 0) + 1
        if self._first_offer and not wanted and not event.unchecked_texts:
            self.startup_error = no_policy_message(broken, event)
            out.append(Log("error", self.startup_error, {}))
        self.resource_version, self._first_offer = event.resource_version, False
        rewritten = self._take_team_sources(wanted)
        self._may_save |= rewritten or bool(self._disallowed_removals & self._saved_texts.keys())
        return out, changed

    def still_wanted(self, program: Program) -> bool:
        """Whether a program in preparation is still the text that its policy should become."""
        offered = self._offered.get(program.name)
        if offered is None and program.name in self._fallbacks:
            return self._fallbacks[program.name].sha256 == program.sha256
        if offered is None:  # its key is gone: a policy that is not active yet does not become active
            return program.name in self._status or bool(program.removed)
        return offered.sha256 == program.sha256

    def activate(self, program: Program, plan: Plan, now_ns: int) -> list[Command]:
        """Make the plan the active one of its policy. `save` is to follow."""
        name, self._may_save = program.name, True
        self.running[name] = RunningPolicy(
            program, plan, now_ns, program_reads_queue(program), saved_form(program)
        )
        offered = self._offered.get(name)
        if self._is_removed(name):
            return self._activate_removal(program, now_ns)
        if offered is None or offered.sha256 != program.sha256:
            before = self._status[name]
            self._status[name] = replace(
                before,
                phase="missing" if before.phase == "removed" else before.phase,
                version=None if program.removed else program.version,
                sha256=None if program.removed else program.sha256,
                since_ns=now_ns,
            )
            return self._report_suspended(program)
        self._status[name] = PolicyStatus(
            name, offered.key, program.version, program.sha256, "active", offered.diagnostics, now_ns, now_ns
        )
        return self._report_recovered(offered.key, program) or [
            Log("info", active_message(offered.key, program), {})
        ]

    def _activate_removal(self, program: Program, now_ns: int) -> list[Command]:
        offered, before = self._offered.get(program.name), self._status.get(program.name)
        key = None if offered is None else offered.key
        if before is not None and before.phase == "removed":
            self._status[program.name] = replace(before, key=key)
            return []
        self._status[program.name] = PolicyStatus(program.name, key, None, None, "removed", (), now_ns, None)
        self._reported.pop(_MISSING_KEY_PREFIX + program.name, None)
        message = f"policy `{program.name}` is removed: its pods stay pending, and its last known good text is deleted"
        return [ReportPolicyEvent("Normal", "PolicyRemoved", message)]

    def reject(self, program: Program, reason: str, now_ns: int) -> list[Command]:
        """Reject a program that passed the check and failed to compile; the active version stays."""
        offered = self._offered.pop(program.name, None)
        key = offered.key if offered else program.name
        running = self.running.get(program.name)
        if running is not None:
            self._status[program.name] = replace(self._status[program.name], phase="last_known_good")
        else:
            self._status.pop(program.name, None)
            self._broken_keys[key] = PolicyStatus(program.name, key, None, None, "rejected", (), now_ns, None)
        return self._report_rejected(
            key, f"{key}: {reason}", None if running is None else program.name, now_ns
        )

    # ── status of each text ───────────────────────────────────────────────────────────────────────────────

    def _note_valid(
        self, valid: Mapping[str, CheckedSource], checked: Mapping[str, CheckedSource], now_ns: int
    ) -> list[Command]:
        out: list[Command] = []
        self._name_of_key = {  # without deleted keys, except the last one of a policy that has no other text
            key: name
            for key, name in self._name_of_key.items()
            if key in checked or (name in self.running and name not in valid)
        }
        for name, source in valid.items():
            assert source.program is not None
            self._name_of_key[source.key] = name
            running, before = self.running.get(name), self._status.get(name)
            phase: PolicyPhase = "removed" if source.program.removed else "active"
            if running is None or running.program.sha256 != source.program.sha256:
                if before is not None:  # the old text is active until the new plan is ready
                    self._status[name] = replace(before, key=source.key, diagnostics=source.diagnostics)
                continue
            assert before is not None, f"{name} is active without a status"
            since_ns = before.since_ns if before.phase == phase else now_ns
            if (before.key, before.phase, before.diagnostics) != (source.key, phase, source.diagnostics):
                self._status[name] = replace(
                    before, key=source.key, phase=phase, diagnostics=source.diagnostics, since_ns=since_ns
                )
            out += self._report_recovered(source.key, source.program)
        return out

    def _note_broken(
        self,
        broken: Mapping[str, CheckedSource],
        valid: Mapping[str, CheckedSource],
        wanted: Mapping[str, Program],
        out: list[Command],
        now_ns: int,
    ) -> frozenset[str]:
        """Record broken keys; return the policies that stay active with an earlier text."""
        fallen_back = set()
        previous, self._broken_keys = self._broken_keys, {}
        for key, source in broken.items():
            name = self._policy_of(source)
            has_text = name in wanted or (name in self.running and not self._is_removed(name))
            falls_back = name is not None and name not in valid and has_text
            if name is not None and falls_back:
                self._name_of_key[key] = name
                fallen_back.add(name)
                self._fall_back(name, key, "last_known_good", source.diagnostics, wanted.get(name), now_ns)
            else:
                since_ns = previous[key].since_ns if key in previous else now_ns
                self._broken_keys[key] = PolicyStatus(
                    name, key, None, None, "rejected", source.diagnostics, since_ns, None
                )
            runs_on = name if falls_back else None
            out += self._report_rejected(
                key, rejection_message(source), runs_on, now_ns, library=source.is_library
            )
        return frozenset(fallen_back)

    def _fall_back(
        self,
        name: str,
        key: str | None,
        state: PolicyPhase,
        diagnostics: tuple[Diagnostic, ...],
        starting_from: Program | None,
        now_ns: int,
    ) -> None:
        before, running = self._status.get(name), self.running.get(name)
        runs_on = starting_from or (None if running is None else running.program)
        if runs_on is not None and runs_on.removed:
            state = "suspended"
        if before is not None:
            since_ns = before.since_ns if before.phase == state else now_ns
            self._status[name] = replace(
                before, key=key, phase=state, diagnostics=diagnostics, since_ns=since_ns
            )
            return
        assert starting_from is not None, f"{name} is neither active nor starting"
        self._status[name] = PolicyStatus(
            name, key, starting_from.version, starting_from.sha256, state, diagnostics, now_ns, None
        )

    # ── events ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _report_rejected(
        self, key: str, message: str, runs_on: str | None, now_ns: int, *, library: bool = False
    ) -> list[Command]:
        if self._reported.get(key) == message:
            return []
        self._reported[key] = message
        running = None if runs_on is None else self.running.get(runs_on)
        status = self._status.get(runs_on or "")
        if status is not None and status.phase == "suspended":
            outcome = "its pods stay pending"
        elif running is not None:
            age = format_duration(now_ns - running.since_ns)
            outcome = f"still running sha {short_sha(running.program.sha256)} ({age})"
        elif runs_on is not None:
            outcome = f"running the last known good text, sha {short_sha(self._status[runs_on].sha256 or '')}"
        elif library:
            outcome = "policies that include this file keep their active version"
        else:
            outcome = "no version of this policy is active"
        return [ReportPolicyEvent("Warning", "PolicyRejected", f"{message}; {outcome}", team_of_key(key))]

    def _report_missing(
        self, name: str, starting_from: Program | None, event: PoliciesUpdated
    ) -> list[Command]:
        owner = self._permissions.owner(name)
        is_suspended = self._status[name].phase == "suspended"
        if is_suspended or _MISSING_KEY_PREFIX + name in self._reported or owner in event.unread_teams:
            return []
        running = self.running.get(name)
        program = starting_from if running is None else running.program
        assert program is not None, f"{name} is neither active nor starting"
        message = missing_message(program, event, owner)
        self._reported[_MISSING_KEY_PREFIX + name] = message
        return [ReportPolicyEvent("Warning", "PolicyMissing", message, owner)]

    def _report_suspended(self, program: Program) -> list[Command]:
        owner = self._permissions.owner(program.name)
        return (
            [ReportPolicyEvent("Warning", "PolicySuspended", program.removed, owner)]
            if program.removed
            else []
        )

    def _report_recovered(self, key: str, program: Program) -> list[Command]:
        rejected, missing = (
            self._reported.pop(key, None),
            self._reported.pop(_MISSING_KEY_PREFIX + program.name, None),
        )
        if rejected is None and missing is None:
            return []
        return [
            ReportPolicyEvent("Normal", "PolicyRecovered", active_message(key, program), team_of_key(key))
        ]

    # ── helpers ───────────────────────────────────────────────────────────────────────────────────────────────

    def _owns_name(self, name: str, first: CheckedSource, last_good: Mapping[str, Program]) -> bool:
        """Whether the key is the source of the active text, or no policy of that name is active or saved."""
        if name in self.running:
            return self._is_removed(name) or self._status[name].key == first.key
        return name not in last_good or last_good[name].sha256 == first.sha256

    def _policy_of(self, source: CheckedSource) -> str | None:
        """The policy of a broken key: the name in its header if readable, else the last one it had."""
        return None if source.is_library else header_name(source) or self._name_of_key.get(source.key)

    def _is_removed(self, name: str) -> bool:
        """Whether the policy is removed, and not only suspended."""
        running = self.running.get(name)
        return running is not None and bool(running.program.removed) and not running.program.text

    def _take_team_sources(self, wanted: Mapping[str, Program]) -> bool:
        """Whether what a team wrote, or its base, changed without changing the program."""
        rewritten = {
            name: program
            for name, program in wanted.items()
            if self._sha(name) == program.sha256 and self.running[name].program.team != program.team
        }
        for name, program in rewritten.items():
            self.running[name] = replace(self.running[name], program=program, saved=saved_form(program))
        return bool(rewritten)

    def _sha(self, name: str) -> str | None:
        running = self.running.get(name)
        return None if running is None else running.program.sha256

    def _take_last_good(self, event: PoliciesUpdated, out: list[Command]) -> dict[str, Program]:
        """Those that come later change nothing of policies that run, or were removed, meanwhile."""
        sources = event.last_good.sources if event.last_good is not None else {}
        if self._first_offer:
            # Keep texts that cannot run now: they may run again with other settings, or in another version.
            saved_texts = filter(None, map(saved_text, sources.values()))
            self._saved_texts = {**event.unchecked_texts, **dict(saved_texts)}
        programs = {}
        for source in reject_by_settings(sources, self._permissions, self.extenders).values():
            if source.program is not None:
                programs[source.program.name] = source.program
            elif not source.is_library:
                message = "ignoring a last known good text that this version or these settings reject"
                fields = {"key": source.key, "reason": rejection_message(source)}
                out.append(Log("warning", message, fields))
        return {name: program for name, program in programs.items() if name not in self.running}

    def save(self) -> list[Command]:
        """The texts of all policies, if one of them changed. Once after each update, which can be of hundreds of teams."""
        if not self._may_save:
            return []
        self._may_save = False
        current = {**self._saved_texts, **{name: running.saved for name, running in self.running.items()}}
        dropped = {*self._disallowed_removals, *filter(self._is_removed, current)}
        texts = {name: current[name] for name in sorted(current.keys() - dropped)}
        if texts == self._saved_texts:
            return []
        self._saved_texts = texts
        return [SavePolicyTexts(texts)]


_MISSING_KEY_PREFIX = "missing policy "  # no key of a ConfigMap has spaces


def _is_text(source: CheckedSource | None) -> bool:
    return source is not None and source.program is not None and not source.program.removed
