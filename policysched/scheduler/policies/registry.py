"""Which policies run, and what became of each text that was offered.

A policy becomes active whole or not at all. For each name the last text that checked runs on: while its key is
broken, after its key or the whole ConfigMap was deleted, and across a restart, because every text that becomes active
is kept in a ConfigMap of ours. There are no built-in defaults: a process that starts with neither a valid policy nor a
last known good one has nothing to run and says so (`startup_error`).

**A policy renamed under its key.** Pods name the policy, not the key. So a header changed from `a` to `b` is a new
policy `b` and a policy `a` that no key has any more, exactly as if the key of `a` had been deleted: `a` runs on from
its last known good text with a warning event, and `b` runs beside it. A typing mistake in a header would otherwise
strand every pod of `a` without a word. Who means to end `a` deletes it from the ConfigMap of last known good texts
and restarts; the event says that.

    (none) ──checked──► active ──its key breaks──► last known good ──checked──► active
                          └──no key has it any more──► missing ──checked──► active
    (none) ──its key is broken──► rejected ──checked──► active
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from policysched.evaluate import Plan
from policysched.lang.check.bundle import CheckedSource, PolicyBundle
from policysched.lang.diagnostics.catalogue import make_diagnostic
from policysched.lang.ir.program import Program
from policysched.scheduler.commands import Command, Log, ReportPolicyEvent, SavePolicyTexts
from policysched.scheduler.events import PoliciesUpdated
from policysched.scheduler.extenders.capabilities import ExtendersByName, unusable_extenders
from policysched.scheduler.policies.rejection_message import (
    errors_of,
    format_duration,
    header_name,
    rejection_message,
    short_sha,
)
from policysched.scheduler.queue.equivalence import program_reads_queue
from policysched.text import Diagnostic

PolicyPhase = Literal["active", "rejected", "last_known_good", "missing"]
ReloadResult = Literal["ok", "unchanged", "parse", "type", "cost", "missing"]


@dataclass(frozen=True, slots=True)
class RunningPolicy:
    """A policy that decides. `since_ns`: when this text became active in this process.
    `reads_queue`: see `kin`."""

    program: Program
    plan: Plan
    since_ns: int
    reads_queue: bool


@dataclass(frozen=True, slots=True)
class PolicyStatus:
    """One line of `/policy`: a policy by its name, or a key that never gave one (`name` is None then, or the header's).

    `sha256` and `version` are of the text that runs, None where none does. `diagnostics` are of the text now in the
    key. `last_success_ns` moves only when another text becomes active; None: not in this process.
    """

    name: str | None
    key: str | None
    version: int | None
    sha256: str | None
    phase: PolicyPhase
    diagnostics: tuple[Diagnostic, ...]
    since_ns: int
    last_success_ns: int | None


class PolicyRegistry:
    """The running policies by name, and the status of each name and key. See the drawing above. A text that asks an extender
    which `extenders` lack is as broken as one that does not check."""

    def __init__(self, extenders: ExtendersByName) -> None:
        self._extenders = extenders
        self.running: dict[str, RunningPolicy] = {}
        self.resource_version: str | None = None
        self.reloads: dict[ReloadResult, int] = {}
        self._status: dict[str, PolicyStatus] = {}
        self._broken_keys: dict[str, PolicyStatus] = {}
        self._name_of_key: dict[str, str] = {}
        self._offered: dict[str, CheckedSource] = {}
        self._reported: dict[str, str] = {}
        self._saved_texts: dict[str, str] = {}
        self._first_offer = True
        self.startup_error: str | None = None

    def status(self) -> list[PolicyStatus]:
        """Running policies first, then keys that gave none, each sorted."""
        names = [self._status[name] for name in sorted(self._status)]
        return names + [self._broken_keys[key] for key in sorted(self._broken_keys)]

    # ── an offer ───────────────────────────────────────────────────────────────────────────────────────────────────

    def apply_update(self, event: PoliciesUpdated, now_ns: int) -> tuple[list[Command], list[Program]]:
        """Take in what the ConfigMap says now. Answers what is to be said, and the programs that are to become
        active: `activate` (or `reject`) is called for each when its plan is ready."""
        if (
            not self._first_offer
            and event.resource_version
            and event.resource_version == self.resource_version
        ):
            return [], []
        out: list[Command] = []
        last_good = self._take_last_good(event.last_good, out) if self._first_offer else {}
        checked = {} if event.bundle is None else self._reject_unusable_extenders(event.bundle.sources)
        checked = self._reject_duplicate_names(checked, last_good)
        valid = {one.program.name: one for one in checked.values() if one.program is not None}
        broken = {key: one for key, one in checked.items() if errors_of(one)}
        wanted = {name: one.program for name, one in valid.items() if one.program is not None}
        for name, program in last_good.items():
            wanted.setdefault(name, program)
        self._offered = valid
        changed = [program for name, program in wanted.items() if self._sha(name) != program.sha256]

        out += self._note_valid(valid, checked, now_ns)
        fallen = self._note_broken(broken, valid, wanted, out, now_ns)
        for name in dict.fromkeys([*self.running, *wanted]):
            if name not in valid and name not in fallen:
                self._fall_back(name, None, "missing", (), wanted.get(name), now_ns)
                out += self._report_missing(name, wanted.get(name), event)
        for key in [
            one for one in self._reported if one not in checked and not one.startswith(_MISSING_KEY_PREFIX)
        ]:
            del self._reported[key]  # the key is gone, with what was said of it
        self._count(broken, changed, event.bundle)
        if self._first_offer and not wanted:
            self.startup_error = _nothing_to_run_message(broken, event)
            out.append(Log("error", self.startup_error, {}))
        self.resource_version, self._first_offer = event.resource_version, False
        return out, changed

    def still_wanted(self, program: Program) -> bool:
        """Whether a program whose plan has been prepared meanwhile is still what its policy is to become."""
        offered = self._offered.get(program.name)
        return offered is None or _sha_of(offered) == program.sha256

    def activate(self, program: Program, plan: Plan, now_ns: int) -> list[Command]:
        """The plan decides from now on."""
        name = program.name
        self.running[name] = RunningPolicy(program, plan, now_ns, program_reads_queue(program))
        offered = self._offered.get(name)
        if offered is None or _sha_of(offered) != program.sha256:
            before = self._status[name]
            self._status[name] = replace(
                before, version=program.version, sha256=program.sha256, since_ns=now_ns
            )
            return self._save()
        self._status[name] = PolicyStatus(
            name, offered.key, program.version, program.sha256, "active", offered.diagnostics, now_ns, now_ns
        )
        said = self._report_recovered(offered.key, program) or [
            Log("info", _active_message(offered.key, program), {})
        ]
        return [*said, *self._save()]

    def reject(self, program: Program, why: str, now_ns: int) -> list[Command]:
        """The program checked, and could still not be compiled: what ran before runs on."""
        offered = self._offered.pop(program.name, None)
        key = offered.key if offered else program.name
        runs = self.running.get(program.name)
        if runs is not None:
            self._status[program.name] = replace(self._status[program.name], phase="last_known_good")
        else:
            self._status.pop(program.name, None)
            self._broken_keys[key] = PolicyStatus(program.name, key, None, None, "rejected", (), now_ns, None)
        return self._report_rejected(key, f"{key}: {why}", None if runs is None else program.name, now_ns)

    # ── what an offer means for each ───────────────────────────────────────────────────────────────────────────────

    def _note_valid(
        self, valid: Mapping[str, CheckedSource], checked: Mapping[str, CheckedSource], now_ns: int
    ) -> list[Command]:
        out: list[Command] = []
        for name, one in valid.items():
            assert one.program is not None
            # A key that had the policy before and is gone says nothing any more.
            for key in [key for key, had in self._name_of_key.items() if had == name and key not in checked]:
                del self._name_of_key[key]
            self._name_of_key[one.key] = name
            runs, before = self.running.get(name), self._status.get(name)
            if runs is None or runs.program.sha256 != one.program.sha256:
                if before is not None:  # the old text decides until the new plan is ready
                    self._status[name] = replace(before, key=one.key, diagnostics=one.diagnostics)
                continue
            assert before is not None, f"{name} runs and has no status"
            since_ns = before.since_ns if before.phase == "active" else now_ns
            self._status[name] = replace(
                before, key=one.key, phase="active", diagnostics=one.diagnostics, since_ns=since_ns
            )
            out += self._report_recovered(one.key, one.program)
        return out

    def _note_broken(
        self,
        broken: Mapping[str, CheckedSource],
        valid: Mapping[str, CheckedSource],
        wanted: Mapping[str, Program],
        out: list[Command],
        now_ns: int,
    ) -> frozenset[str]:
        """Answers the policies whose key is broken and that run on from an earlier text."""
        fallen = set()
        held, self._broken_keys = self._broken_keys, {}
        for key, one in broken.items():
            name = self._policy_of(one)
            keeps = name is not None and name not in valid and (name in self.running or name in wanted)
            if name is not None and keeps:
                self._name_of_key[key] = name
                fallen.add(name)
                self._fall_back(name, key, "last_known_good", one.diagnostics, wanted.get(name), now_ns)
            else:
                since_ns = held[key].since_ns if key in held else now_ns
                self._broken_keys[key] = PolicyStatus(
                    name, key, None, None, "rejected", one.diagnostics, since_ns, None
                )
            runs_on = name if keeps else None
            out += self._report_rejected(key, rejection_message(one), runs_on, now_ns, library=one.is_library)
        return frozenset(fallen)

    def _fall_back(
        self,
        name: str,
        key: str | None,
        state: PolicyPhase,
        diagnostics: tuple[Diagnostic, ...],
        starting_from: Program | None,
        now_ns: int,
    ) -> None:
        before = self._status.get(name)
        if before is not None:
            since_ns = before.since_ns if before.phase == state else now_ns
            self._status[name] = replace(
                before, key=key, phase=state, diagnostics=diagnostics, since_ns=since_ns
            )
            return
        assert starting_from is not None, f"{name} neither runs nor is it about to"
        self._status[name] = PolicyStatus(
            name, key, starting_from.version, starting_from.sha256, state, diagnostics, now_ns, None
        )

    # ── words ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _report_rejected(
        self, key: str, words: str, runs_on: str | None, now_ns: int, *, library: bool = False
    ) -> list[Command]:
        if self._reported.get(key) == words:
            return []
        self._reported[key] = words
        running = None if runs_on is None else self.running.get(runs_on)
        if running is not None:
            age = format_duration(now_ns - running.since_ns)
            outcome = f"still running sha {short_sha(running.program.sha256)} ({age})"
        elif runs_on is not None:
            outcome = f"running the last known good text, sha {short_sha(self._status[runs_on].sha256 or '')}"
        elif library:
            outcome = "policies that include it keep what they run"
        else:
            outcome = "nothing runs in its place"
        return [ReportPolicyEvent("Warning", "PolicyRejected", f"{words}; {outcome}")]

    def _report_missing(
        self, name: str, starting_from: Program | None, event: PoliciesUpdated
    ) -> list[Command]:
        if _MISSING_KEY_PREFIX + name in self._reported:
            return []
        running = self.running.get(name)
        program = starting_from if running is None else running.program
        assert program is not None, f"{name} neither runs nor is it about to"
        cause = "is gone" if event.bundle is None else "does not have it any more"
        kept_too = (
            f"delete it from {event.last_good_source_name} too and " if event.last_good_source_name else ""
        )
        words = (
            f"policy `{name}`: {event.source_name} {cause}; its last known good text, sha {short_sha(program.sha256)}, runs on. "
            f"To end it, {kept_too}restart the scheduler"
        )
        self._reported[_MISSING_KEY_PREFIX + name] = words
        return [ReportPolicyEvent("Warning", "PolicyMissing", words)]

    def _report_recovered(self, key: str, program: Program) -> list[Command]:
        rejected, missed = (
            self._reported.pop(key, None),
            self._reported.pop(_MISSING_KEY_PREFIX + program.name, None),
        )
        if rejected is None and missed is None:
            return []
        return [ReportPolicyEvent("Normal", "PolicyRecovered", _active_message(key, program))]

    # ── extenders ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _reject_unusable_extenders(self, offered: Mapping[str, CheckedSource]) -> Mapping[str, CheckedSource]:
        """The same, without the programs whose extenders cannot be asked, and with what is to be said of these."""
        settled = dict(offered)
        for key, one in offered.items():
            found = () if one.program is None else unusable_extenders(one.program, self._extenders)
            if found:
                assert one.program is not None
                settled[key] = replace(
                    one, program=None, policy_name=one.program.name, diagnostics=(*found, *one.diagnostics)
                )
        return settled

    # ── two keys with one policy ───────────────────────────────────────────────────────────────────────────────────

    def _reject_duplicate_names(
        self, checked: Mapping[str, CheckedSource], last_good: Mapping[str, Program]
    ) -> Mapping[str, CheckedSource]:
        """The language lets the first key of a name stand, in the order of the keys. Where the name runs from another
        key that is still there, the first is the newcomer: it is refused as well, and the text that runs, runs on."""
        settled = dict(checked)
        for one in checked.values():
            for doubled in one.diagnostics:
                if doubled.code != _DUPLICATE_POLICY_CODE or doubled.span is None:
                    continue
                name = doubled.span.text
                first = next(
                    (two for two in checked.values() if two.program and two.program.name == name), None
                )
                if first is None or self._owns_name(name, first, last_good):
                    continue
                here = doubled.related[0].span
                finding = make_diagnostic(
                    _DUPLICATE_POLICY_CODE,
                    f"there is a policy `{name}` already, in the key {one.key}",
                    here,
                    label="second policy of this name",
                    help="pods could not say which of the two they mean: give one another name",
                )
                diagnostics = (finding, *first.diagnostics)
                settled[first.key] = replace(first, program=None, diagnostics=diagnostics)
        return settled

    def _owns_name(self, name: str, first: CheckedSource, last_good: Mapping[str, Program]) -> bool:
        """Whether the key is the one that the policy runs from, or nothing of that name runs or ran."""
        if name in self.running:
            return self._status[name].key == first.key
        return name not in last_good or last_good[name].sha256 == _sha_of(first)

    # ── small things ───────────────────────────────────────────────────────────────────────────────────────────────

    def _policy_of(self, one: CheckedSource) -> str | None:
        """Which policy a broken key was to be: by its header where that can still be read, else what it was last."""
        return None if one.is_library else header_name(one) or self._name_of_key.get(one.key)

    def _sha(self, name: str) -> str | None:
        running = self.running.get(name)
        return None if running is None else running.program.sha256

    def _take_last_good(self, bundle: PolicyBundle | None, out: list[Command]) -> dict[str, Program]:
        kept = bundle.sources if bundle is not None else {}
        # With other settings one that cannot run now can: it is not thrown away.
        self._saved_texts = {
            one.program.name: one.program.text for one in kept.values() if one.program is not None
        }
        found = {}
        for one in self._reject_unusable_extenders(kept).values():
            if one.program is not None:
                found[one.program.name] = one.program
            elif not one.is_library:
                out.append(
                    Log(
                        "warning",
                        "a last known good text cannot run any more",
                        {"key": one.key, "why": rejection_message(one)},
                    )
                )
        return found

    def _save(self) -> list[Command]:
        now = {**self._saved_texts, **{name: one.program.text for name, one in self.running.items()}}
        texts = {name: now[name] for name in sorted(now)}
        if texts == self._saved_texts:
            return []
        self._saved_texts = texts
        return [SavePolicyTexts(texts)]

    def _count(
        self, broken: Mapping[str, CheckedSource], changed: Sequence[Program], bundle: PolicyBundle | None
    ) -> None:
        first = next(iter(broken.values()), None)
        result: ReloadResult
        if first is not None:
            result = _reload_result(errors_of(first)[0].code)
        elif bundle is None:
            result = "missing"
        else:
            result = "ok" if changed else "unchanged"
        self.reloads[result] = self.reloads.get(result, 0) + 1


_DUPLICATE_POLICY_CODE = "PS233"
_MISSING_KEY_PREFIX = "missing policy "  # no key of a ConfigMap has spaces


def _active_message(key: str, program: Program) -> str:
    return f"{key}: policy `{program.name}` version {program.version}, sha {short_sha(program.sha256)}, is active"


def _sha_of(one: CheckedSource) -> str | None:
    return None if one.program is None else one.program.sha256


def _reload_result(code: str) -> ReloadResult:
    match code[2:3]:
        case "0" | "1":
            return "parse"
        case "5":
            return "cost"
        case _:
            return "type"


def _nothing_to_run_message(broken: Mapping[str, CheckedSource], event: PoliciesUpdated) -> str:
    none_kept = (
        f"{event.last_good_source_name} has no last known good policy"
        if event.last_good_source_name
        else "none is kept of earlier runs"
    )
    if event.bundle is None:
        return f"{event.source_name} does not exist, and {none_kept}: nothing to run"
    if not broken:
        return f"there is no policy in {event.source_name} (they are called NAME.policy), and {none_kept}: nothing to run"
    first = "; ".join(rejection_message(one) for one in broken.values())
    return f"no policy in {event.source_name} can run, and {none_kept}: nothing to run. {first}"
