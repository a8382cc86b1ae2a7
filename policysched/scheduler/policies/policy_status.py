"""The status of each policy, and of each key without one."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from policysched.text import Diagnostic
from policysched.text.abbreviate import abbreviate_names

PolicyPhase = Literal["active", "rejected", "last_known_good", "missing", "suspended", "removed"]
ReloadResult = Literal["ok", "unchanged", "parse", "type", "cost", "missing"]


@dataclass(frozen=True, slots=True)
class PolicyStatus:
    """One row of `/policy`: a policy, or a key that never had a valid one.

    `name` of such a key is that of its header, or None. `sha256` and `version` describe the active
    text, None if there is none. `diagnostics` describe the current text of the key.
    `last_success_ns` changes only when another text becomes active; None: not in this process.
    """

    name: str | None
    key: str | None
    version: int | None
    sha256: str | None
    phase: PolicyPhase
    diagnostics: tuple[Diagnostic, ...]
    since_ns: int
    last_success_ns: int | None


def suspension(statuses: Iterable[PolicyStatus]) -> str:
    """One line about suspended policies; empty without one."""
    names = [str(status.name) for status in statuses if status.phase == "suspended"]
    return (
        f"no text of {abbreviate_names(names)} can run; the condition of the pods has the reason"
        if names
        else ""
    )


def reload_result(code: str | None, *, missing: bool, changed: bool) -> ReloadResult:
    """The result of a reload; `code` is that of its first error."""
    match code and code[2:3]:
        case None:
            return "missing" if missing else "ok" if changed else "unchanged"
        case "0" | "1":
            return "parse"
        case "5":
            return "cost"
        case _:
            return "type"
