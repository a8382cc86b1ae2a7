"""Several policy texts that belong together: the keys of a ConfigMap, or the files of a folder."""

from collections.abc import Mapping
from dataclasses import dataclass

from policysched.lang.program import Program
from policysched.text import Diagnostic, Source


@dataclass(frozen=True, slots=True)
class Checked:
    """One key. `program` is None for a library, and where any diagnostic is an error."""

    key: str
    library: bool
    program: Program | None
    diagnostics: tuple[Diagnostic, ...]


@dataclass(frozen=True, slots=True)
class Bundle:
    """Every key, in sorted order. Two policies of one name are an error at the second."""

    checked: Mapping[str, Checked]


def check_bundle(sources: Mapping[str, Source]) -> Bundle:
    """Parse and check each text; `include "other.policy"` is looked up among the keys. Never raises for bad input."""
    from policysched.lang.check import check_sources

    return check_sources(sources)
