"""Totals over the pods of a topology domain: one number for each domain, and what is computed from them alone.

`sum(...) + pod.requests.cpu <= 1000` differs by domain, so it is computed for each domain and then gathered by row: there
are fewer domains than rows, and as long as it is the same for every domain, a placement changes no row.
Also the fingerprints of what a rule reads of other rows than its own: these values, and the traffic
within a domain.
"""

from collections.abc import Hashable, Iterator
from functools import lru_cache

import numpy as np

from policysched.evaluate.columns.column_kinds import DomainColumn
from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.interner import Interner
from policysched.evaluate.columns.pod_query import PodTotalSpec
from policysched.evaluate.vector.elements import repeat_per_element
from policysched.evaluate.vector.machine import (
    EvalFrame,
    Fingerprint,
    KnownMask,
    StepBuilder,
    ValueVector,
    VectorMachine,
    VectorStep,
)
from policysched.evaluate.vector.traffic import members_fingerprint
from policysched.lang.ir import expr as e
from policysched.lang.ir.expr_analysis import children


def pod_total(machine: VectorMachine, expr: e.PodTotal) -> VectorStep:
    assert expr.topology_key is not None, f"`{expr.span.text}` is a leaf"
    spec, key, floating = PodTotalSpec.of(expr, machine.program), expr.topology_key, expr.floating
    column = DomainColumn(key)

    def run(frame: EvalFrame) -> ValueVector:
        domains = _domains(frame, column)
        table = frame.view.pod_totals(spec).totals(frame.context).table(domains, floating=floating)
        return ValueVector(table, _has_label(len(table)))

    return _gathered(run, key)


def by_domain(build: StepBuilder) -> StepBuilder:
    """Steps of one class of expression, each over domains where the expression differs by domain alone."""

    def build_step(machine: VectorMachine, expr: e.Expr) -> VectorStep:
        step, key = build(machine, expr), machine.topology_key(expr)
        return step if key is None else _gathered(step, key)

    return build_step


def _gathered(step: VectorStep, key: str) -> VectorStep:
    """Run the step over domains, and give each row the value of its domain."""

    column = DomainColumn(key)

    def run(frame: EvalFrame) -> ValueVector:
        if frame.topology_key is not None:
            return step(frame)
        if frame.outer is not None:
            return repeat_per_element(run(frame.outer), frame)
        codes, vector = frame.view.column(column), step(_over_domains(frame, key))
        return ValueVector(_by_row(vector.values, codes), _by_row(vector.known, codes))

    return run


@lru_cache(maxsize=64)
def _has_label(size: int) -> Array:
    """bool by domain: all but the first, which are the nodes without the label."""
    mask: Array = np.arange(size) != 0
    mask.flags.writeable = False
    return mask


def _by_row(values: KnownMask, codes: Array) -> Array:
    """Domain values by row. A value that all domains share is not expanded."""
    array = np.asarray(values)
    return array if array.ndim == 0 else array.take(codes, mode="clip")


def _over_domains(frame: EvalFrame, key: str) -> EvalFrame:
    """The run over the domains of the label, shared by the steps of the frame."""
    domains = frame.by_domain.get(key)
    if domains is None:
        domains = frame.by_domain[key] = EvalFrame(
            frame.view, frame.context, frame.leaf_values, topology_key=key
        )
    return domains


def _domains(frame: EvalFrame, column: DomainColumn) -> Interner[str]:
    frame.view.column(column)  # its codes are those of the domains
    return frame.view.codes.domains.get(column.key) or Interner[str]()  # no node has the label


# ── fingerprints ─────────────────────────────────────────────────────────────────────────────────────────────────────


def fingerprint_of_other_rows(machine: VectorMachine, *exprs: e.Expr | None) -> Fingerprint | None:
    """The fingerprint of what the expressions read of other rows than their own; None: they read none."""
    parts = [part for expr in exprs if expr is not None for part in _fingerprints(machine, expr)]
    return (lambda frame: tuple([part(frame) for part in parts])) if parts else None


def _fingerprints(machine: VectorMachine, expr: e.Expr) -> Iterator[Fingerprint]:
    key, step = machine.topology_key(expr), machine.existing_step(expr)
    match expr:
        case e.GangTraffic(topology_key=str()):
            yield members_fingerprint(machine, expr)
        case e.PodTotal(topology_key=str()):
            yield _totals_fingerprint(PodTotalSpec.of(expr, machine.program))
        case _ if key is not None and step is not None:
            yield _domains_fingerprint(machine, step, key)
        case _:
            for child in children(expr):
                yield from _fingerprints(machine, child)


def _totals_fingerprint(spec: PodTotalSpec) -> Fingerprint:
    def read(frame: EvalFrame) -> Hashable:
        return frame.view.topology_version, frame.view.pod_totals(spec).totals(frame.context).revision

    return read


def _domains_fingerprint(machine: VectorMachine, step: int, key: str) -> Fingerprint:
    """The values themselves: a comparison of a total is the same after most placements."""

    def read(frame: EvalFrame) -> Hashable:
        vector = machine.run(_over_domains(frame, key), step)
        return frame.view.topology_version, vector.values.tobytes(), np.asarray(vector.known).tobytes()

    return read
