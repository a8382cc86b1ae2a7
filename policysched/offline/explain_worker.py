"""The worker process behind `explain` on a running scheduler, for gangs: the proposals that `explain` makes from files.

Whether a gang starts with a change is decided by placing it on the changed cluster, which takes too long for the main loop.
"""

import time
from typing import Any, BinaryIO

from policysched.from_files.inputs import with_assumed_load
from policysched.from_files.worker import ExplainJob, read_cluster, serve
from policysched.lang.check import check_text
from policysched.offline.pod_explanation import explain_pod

_WITHOUT_LIMIT = "`policysched explain --policy FILE --cluster FILE` has no time limit"
_COST_UNLIMITED = 2**62
"""The limit held when the policy was loaded."""


def explained(job: ExplainJob, stream: BinaryIO) -> dict[str, Any]:
    """`would_fit` and `notes`, as in `schemas/explain.json`."""
    deadline_s = time.monotonic() + job.search_max_s
    checked = check_text(job.text, f"{job.policy}.policy", cost_max=_COST_UNLIMITED)
    assert checked.program is not None, checked.diagnostics
    result = explain_pod(
        checked.program,
        read_cluster(stream),
        job.pod,
        samples=with_assumed_load(job.samples),
        saved_states=job.states,
        permissions=job.permissions,
        now_ns=job.now_ns,
        deadline_s=deadline_s,
    )
    notes = [] if result.not_tried is None else [f"{result.not_tried}; {_WITHOUT_LIMIT}"]
    return {"would_fit": [proposal.record() for proposal in result.proposals], "notes": notes}


if __name__ == "__main__":
    serve(ExplainJob, explained)
