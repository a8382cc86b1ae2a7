"""Helpers for tests of import-config."""

from collections.abc import Iterable

from policysched.lang.check import check_text
from policysched.lang.diagnostics.ignore_comments import apply_ignore_comments
from policysched.lang.format.formatter import format_source
from policysched.lang.ir.program import Program
from policysched.lang.ir.rules import BuiltinFilter, BuiltinScore
from policysched.migrate import ImportResult, import_config
from policysched.migrate.report import ImportNote
from policysched.text import Source

CONFIG = "apiVersion: kubescheduler.config.k8s.io/{version}\nkind: KubeSchedulerConfiguration\n"


NEVER_OR_ALWAYS_TRUE = {"PS301", "PS302"}
"""What a configuration says can contradict itself; its import says the same, with a warning."""


def config(body: str = "", version: str = "v1") -> str:
    return CONFIG.format(version=version) + body


def imported(text: str, name: str = "scheduler.yaml", **renames: str) -> ImportResult:
    """Import a configuration. Every resulting policy must be free of diagnostics and canonically
    formatted.
    """
    done = import_config(text, name, renames)
    for key, policy in done.policies.items():
        program_of(key, policy)
    return done


def program_of(name: str, policy: str) -> Program:
    checked = check_text(policy, f"{name}.policy")
    source = Source(f"{name}.policy", policy)
    diagnostics = apply_ignore_comments(source, checked.diagnostics)
    findings = [(diagnostic.code, diagnostic.message) for diagnostic in diagnostics]
    assert [finding for finding in findings if finding[0] not in NEVER_OR_ALWAYS_TRUE] == []
    assert format_source(source).text == policy
    assert checked.program is not None and checked.program.name == name
    return checked.program


def only(done: ImportResult) -> str:
    (policy,) = done.policies.values()
    return policy


def rules(done: ImportResult) -> str:
    """The policy without comment lines, its header and its `preemption` statement."""
    kept = [
        line for line in only(done).splitlines() if not line.startswith(("# ", "#", "policy ", "preemption"))
    ]
    return "\n".join(kept).strip("\n") + "\n"


def filters_of(program: Program) -> list[str]:
    return [rule.name for rule in program.rules.filters]


def weights_of(program: Program) -> dict[str, int]:
    return {rule.name: rule.weight for rule in program.rules.scores if rule.weight}


def params_of(program: Program, score: str) -> dict[str, object]:
    (rule,) = [candidate for candidate in program.rules.scores if candidate.name == score]
    assert isinstance(rule, BuiltinScore), rule
    return dict(rule.params)


def builtin_filters(program: Program) -> list[str]:
    return [rule.builtin for rule in program.rules.filters if isinstance(rule, BuiltinFilter)]


def of_the_file(items: Iterable[ImportNote]) -> list[tuple[int, int, str, str]]:
    """Where the entries are and what they are about, without those on what this version lacks of the defaults."""
    return [
        (item.line, item.column, item.where, item.subject)
        for item in items
        if not item.reason.startswith("not supported by this version")
    ]


def notes_of_the_file(done: ImportResult) -> list[str]:
    return [subject for *_, subject in of_the_file(done.notes)]
