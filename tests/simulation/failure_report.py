"""The report of a failed seed."""

from tests.simulation.world import Report


def failure(report: Report, lines: int = 40) -> str:
    """The violations, the last lines of the trace, and the command that replays the seed."""
    return "\n".join(
        (
            f"seed {report.seed} went wrong:",
            *(f"  {words}" for words in report.problems[:10]),
            f"its last {min(lines, len(report.trace))} lines:",
            *(f"  {line[:300]}" for line in report.trace[-lines:]),
            f"to play it again: .venv/bin/python -m tests.simulation --seed {report.seed} --trace",
        )
    )
