"""The last known good text of a policy as it is saved, and what is read back.

A policy of a team is saved with what its team wrote: a restart runs the expanded text if the operator's texts are the same,
and otherwise checks the team's text with the new ones (`daemon.team_policy_feed`).
"""

from dataclasses import asdict, replace

import orjson

from policysched.lang.check.bundle import CheckedSource
from policysched.lang.ir.program import Program, TeamSource

_TEAM_LINE = "# team "


def saved_form(program: Program) -> str:
    """The text to save: with a first line of JSON for a team's policy."""
    if program.team is None:
        return program.text
    return f"{_TEAM_LINE}{orjson.dumps(asdict(program.team)).decode()}\n{program.text}"


def is_of_team(saved: str) -> bool:
    """Whether a saved text is a team's."""
    return saved.startswith(_TEAM_LINE)


def with_saved_team(source: CheckedSource, saved: str) -> CheckedSource:
    """The checked source of a saved text with what its first line says."""
    if source.program is None or not is_of_team(saved):
        return source
    line = saved.partition("\n")[0].removeprefix(_TEAM_LINE)
    try:
        team = TeamSource(**orjson.loads(line))
    except (orjson.JSONDecodeError, TypeError):
        return source  # edited by hand: an operator's text
    if not all(
        isinstance(value, str) for value in (team.text, team.params, team.base_sha256, team.namespace)
    ):
        return source
    return replace(source, program=replace(source.program, team=team))
