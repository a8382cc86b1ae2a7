"""The checker: from the syntax trees of a bundle to programs, or to diagnostics.

    syntax trees ──► include ──► names ──► rules and their changes ──► layers ──► lints ──► Program | diagnostics

`passes.PASSES` is the order. The checker never raises for an invalid policy, and never evaluates one.
"""

from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import TypeVar

from policysched.lang.check.bundle import CheckedSource, PolicyBundle
from policysched.lang.check.include import INCLUDE_DEPTH_MAX, IncludeTarget
from policysched.lang.check.limits import DIAGNOSTICS_MAX, POLICY_COST_MAX, TextGuard, TextLimitExceeded
from policysched.lang.check.parameter_values import NO_PARAMETER_VALUES, ParameterValuesByPolicy
from policysched.lang.check.passes import CheckState, build_program, check_document
from policysched.lang.check.team_texts import RequiredBase, team_text_problems
from policysched.lang.diagnostics.catalogue import make_diagnostic
from policysched.lang.ir.program import Program
from policysched.lang.parse import parse
from policysched.lang.syntax import tree as s
from policysched.text import Diagnostic, Label, Severity, Source, Span
from policysched.text.suggestions import limited_suggestions

__all__ = ["check_sources", "check_text"]

T = TypeVar("T")
_EXCEEDED_CODE = "PS909"


def check_text(
    text: str,
    name: str = "test.policy",
    other_texts: Mapping[str, str] | None = None,
    parameter_values: ParameterValuesByPolicy = NO_PARAMETER_VALUES,
    cost_max: int = POLICY_COST_MAX,
) -> CheckedSource:
    """Parse and check one text; `other_texts` are the texts that it may include, by key."""
    texts = {**(other_texts or {}), name: text}
    sources = {key: Source(key, source_text) for key, source_text in texts.items()}
    return check_sources(sources, parameter_values, cost_max).sources[name]


def check_sources(
    sources: Mapping[str, Source],
    parameter_values: ParameterValuesByPolicy = NO_PARAMETER_VALUES,
    cost_max: int = POLICY_COST_MAX,
    guard: TextGuard = nullcontext,
    check_last: Collection[str] = (),
    base: RequiredBase | None = None,
) -> PolicyBundle:
    """Parse and check every text; `include "..."` looks up the keys. Never raises for bad input.

    A policy that costs more than `cost_max` operations is rejected. `guard` may end the check of a single text, which is
    then rejected. The keys in `check_last` are checked after the others; the result does not depend on the order.
    With `base` the texts that are not the operator's are checked as those of a team.
    """
    checker = _Checker(dict(sorted(sources.items())), parameter_values, cost_max, guard, base)
    in_order = sorted(checker.sources, key=lambda key: key in check_last)
    checked = {key: checker.check_text(key) for key in in_order}
    if base is not None:
        for key in checked.keys() - base.operator_keys:
            problems = tuple(team_text_problems(checker.parse_text(key)[0], base))
            if problems:
                diagnostics = _at_most(DIAGNOSTICS_MAX, (*problems, *checked[key].diagnostics))
                checked[key] = replace(checked[key], program=None, diagnostics=diagnostics)
    return PolicyBundle(_report_duplicate_policies({key: checked[key] for key in checker.sources}, checker))


@dataclass(slots=True)
class _Checker:
    """Parses and checks each text once, and caches the results for the texts that include it."""

    sources: Mapping[str, Source]
    parameter_values: ParameterValuesByPolicy
    cost_max: int
    guard: TextGuard
    base: RequiredBase | None
    parse_results: dict[str, tuple[s.SyntaxTree, tuple[Diagnostic, ...]]] = field(default_factory=dict)
    check_results: dict[str, tuple[CheckState, tuple[Diagnostic, ...]]] = field(default_factory=dict)
    include_targets: dict[str, IncludeTarget] = field(default_factory=dict)
    in_progress: list[str] = field(default_factory=list)

    def parse_text(self, key: str) -> tuple[s.SyntaxTree, tuple[Diagnostic, ...]]:
        if key not in self.parse_results:
            self.parse_results[key] = self.within_limits(
                key,
                lambda: parse(self.sources[key]),
                lambda exceeded: (self.without_statements(key), (exceeded,)),
            )
        return self.parse_results[key]

    def run_passes(self, key: str) -> tuple[CheckState, tuple[Diagnostic, ...]]:
        if key not in self.check_results:
            document, syntax_diagnostics = self.parse_text(key)
            headers = [statement for statement in document.statements if isinstance(statement, s.HeaderDecl)]
            header_only = self.without_statements(key, *headers[:1])
            if any(diagnostic.code == _EXCEEDED_CODE for diagnostic in syntax_diagnostics):
                work, check_diagnostics = self._check_document(key, header_only)[0], tuple[Diagnostic, ...]()
            else:
                work, check_diagnostics = self.within_limits(
                    key,
                    lambda: self._check_document(key, document),
                    lambda exceeded: (self._check_document(key, header_only)[0], (exceeded,)),
                )
            diagnostics = sorted(
                (*syntax_diagnostics, *check_diagnostics), key=lambda d: d.span.start if d.span else 0
            )
            self.check_results[key] = work, tuple(diagnostics)
        return self.check_results[key]

    def _check_document(self, key: str, document: s.SyntaxTree) -> tuple[CheckState, tuple[Diagnostic, ...]]:
        self.in_progress.append(key)
        result = check_document(
            key,
            document,
            self.find_include_target,
            tuple(self.sources),
            self.parameter_values,
            self.cost_max,
            self.base,
        )
        self.in_progress.pop()
        return result

    def within_limits(self, key: str, work: Callable[[], T], exceeded: Callable[[Diagnostic], T]) -> T:
        """The result of `work`, or that of `exceeded` where it takes too much time or memory."""
        depth = len(self.in_progress)
        try:
            with self.guard(key), limited_suggestions():
                return work()
        except TextLimitExceeded as error:
            reason = str(error)
        except MemoryError:
            reason = "checking this text takes too much memory"
        del self.in_progress[depth:]
        return exceeded(
            make_diagnostic(
                _EXCEEDED_CODE,
                reason,
                Span(self.sources[key], 0, 0),
                help="shorten or split it; other texts are not affected",
            )
        )

    def without_statements(self, key: str, *headers: s.HeaderDecl) -> s.SyntaxTree:
        """The text without all but its header."""
        return s.SyntaxTree(headers, (), Span(self.sources[key], 0, 0))

    def find_include_target(self, key: str) -> IncludeTarget | None:
        """The target of an `include`.

        A text that is being checked further out counts as valid, and so does one whose only errors are
        include cycles (PS228): expanding it reports the cycle.
        """
        if key not in self.sources:
            return None
        if key in self.include_targets:
            return self.include_targets[key]
        document, syntax_diagnostics = self.parse_text(key)
        is_library = any(isinstance(x, s.HeaderDecl) and x.kind == "library" for x in document.statements)
        is_library |= any(d.code == _EXCEEDED_CODE for d in syntax_diagnostics)  # its header is unknown
        has_errors = _has_errors(syntax_diagnostics)
        if (
            is_library
            and not has_errors
            and key not in self.in_progress
            and len(self.in_progress) <= INCLUDE_DEPTH_MAX
        ):
            has_errors = _has_errors(tuple(d for d in self.run_passes(key)[1] if d.code != "PS228"))
        target = IncludeTarget(key, document, is_library, has_errors)
        if has_errors or not is_library or key in self.check_results:
            self.include_targets[key] = target
        return target

    def check_text(self, key: str) -> CheckedSource:
        work, diagnostics = self.run_passes(key)
        is_valid = not _has_errors(diagnostics) and work.header is not None
        name = None if work.header is None or work.is_library else work.header.name.text
        program: Program | None = None
        if is_valid and not work.is_library:
            program, exceeded = self.within_limits(
                key, lambda: (build_program(work), ()), lambda exceeded: (None, (exceeded,))
            )
            diagnostics = (*exceeded, *diagnostics)
        return CheckedSource(key, work.is_library, program, _at_most(DIAGNOSTICS_MAX, diagnostics), name)


def _has_errors(diagnostics: tuple[Diagnostic, ...]) -> bool:
    return any(diagnostic.severity is Severity.ERROR for diagnostic in diagnostics)


def _at_most(count: int, diagnostics: tuple[Diagnostic, ...]) -> tuple[Diagnostic, ...]:
    """The first errors, or the first diagnostics if there is room, and how many are left out."""
    if len(diagnostics) <= count:
        return diagnostics
    errors_first = sorted(range(len(diagnostics)), key=lambda index: -diagnostics[index].severity)
    kept = [diagnostics[index] for index in sorted(errors_first[:count])]
    left_out = [diagnostics[index] for index in sorted(errors_first[count:])]
    worst = max(left_out, key=lambda diagnostic: diagnostic.severity)
    summary = make_diagnostic(
        "PS006",
        f"and {len(left_out):,} more diagnostics in this text",
        worst.span,
        label="the next one is here",
        help="fix those above first",
    )
    return (*kept, replace(summary, severity=worst.severity))


def _report_duplicate_policies(
    checked: dict[str, CheckedSource], checker: _Checker
) -> dict[str, CheckedSource]:
    """The first policy of a name, in the order of the keys, stays active; later ones get an error."""
    first: dict[str, s.HeaderDecl] = {}
    for key, source in checked.items():
        header = checker.run_passes(key)[0].header
        if source.is_library or header is None:
            continue
        first_header = first.setdefault(header.name.text, header)
        if first_header is header:
            continue
        duplicate = make_diagnostic(
            "PS233",
            f"duplicate policy name `{header.name.text}`",
            header.name.span,
            label="already in use",
            help="pods select a policy by name; rename one of the two",
            related=(Label(first_header.name.span, "first policy of this name, which stays active"),),
        )
        checked[key] = replace(source, program=None, diagnostics=(duplicate, *source.diagnostics))
    return checked
