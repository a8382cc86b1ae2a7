"""Totals over the pods of a topology domain as a step: one number for each domain, gathered by row.

Also the fingerprints of what a rule reads of other rows than its own: these totals, and the traffic
within a domain.
"""

from collections.abc import Hashable

from policysched.evaluate.columns.column_kinds import DomainColumn
from policysched.evaluate.columns.interner import Interner
from policysched.evaluate.columns.pod_totals import PodTotalSpec
from policysched.evaluate.vector.elements import repeat_per_element
from policysched.evaluate.vector.machine import EvalFrame, Fingerprint, ValueVector, VectorMachine, VectorStep
from policysched.evaluate.vector.traffic import members_fingerprint
from policysched.lang.ir import expr as e
from policysched.lang.ir.expr_analysis import walk


def pod_total(machine: VectorMachine, expr: e.PodTotal) -> VectorStep:
    assert expr.topology_key is not None, f"`{expr.span.text}` is a leaf"
    spec, domain, key = (
        PodTotalSpec.of(expr, machine.program),
        DomainColumn(expr.topology_key),
        expr.topology_key,
    )
    floating = expr.floating

    def run(frame: EvalFrame) -> ValueVector:
        if frame.outer is not None:
            return repeat_per_element(run(frame.outer), frame)
        codes = frame.view.column(domain)
        domains = frame.view.codes.domains.get(key) or Interner[str]()  # no node has the label
        totals = frame.view.pod_totals(spec).totals(frame.context)
        return ValueVector(totals.table(domains, floating=floating)[codes], codes != 0)

    return run


def fingerprint_of_other_rows(machine: VectorMachine, *exprs: e.Expr | None) -> Fingerprint | None:
    """The fingerprint of what the expressions read of other rows than their own; None: they read none."""
    parts = list[Fingerprint]()
    for expr in exprs:
        for part in () if expr is None else walk(expr):
            match part:
                case e.GangTraffic(topology_key=str()):
                    parts.append(members_fingerprint(machine, part))
                case e.PodTotal(topology_key=str()):
                    parts.append(_totals_fingerprint(PodTotalSpec.of(part, machine.program)))
                case _:
                    pass
    return (lambda frame: tuple([part(frame) for part in parts])) if parts else None


def _totals_fingerprint(spec: PodTotalSpec) -> Fingerprint:
    def read(frame: EvalFrame) -> Hashable:
        return frame.view.topology_version, frame.view.pod_totals(spec).totals(frame.context).revision

    return read
