"""The checker: from the syntax of several texts to programs, or to what is wrong with them.

    documents ──► include ──► names ──► rules and their changes ──► layers ──► lints ──► Program | diagnostics

`program.PASSES` is the order. Nothing here raises for what an author wrote, and nothing evaluates a policy.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from policysched.lang.check.bundle import CheckedSource, PolicyBundle
from policysched.lang.check.include import INCLUDE_DEPTH_MAX, IncludeTarget
from policysched.lang.check.parameter_values import NO_PARAMETER_VALUES, ParameterValuesByPolicy
from policysched.lang.check.passes import CheckState, build_program, check_document
from policysched.lang.diagnostics.catalogue import make_diagnostic
from policysched.lang.parse import parse
from policysched.lang.syntax import tree as s
from policysched.text import Diagnostic, Label, Severity, Source

__all__ = ["check_sources", "check_text"]


def check_text(
    text: str,
    name: str = "test.policy",
    other_texts: Mapping[str, str] | None = None,
    parameter_values: ParameterValuesByPolicy = NO_PARAMETER_VALUES,
) -> CheckedSource:
    """Parse and check one text; `other_texts` are the texts beside it that it may include, by their keys."""
    texts = {**(other_texts or {}), name: text}
    return check_sources({key: Source(key, one) for key, one in texts.items()}, parameter_values).sources[
        name
    ]


def check_sources(
    sources: Mapping[str, Source], parameter_values: ParameterValuesByPolicy = NO_PARAMETER_VALUES
) -> PolicyBundle:
    """Parse and check every text; the keys are what `include "..."` looks up. `parameter_values` are values of parameters by the
    name of the policy. Never raises for bad input."""
    checker = _Checker(dict(sorted(sources.items())), parameter_values)
    checked = {key: checker.check_text(key) for key in checker.sources}
    return PolicyBundle(_report_duplicate_policies(checked, checker))


@dataclass(slots=True)
class _Checker:
    """Parses and checks each text once; what includes it asks again."""

    sources: Mapping[str, Source]
    parameter_values: ParameterValuesByPolicy
    parse_results: dict[str, tuple[s.SyntaxTree, tuple[Diagnostic, ...]]] = field(default_factory=dict)
    check_results: dict[str, tuple[CheckState, tuple[Diagnostic, ...]]] = field(default_factory=dict)
    in_progress: list[str] = field(default_factory=list)

    def parse_text(self, key: str) -> tuple[s.SyntaxTree, tuple[Diagnostic, ...]]:
        if key not in self.parse_results:
            self.parse_results[key] = parse(self.sources[key])
        return self.parse_results[key]

    def run_passes(self, key: str) -> tuple[CheckState, tuple[Diagnostic, ...]]:
        if key not in self.check_results:
            document, said = self.parse_text(key)
            self.in_progress.append(key)
            work, found = check_document(
                key, document, self.find_include_target, tuple(self.sources), self.parameter_values
            )
            self.in_progress.pop()
            both = sorted((*said, *found), key=lambda one: one.span.start if one.span else 0)
            self.check_results[key] = work, tuple(both)
        return self.check_results[key]

    def find_include_target(self, key: str) -> IncludeTarget | None:
        """For `include`. A text that is being checked right now, further out, counts as sound, and so does one that only
        includes in a circle: who expands it goes round the circle too, and says so."""
        if key not in self.sources:
            return None
        document, said = self.parse_text(key)
        library = any(isinstance(one, s.HeaderDecl) and one.kind == "library" for one in document.statements)
        broken = _has_errors(said)
        if (
            library
            and not broken
            and key not in self.in_progress
            and len(self.in_progress) <= INCLUDE_DEPTH_MAX
        ):
            broken = _has_errors(tuple(one for one in self.run_passes(key)[1] if one.code != "PS228"))
        return IncludeTarget(key, document, library, broken)

    def check_text(self, key: str) -> CheckedSource:
        work, found = self.run_passes(key)
        sound = not _has_errors(found) and work.header is not None
        name = None if work.header is None or work.is_library else work.header.name.text
        return CheckedSource(
            key, work.is_library, build_program(work) if sound and not work.is_library else None, found, name
        )


def _has_errors(found: tuple[Diagnostic, ...]) -> bool:
    return any(one.severity is Severity.ERROR for one in found)


def _report_duplicate_policies(
    checked: dict[str, CheckedSource], checker: _Checker
) -> dict[str, CheckedSource]:
    """The first policy of a name stays, in the order of the keys; later ones get an error."""
    first: dict[str, s.HeaderDecl] = {}
    for key, one in checked.items():
        header = checker.run_passes(key)[0].header
        if one.is_library or header is None:
            continue
        taken = first.setdefault(header.name.text, header)
        if taken is header:
            continue
        finding = make_diagnostic(
            "PS233",
            f"there is a policy `{header.name.text}` already",
            header.name.span,
            label="second policy of this name",
            help="pods could not say which of the two they mean: give one another name",
            related=(Label(taken.name.span, "the first, which stays active"),),
        )
        checked[key] = replace(one, program=None, diagnostics=(finding, *one.diagnostics))
    return checked
