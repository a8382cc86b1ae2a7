"""Parameter values that are set outside the policy: in the settings, a ConfigMap key or a flag.

The loaders produce texts with spans. The checker parses them, because their meaning depends on the type
that the policy declares. An invalid value is an error at its location.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from policysched.text import Diagnostic, Source, Span


@dataclass(frozen=True, slots=True)
class ParameterValue:
    """A text, or the texts of the elements of a list. `location` is its human-readable origin. `by_operator`: from the
    settings or a flag, which may also set a locked parameter."""

    text: str | tuple[str, ...]
    location: str
    span: Span
    by_operator: bool = False


@dataclass(frozen=True, slots=True)
class ParameterValues:
    """The values for one policy. `problems` are unreadable values; any of them rejects the policy."""

    values: Mapping[str, ParameterValue] = field(default_factory=dict)
    problems: tuple[Diagnostic, ...] = ()

    def overridden_by(self, above: "ParameterValues") -> "ParameterValues":
        """The union of both; `above` takes precedence."""
        return ParameterValues({**self.values, **above.values}, (*self.problems, *above.problems))

    def sources(self) -> Iterator[Source]:
        """The sources of values and problems."""
        for value in self.values.values():
            yield value.span.source
        for problem in self.problems:
            if problem.span is not None:
                yield problem.span.source


ParameterValuesByPolicy = Mapping[str, ParameterValues]
"""By policy name."""

EMPTY_PARAMETER_VALUES = ParameterValues()
NO_PARAMETER_VALUES: ParameterValuesByPolicy = {}
ALL_POLICIES = "*"
"""Not a policy name: values for every policy that declares such a parameter."""


def parameter_values_for(
    policy: str, given: ParameterValuesByPolicy, declared: frozenset[str]
) -> ParameterValues:
    """The values for one policy, which declares these parameters."""
    for_all = given.get(ALL_POLICIES, EMPTY_PARAMETER_VALUES)
    fitting = {name: value for name, value in for_all.values.items() if name in declared}
    return given.get(policy, EMPTY_PARAMETER_VALUES).overridden_by(ParameterValues(fitting))


def merge_parameter_values(
    below: ParameterValuesByPolicy, above: ParameterValuesByPolicy
) -> ParameterValuesByPolicy:
    """The union of two sets of values; `above` takes precedence for each parameter."""
    merged = dict(below)
    for policy, given in above.items():
        merged[policy] = merged[policy].overridden_by(given) if policy in merged else given
    return merged
