"""Vectorized evaluation: policies lowered to steps, nodes as columns, one pod against all nodes at
once.

    compile(program)             -> Plan, immutable: queue order, gangs, PreEnqueue, read set
    Evaluator(cache)             owns the columns of all policies
        .evaluate(plan, pod, ...)         -> Verdict
        .explain(plan, pod, ...)          -> PlacementExplanation, equal to the reference's
        .evaluate_nodes(plan, pod, nodes) -> NodeSubsetVerdict, for only these nodes
        .dry_run(plan, pod, ...)          -> DryRun, where the pod fits without certain pods
        .overlay()                        -> Overlay, a hypothetical cluster
    listing(plan)                -> Listing, what `policysched show` prints

Only this package and the kernels of built-ins use NumPy. The package does no I/O and has no clock.
It does not import the reference implementation (`tests/reference`), which defines what is right.
"""

from policysched.evaluate.columns.columns import text_hash
from policysched.evaluate.columns.not_counted import NotCounted
from policysched.evaluate.columns.overlay import Overlay
from policysched.evaluate.decision_cost import DECISION_BUDGET_DEFAULT
from policysched.evaluate.dry_run import DryRun
from policysched.evaluate.evaluator import Evaluator
from policysched.evaluate.kernel import shortfall_reason
from policysched.evaluate.plan.gang_terms import GangTerms
from policysched.evaluate.plan.listing import Listing, listing
from policysched.evaluate.plan.plan import Plan, compile_lazily
from policysched.evaluate.plan.plan import compile_program as compile  # noqa: A004  # the seam's word
from policysched.evaluate.plan.victims import VictimChange, VictimOrder, VictimPredicate
from policysched.evaluate.topology_domains import (
    NodeSelection,
    OneNode,
    RemainingNodes,
    TopologyDomain,
    nested_domain,
)
from policysched.evaluate.verdict import PrebindRequirements, Verdict, VolumesToBind

__all__ = [
    "DECISION_BUDGET_DEFAULT",
    "DryRun",
    "Evaluator",
    "GangTerms",
    "Listing",
    "NodeSelection",
    "NotCounted",
    "OneNode",
    "Overlay",
    "Plan",
    "PrebindRequirements",
    "RemainingNodes",
    "TopologyDomain",
    "Verdict",
    "VictimChange",
    "VictimOrder",
    "VictimPredicate",
    "VolumesToBind",
    "compile",
    "compile_lazily",
    "listing",
    "nested_domain",
    "shortfall_reason",
    "text_hash",
]
