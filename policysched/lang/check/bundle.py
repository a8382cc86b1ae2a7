"""The result of checking a bundle: the keys of a ConfigMap, or the files of a directory."""

from collections.abc import Mapping
from dataclasses import dataclass

from policysched.lang.ir.program import Program
from policysched.text import Diagnostic


@dataclass(frozen=True, slots=True)
class CheckedSource:
    """One key. `program` is None for a library and if any diagnostic is an error; `policy_name` is set
    nevertheless."""

    key: str
    is_library: bool
    program: Program | None
    diagnostics: tuple[Diagnostic, ...]
    policy_name: str | None = None

    @property
    def sha256(self) -> str | None:
        return None if self.program is None else self.program.sha256


@dataclass(frozen=True, slots=True)
class PolicyBundle:
    """Every key, in sorted order."""

    sources: Mapping[str, CheckedSource]
