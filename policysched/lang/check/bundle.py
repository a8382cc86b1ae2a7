"""Several policy texts that belong together: the keys of a ConfigMap, or the files of a folder."""

from collections.abc import Mapping
from dataclasses import dataclass

from policysched.lang.check.parameter_values import NOBODY_GIVEN, Given
from policysched.lang.ir.program import Program
from policysched.text import Diagnostic, Source


@dataclass(frozen=True, slots=True)
class Checked:
    """One key. `program` is None for a library, and where any diagnostic is an error; `policy` is the name in the header
    all the same."""

    key: str
    library: bool
    program: Program | None
    diagnostics: tuple[Diagnostic, ...]
    policy: str | None = None


@dataclass(frozen=True, slots=True)
class Bundle:
    """Every key, in sorted order. Two policies of one name are an error at the second."""

    checked: Mapping[str, Checked]


def check_bundle(sources: Mapping[str, Source], given: Given = NOBODY_GIVEN) -> Bundle:
    """Parse and check each text; `include "other.policy"` is looked up among the keys, values of parameters in `given`
    by the name of the policy. Never raises for bad input."""
    from policysched.lang.check import check_sources

    return check_sources(sources, given)
