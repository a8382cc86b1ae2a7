"""Everything that lint says about policies from files, in the order of the files."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from policysched.lang.check.bundle import PolicyBundle
from policysched.lang.diagnostics.catalogue import make_diagnostic
from policysched.lang.diagnostics.ignore_comments import apply_ignore_comments
from policysched.lang.ir.program import Program
from policysched.policy_files.checking import check_source_set, reject_unused_parameters
from policysched.policy_files.source_set import SourceSet
from policysched.text import Diagnostic, Severity, Span

ProgramCheck = Callable[[Program], Iterable[Diagnostic]]
"""What can be checked of a program with the operator's settings: `lint.settings_checks`."""


class LiveQueryFailed(Exception):
    """A server that lint is to ask does not answer: one line that says which and why."""


def lint(
    sets: Sequence[SourceSet], flags: Sequence[str] = (), settings_check: ProgramCheck | None = None
) -> tuple[Diagnostic, ...]:
    """Each finding once. Texts that are only there to be included are not reported on. `flags` are values for
    parameters, `NAME=VALUE`; raises UnusableFile where one cannot be used. `settings_check` adds
    findings that need the settings; raises what that raises."""
    found: dict[tuple[str, str, int, int, str], Diagnostic] = {}
    bundles = [check_source_set(one, flags) for one in sets]
    reject_unused_parameters(flags, bundles)
    for one, bundle in zip(sets, bundles, strict=True):
        for finding in _lint_set(one, bundle, settings_check):
            place = (finding.span.start, finding.span.end) if finding.span is not None else (0, 0)
            name = (
                f"{finding.span.source.name} {finding.span.source.origin.note}"
                if finding.span is not None
                else ""
            )
            found.setdefault((finding.code, name, *place, finding.message), finding)
    return tuple(found.values())


def _lint_set(
    one: SourceSet, bundle: PolicyBundle, settings_check: ProgramCheck | None
) -> Iterator[Diagnostic]:
    for key in one.sources:
        if key not in one.requested:
            continue
        if key in one.quoted_keys:
            yield make_diagnostic(
                "PS105",
                f"`{key}` is a quoted text, so places in it cannot be shown exactly",
                Span(one.sources[key], 0, 0),
                label="the text begins here",
                help=f"write it as a block: `{key}: |`, and the policy indented below",
            )
        checked = bundle.sources[key]
        found = [*checked.diagnostics]
        if settings_check is not None and checked.program is not None:
            found += settings_check(checked.program)
        yield from apply_ignore_comments(one.sources[key], _certain_findings(found))


def _certain_findings(found: Sequence[Diagnostic]) -> Sequence[Diagnostic]:
    """While a statement cannot be read, whether something is used or left out is not known."""
    if not any(one.code.startswith("PS1") and one.severity is Severity.ERROR for one in found):
        return found
    return [one for one in found if one.severity is Severity.ERROR or one.code < "PS200"]
