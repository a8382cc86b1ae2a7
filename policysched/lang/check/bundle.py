"""Several policy texts that belong together: the keys of a ConfigMap, or the files of a folder."""

from collections.abc import Mapping
from dataclasses import dataclass

from policysched.lang.check.parameter_values import NO_PARAMETER_VALUES, ParameterValuesByPolicy
from policysched.lang.ir.program import Program
from policysched.text import Diagnostic, Source


@dataclass(frozen=True, slots=True)
class CheckedSource:
    """One key. `program` is None for a library, and where any diagnostic is an error; `policy_name` is the name in the header
    all the same."""

    key: str
    is_library: bool
    program: Program | None
    diagnostics: tuple[Diagnostic, ...]
    policy_name: str | None = None


@dataclass(frozen=True, slots=True)
class PolicyBundle:
    """Every key, in sorted order. Two policies of one name are an error at the second."""

    sources: Mapping[str, CheckedSource]


def check_bundle(
    sources: Mapping[str, Source], given: ParameterValuesByPolicy = NO_PARAMETER_VALUES
) -> PolicyBundle:
    """Parse and check each text; `include "other.policy"` is looked up among the keys, values of parameters in `given`
    by the name of the policy. Never raises for bad input."""
    from policysched.lang.check import check_sources

    return check_sources(sources, given)
