"""The diagnostics of `policysched lint`, in the order of the files."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from policysched.lang.check.bundle import PolicyBundle
from policysched.lang.diagnostics.catalogue import OPT_IN_CODES, make_diagnostic
from policysched.lang.diagnostics.ignore_comments import apply_ignore_comments
from policysched.lang.ir.program import Program
from policysched.lint.trust import trust_findings
from policysched.policy_files.checking import (
    NO_SETTINGS,
    LoadRules,
    check_source_set,
    reject_unused_parameters,
    with_required_base,
)
from policysched.policy_files.source_set import SourceSet
from policysched.text import Diagnostic, Severity, Span

ProgramCheck = Callable[[Program], Iterable[Diagnostic]]
"""Checks a program against the operator's settings: `lint.settings_checks`."""


class LiveQueryFailed(Exception):
    """A live query failed. The message is one line: which server and why."""


def lint(
    sets: Sequence[SourceSet],
    flags: Sequence[str] = (),
    settings_check: ProgramCheck | None = None,
    select: Collection[str] = (),
    rules: LoadRules = NO_SETTINGS,
) -> tuple[Diagnostic, ...]:
    """The diagnostics of the requested texts, without duplicates. `flags` are parameter values, `NAME=VALUE`; raises
    UnusableFile for an invalid one. `settings_check` adds diagnostics that need the settings, and may raise.
    Opt-in diagnostics are left out unless their codes are in `select`. With the `rules` of settings a text is checked as
    the scheduler loads it."""
    diagnostics: dict[tuple[str, str, int, int, str], Diagnostic] = {}
    sets = with_required_base(sets, rules)
    bundles = [check_source_set(sources, flags, rules) for sources in sets]
    reject_unused_parameters(flags, bundles)
    for sources, bundle in zip(sets, bundles, strict=True):
        for diagnostic in _lint_set(sources, bundle, settings_check):
            if diagnostic.code in OPT_IN_CODES and diagnostic.code not in select:
                continue
            span = diagnostic.span
            offsets = (span.start, span.end) if span is not None else (0, 0)
            name = f"{span.source.name} {span.source.origin.note}" if span is not None else ""
            diagnostics.setdefault((diagnostic.code, name, *offsets, diagnostic.message), diagnostic)
    return tuple(diagnostics.values())


def _lint_set(
    sources: SourceSet, bundle: PolicyBundle, settings_check: ProgramCheck | None
) -> Iterator[Diagnostic]:
    for key in sources.sources:
        if key not in sources.requested:
            continue
        if key in sources.quoted_keys:
            yield make_diagnostic(
                "PS105",
                f"`{key}` is a quoted string, so lines and columns in it are not exact",
                Span(sources.sources[key], 0, 0),
                label="the text begins here",
                help=f"write a block scalar: `{key}: |`, with the policy indented below",
            )
        checked = bundle.sources[key]
        diagnostics = [*checked.diagnostics]
        if checked.program is not None:
            # Also if not selected: an ignore comment about one is not unused.
            diagnostics += trust_findings(checked.program, sources.sources[key])
        if settings_check is not None and checked.program is not None:
            diagnostics += settings_check(checked.program)
        yield from apply_ignore_comments(sources.sources[key], _certain_diagnostics(diagnostics))


def _certain_diagnostics(diagnostics: Sequence[Diagnostic]) -> Sequence[Diagnostic]:
    """With a syntax error it is not known what the policy uses or omits: drops warnings that depend on it."""
    if not any(
        diagnostic.code.startswith("PS1") and diagnostic.severity is Severity.ERROR
        for diagnostic in diagnostics
    ):
        return diagnostics
    return [
        diagnostic
        for diagnostic in diagnostics
        if diagnostic.severity is Severity.ERROR or diagnostic.code < "PS200"
    ]
