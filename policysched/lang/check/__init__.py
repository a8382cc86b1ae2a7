"""The checker: from the syntax of several texts to programs, or to what is wrong with them.

    documents ──► include ──► names ──► rules and their changes ──► layers ──► lints ──► Program | diagnostics

`program.PASSES` is the order. Nothing here raises for what an author wrote, and nothing evaluates a policy.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from policysched.lang.check.bundle import Bundle, Checked
from policysched.lang.check.include import DEPTH_MAX, Library
from policysched.lang.check.parameter_values import NOBODY_GIVEN, Given
from policysched.lang.check.program import Work, check_document, program_of
from policysched.lang.diagnostics.catalogue import diagnostic
from policysched.lang.parse import parse
from policysched.lang.syntax import tree as s
from policysched.text import Diagnostic, Label, Severity, Source

__all__ = ["check_sources", "check_text"]


def check_text(
    text: str,
    name: str = "test.policy",
    others: Mapping[str, str] | None = None,
    given: Given = NOBODY_GIVEN,
) -> Checked:
    """Parse and check one text; `others` are the texts beside it that it may include, by their keys."""
    texts = {**(others or {}), name: text}
    return check_sources({key: Source(key, one) for key, one in texts.items()}, given).checked[name]


def check_sources(sources: Mapping[str, Source], given: Given = NOBODY_GIVEN) -> Bundle:
    """Parse and check every text; the keys are what `include "..."` looks up. `given` are values of parameters by the
    name of the policy. Never raises for bad input."""
    checker = _Checker(dict(sorted(sources.items())), given)
    checked = {key: checker.checked(key) for key in checker.sources}
    return Bundle(_one_policy_a_name(checked, checker))


@dataclass(slots=True)
class _Checker:
    """Parses and checks each text once; what includes it asks again."""

    sources: Mapping[str, Source]
    given: Given
    parsed: dict[str, tuple[s.Document, tuple[Diagnostic, ...]]] = field(default_factory=dict)
    works: dict[str, tuple[Work, tuple[Diagnostic, ...]]] = field(default_factory=dict)
    running: list[str] = field(default_factory=list)

    def document(self, key: str) -> tuple[s.Document, tuple[Diagnostic, ...]]:
        if key not in self.parsed:
            self.parsed[key] = parse(self.sources[key])
        return self.parsed[key]

    def work(self, key: str) -> tuple[Work, tuple[Diagnostic, ...]]:
        if key not in self.works:
            document, said = self.document(key)
            self.running.append(key)
            work, found = check_document(key, document, self.find, tuple(self.sources), self.given)
            self.running.pop()
            both = sorted((*said, *found), key=lambda one: one.span.start if one.span else 0)
            self.works[key] = work, tuple(both)
        return self.works[key]

    def find(self, key: str) -> Library | None:
        """For `include`. A text that is being checked right now, further out, counts as sound, and so does one that only
        includes in a circle: who expands it goes round the circle too, and says so."""
        if key not in self.sources:
            return None
        document, said = self.document(key)
        library = any(isinstance(one, s.Header) and one.kind == "library" for one in document.statements)
        broken = _erroneous(said)
        if library and not broken and key not in self.running and len(self.running) <= DEPTH_MAX:
            broken = _erroneous(tuple(one for one in self.work(key)[1] if one.code != "PS228"))
        return Library(key, document, library, broken)

    def checked(self, key: str) -> Checked:
        work, found = self.work(key)
        sound = not _erroneous(found) and work.header is not None
        name = None if work.header is None or work.library else work.header.name.text
        return Checked(
            key, work.library, program_of(work) if sound and not work.library else None, found, name
        )


def _erroneous(found: tuple[Diagnostic, ...]) -> bool:
    return any(one.severity is Severity.ERROR for one in found)


def _one_policy_a_name(checked: dict[str, Checked], checker: _Checker) -> dict[str, Checked]:
    """The first policy of a name stays, in the order of the keys; later ones get an error."""
    first: dict[str, s.Header] = {}
    for key, one in checked.items():
        header = checker.work(key)[0].header
        if one.library or header is None:
            continue
        taken = first.setdefault(header.name.text, header)
        if taken is header:
            continue
        finding = diagnostic(
            "PS233",
            f"there is a policy `{header.name.text}` already",
            header.name.span,
            label="second policy of this name",
            help="pods could not say which of the two they mean: give one another name",
            related=(Label(taken.name.span, "the first, which stays active"),),
        )
        checked[key] = replace(one, program=None, diagnostics=(finding, *one.diagnostics))
    return checked
