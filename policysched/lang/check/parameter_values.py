"""What is set for a policy's parameters from outside of its text: in the settings, a ConfigMap's key, a flag.

Whoever reads these places makes texts with spans of them and nothing more; what a text means depends on the type that
the policy declares, so the checker reads it. A value that cannot be used is an error at its own place.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from policysched.text import Diagnostic, Source, Span


@dataclass(frozen=True, slots=True)
class ParameterValue:
    """A text, or for a list the texts of its elements. `location` names where it stands, for people."""

    text: str | tuple[str, ...]
    location: str
    span: Span


@dataclass(frozen=True, slots=True)
class ParameterValues:
    """For one policy. `problems`: what could not be read at all; with one of them the policy is refused."""

    values: Mapping[str, ParameterValue] = field(default_factory=dict)
    problems: tuple[Diagnostic, ...] = ()

    def overridden_by(self, above: "ParameterValues") -> "ParameterValues":
        """Both, where `above` has the last word."""
        return ParameterValues({**self.values, **above.values}, (*self.problems, *above.problems))

    def sources(self) -> Iterator[Source]:
        """Where values or problems stand."""
        for value in self.values.values():
            yield value.span.source
        for problem in self.problems:
            if problem.span is not None:
                yield problem.span.source


ParameterValuesByPolicy = Mapping[str, ParameterValues]
"""By the name of the policy."""

EMPTY_PARAMETER_VALUES = ParameterValues()
NO_PARAMETER_VALUES: ParameterValuesByPolicy = {}
ALL_POLICIES = "*"
"""No policy is called so: values for each policy that has such a parameter, and for no other."""


def parameter_values_for(
    policy: str, given: ParameterValuesByPolicy, declared: frozenset[str]
) -> ParameterValues:
    """What was given to one policy, which declares these parameters."""
    to_all = given.get(ALL_POLICIES, EMPTY_PARAMETER_VALUES)
    fitting = {name: value for name, value in to_all.values.items() if name in declared}
    return given.get(policy, EMPTY_PARAMETER_VALUES).overridden_by(ParameterValues(fitting))


def merge_parameter_values(
    below: ParameterValuesByPolicy, above: ParameterValuesByPolicy
) -> ParameterValuesByPolicy:
    """What is set in two places; `above` has the last word on each parameter."""
    both = dict(below)
    for policy, given in above.items():
        both[policy] = both[policy].overridden_by(given) if policy in both else given
    return both
