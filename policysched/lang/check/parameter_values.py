"""What is set for a policy's parameters from outside of its text: in the settings, a ConfigMap's key, a flag.

Whoever reads these places makes texts with spans of them and nothing more; what a text means depends on the type that
the policy declares, so the checker reads it. A value that cannot be used is an error at its own place.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from policysched.text import Diagnostic, Source, Span


@dataclass(frozen=True, slots=True)
class GivenValue:
    """A text, or for a list the texts of its elements. `place` names where it stands, for people."""

    text: str | tuple[str, ...]
    place: str
    span: Span


@dataclass(frozen=True, slots=True)
class GivenParameters:
    """For one policy. `problems`: what could not be read at all; with one of them the policy is refused."""

    values: Mapping[str, GivenValue] = field(default_factory=dict)
    problems: tuple[Diagnostic, ...] = ()

    def under(self, above: "GivenParameters") -> "GivenParameters":
        """Both, where `above` has the last word."""
        return GivenParameters({**self.values, **above.values}, (*self.problems, *above.problems))

    def sources(self) -> Iterator[Source]:
        """Where values or problems stand."""
        for value in self.values.values():
            yield value.span.source
        for problem in self.problems:
            if problem.span is not None:
                yield problem.span.source


Given = Mapping[str, GivenParameters]
"""By the name of the policy."""

NOTHING_GIVEN = GivenParameters()
NOBODY_GIVEN: Given = {}
EVERY_POLICY = "*"
"""No policy is called so: values for each policy that has such a parameter, and for no other."""


def given_to(policy: str, given: Given, declared: frozenset[str]) -> GivenParameters:
    """What was given to one policy, which declares these parameters."""
    to_all = given.get(EVERY_POLICY, NOTHING_GIVEN)
    fitting = {name: value for name, value in to_all.values.items() if name in declared}
    return given.get(policy, NOTHING_GIVEN).under(GivenParameters(fitting))


def laid_over(below: Given, above: Given) -> Given:
    """What is set in two places; `above` has the last word on each parameter."""
    both = dict(below)
    for policy, given in above.items():
        both[policy] = both[policy].under(given) if policy in both else given
    return both
