"""The worker process behind the page's playground: checks a changed policy and says which pods would move.

Reads pickles from stdin: a `PolicyTry`, then objects of the cluster as (field of `ClusterFiles`, objects), and None at the end.
Writes one JSON document to stdout. The limits of `from_files.policy_try` hold for this process alone, and it simulates
at a lower priority, so that decisions come first.
"""

import contextlib
import os
import pickle
import resource
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from policysched.daemon.policy_checker import check_texts
from policysched.from_files.policy_try import CPU_MAX_S, MEMORY_MAX_BYTES, PolicyTry
from policysched.lang.check.bundle import CheckedSource
from policysched.lang.ir.program import Program
from policysched.text import Diagnostic

SIMULATIONS_MAX = 16
"""By which the causes are found."""
ROWS_MAX = 500
_NICE = 5
"""While it simulates. A check is short, and somebody waits for it."""
_CGROUP = Path("/sys/fs/cgroup")


def main() -> None:
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_MAX_S, CPU_MAX_S + 1))
        memory_max = memory_max_bytes()
        resource.setrlimit(resource.RLIMIT_AS, (memory_max, memory_max))
    stream = sys.stdin.buffer
    try:
        job = pickle.load(stream)  # of the scheduler, over a private pipe
    except EOFError:
        return
    assert isinstance(job, PolicyTry), f"the job is {type(job)}"
    if job.simulates:
        os.nice(_NICE)
    sys.stdout.buffer.write(orjson.dumps(tried(job, stream)))


def memory_max_bytes() -> int:
    """At most what the container has left: beyond that the kernel kills the scheduler as well."""
    try:
        used = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
        cached = int(used["active_file"]) + int(used["inactive_file"])
        needed = int((_CGROUP / "memory.current").read_text()) - cached
        left = int((_CGROUP / "memory.max").read_text()) - needed
    except (OSError, KeyError, ValueError):  # no container with cgroup v2, or one without a limit
        return MEMORY_MAX_BYTES
    return max(0, min(MEMORY_MAX_BYTES, left))


def tried(job: PolicyTry, stream: BinaryIO) -> dict[str, Any]:
    """`diagnostics` of the changed text; `comparison` with the running one, unless the text has errors."""
    changed = _checked(job, job.text)
    answer: dict[str, Any] = {
        "diagnostics": [_diagnostic(found, job) for found in changed.diagnostics],
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


def _diagnostic(found: Diagnostic, job: PolicyTry) -> dict[str, Any]:
    """The place is in the changed text; without `line` it is elsewhere, and `message` says where."""
    row: dict[str, Any] = {"code": found.code, "severity": found.severity.name.lower(), "help": found.help}
    message, span = found.message, found.span
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
    from policysched.from_files.cluster_files import ClusterFiles
    from policysched.from_files.inputs import PresentInputs
    from policysched.from_files.simulate import with_placed_pods_pending

    files = ClusterFiles()
    while (part := pickle.load(stream)) is not None:
        name, objects = part
        getattr(files, name).extend(objects)
    again = 0
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
    main()
