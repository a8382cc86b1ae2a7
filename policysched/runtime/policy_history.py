"""The texts that a policy had since this process started, for the page."""

import difflib
import itertools
from collections import deque
from dataclasses import dataclass
from typing import Any

from policysched.lang.ir.program import Program

_VERSIONS_MAX = 20


@dataclass(frozen=True, slots=True)
class _PolicyVersion:
    sha256: str
    seen_ns: int
    lines: tuple[str, ...]


class PolicyHistory:
    """The latest versions of each policy. Of texts that are active for less than the time between two observations, only
    the last is seen."""

    def __init__(self) -> None:
        self._versions: dict[str, deque[_PolicyVersion]] = {}

    def observe(self, name: str, program: Program, now_ns: int) -> None:
        """The program that runs now."""
        versions = self._versions.setdefault(name, deque(maxlen=_VERSIONS_MAX))
        if not versions or versions[-1].sha256 != program.sha256:
            # The formatted text with its includes: what the hash covers.
            versions.append(_PolicyVersion(program.sha256, now_ns, tuple(program.text.splitlines())))

    def of(self, name: str) -> list[dict[str, Any]]:
        """Newest first, each with the diff from the version before; the oldest has none."""
        versions = list(self._versions.get(name, ()))
        diffs: list[list[str]] = [[]]
        diffs += [
            list(difflib.unified_diff(old.lines, new.lines, lineterm="", n=2))[2:]
            for old, new in itertools.pairwise(versions)
        ]
        return [
            {"sha256": version.sha256, "seen_ms": version.seen_ns // 1_000_000, "diff": diff}
            for version, diff in zip(reversed(versions), reversed(diffs), strict=True)
        ]
