"""The worker process behind `explain` on a running scheduler, for gangs: the proposals that `explain` makes from files.

Whether a gang starts with a change is decided by placing it on the changed cluster, which takes too long for the main loop.
"""

from typing import Any, BinaryIO

from policysched.from_files.inputs import with_assumed_load
from policysched.from_files.worker import ExplainJob, read_cluster, serve
from policysched.lang.check import check_text
from policysched.offline.pod_explanation import explain_pod

_COST_UNLIMITED = 2**62
"""The limit held when the policy was loaded."""


def explained(job: ExplainJob, stream: BinaryIO) -> dict[str, Any]:
    """`would_fit`, as in `schemas/explain.json`."""
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
    )
    return {"would_fit": [proposal.record() for proposal in result.proposals]}


if __name__ == "__main__":
    serve(ExplainJob, explained)
