"""A policy made fast: programs lowered to steps, nodes held as columns, one pod against all nodes in a few vector operations.

    compile(program)             -> Plan, immutable: order, gangs, admission, read set
    Evaluator(cache)             owns the columns of all policies
        .evaluate(plan, pod, ...)   -> Verdict
        .explain(plan, pod, ...)    -> Explanation, equal to the oracle's
        .judge(plan, pod, among)    -> Judgement, of some nodes alone
        .dry_run(plan, pod, ...)    -> DryRun, where it would fit if others went
        .overlay()                  -> Overlay, a cluster that is not
    listing(plan)                -> Listing, what `policysched show` prints

NumPy lives here and nowhere else. The package does no I/O, has no clock, and does not know `oracle`, which says what is right.
"""

from policysched.evaluate.columns.columns import text_hash
from policysched.evaluate.columns.overlay import Overlay
from policysched.evaluate.compile.gang_terms import GangTerms
from policysched.evaluate.compile.listing import Listing, listing
from policysched.evaluate.compile.plan import Plan
from policysched.evaluate.compile.plan import compile_program as compile  # noqa: A004  # the seam's word
from policysched.evaluate.compile.victims import VictimPredicate
from policysched.evaluate.dry_run import DryRun
from policysched.evaluate.evaluator import Evaluator
from policysched.evaluate.topology_domains import TopologyDomain
from policysched.evaluate.verdict import PrebindRequirements, Verdict, VolumesToBind

__all__ = [
    "DryRun",
    "Evaluator",
    "GangTerms",
    "Listing",
    "Overlay",
    "Plan",
    "PrebindRequirements",
    "TopologyDomain",
    "Verdict",
    "VictimPredicate",
    "VolumesToBind",
    "compile",
    "listing",
    "text_hash",
]
