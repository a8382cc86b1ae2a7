"""The worker process behind the page's playground: checks a changed policy and says which pods would move.

It simulates at a lower priority. A check is short, and a user waits for it.
"""

from dataclasses import replace
from typing import Any, BinaryIO

from policysched.daemon.policy_checker import check_texts
from policysched.from_files.policy_try import PolicyTry
from policysched.from_files.worker import read_cluster, serve
from policysched.lang.check.bundle import CheckedSource
from policysched.lang.ir.program import Program
from policysched.text import Diagnostic

SIMULATIONS_MAX = 16
"""By which the causes are found."""
ROWS_MAX = 500


def tried(job: PolicyTry, stream: BinaryIO) -> dict[str, Any]:
    """`diagnostics` of the changed text; `comparison` with the running one, unless the text has errors."""
    changed = _checked(job, job.text)
    answer: dict[str, Any] = {
        "diagnostics": [_diagnostic(diagnostic, job) for diagnostic in changed.diagnostics],
        "comparison": None,
    }
    if not job.simulates or changed.program is None:
        return answer
    running = _checked(job, job.running).program
    if running is None:
        return answer | {"failure": "the running text has errors with the libraries of the ConfigMap"}
    return answer | {"comparison": _compared(job, running, changed.program, stream)}


def _checked(job: PolicyTry, text: str) -> CheckedSource:
    bundle = check_texts({**job.texts, job.key: text}, job.location, job.cost_max)
    return bundle.sources[job.key]


def _diagnostic(diagnostic: Diagnostic, job: PolicyTry) -> dict[str, Any]:
    """The place is in the changed text; without `line` it is elsewhere, and `message` says where."""
    row: dict[str, Any] = {
        "code": diagnostic.code,
        "severity": diagnostic.severity.name.lower(),
        "help": diagnostic.help,
    }
    message, span = diagnostic.message, diagnostic.span
    if span is None:
        return row | {"message": message}
    start = span.source.position(span.start)
    if not span.source.name.endswith(f" key {job.key}"):
        return row | {"message": f"{span.source.name}:{start.line}: {message}"}
    return row | {"message": message, "line": start.line, "start": span.start, "end": span.end}


def _compared(job: PolicyTry, old: Program, new: Program, stream: BinaryIO) -> dict[str, Any]:
    from policysched.comparison.comparison import compare
    from policysched.comparison.report_texts import (
        KIND_WORDS,
        before_and_after_texts,
        cause_text,
        headline,
        kinds_text,
    )
    from policysched.comparison.runner import ComparedCluster
    from policysched.from_files.inputs import PresentInputs
    from policysched.from_files.simulate import with_placed_pods_pending

    files, again = read_cluster(stream), 0
    if job.placed_max:
        files, again = with_placed_pods_pending(files, job.policy, job.placed_max)

    def present_of(program: Program) -> PresentInputs:
        samples = {name: samples for name, samples in job.samples.items() if name in program.metrics}
        return PresentInputs(job.now_ns, samples, job.states, [])

    cluster = ComparedCluster(files, "named", job.now_ns, present_of, job.permissions, workers=1)
    renamed = new if new.name == old.name else replace(new, name=old.name)
    record = compare(old, renamed, cluster, runs_max=SIMULATIONS_MAX).record()
    rows = [
        {
            "namespace": pod["pod"].partition("/")[0],
            "pod": pod["pod"],
            "change": KIND_WORDS[pod["change"]],
            "before": before_and_after_texts(pod)[0],
            "after": before_and_after_texts(pod)[1],
            "cause": cause_text(record, pod["causes"]).replace(f"{job.key}:", "line "),
            "message": pod["after"]["message"] or "",
        }
        for pod in record["changed_pods"][:ROWS_MAX]
    ]
    return {
        "headline": headline(record),
        "kinds": kinds_text(record["counts"]),
        "decided": record["pods"],
        "placed_again": again,
        "pods": rows,
        "omitted": max(0, len(record["changed_pods"]) - ROWS_MAX),
    }


if __name__ == "__main__":
    serve(PolicyTry, tried, is_long=lambda job: job.simulates)
