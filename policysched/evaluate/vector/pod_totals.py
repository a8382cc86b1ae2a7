"""Totals over the pods of a topology domain: one number for each domain, and what is computed from them alone.

`sum(...) + pod.requests.cpu <= 1000` differs by domain, so it is computed for each domain and then gathered by row: there
are fewer domains than rows, and as long as it is the same for every domain, a placement changes no row.
Also the fingerprints of what a rule reads of other rows than its own: these values, and the traffic
within a domain.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from operator import is_

import numpy as np

from policysched.evaluate.columns.column_kinds import DomainColumn
from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.interner import UNKNOWN, Interner
from policysched.evaluate.columns.pod_query import PodTotalSpec
from policysched.evaluate.columns.pod_totals import Domain, DomainTotals
from policysched.evaluate.columns.view import View
from policysched.evaluate.scalar.compiler import compile_scalar
from policysched.evaluate.scalar.eval_context import (
    EvalContext,
    EvalValue,
    ExprDeclarations,
    PodCounter,
    ScalarFunction,
)
from policysched.evaluate.vector.elements import once_per_node
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
from policysched.lang.ir.arithmetic import rounded_total
from policysched.lang.ir.expr_analysis import children, walk

_DOMAINS_ONE_BY_ONE_MAX = 16
"""Beyond that all domains at once are faster."""
_KNOWN_VALUES_MAX = 128


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
        if key is None:
            return step
        values = _DomainValues(machine, expr, step, key)
        machine.domain_fingerprints[expr] = values.fingerprint
        return _gathered(step, key, values)

    return build_step


def _gathered(step: VectorStep, key: str, kept: "_DomainValues | None" = None) -> VectorStep:
    """Run the step over domains, or take the values that are `kept`, and give each row the value of its domain."""

    column = DomainColumn(key)

    def run(frame: EvalFrame) -> ValueVector:
        if frame.topology_key is not None:
            return step(frame)
        vector = step(_over_domains(frame, key)) if kept is None else kept.vector(frame)
        codes = frame.view.column(column)
        return ValueVector(_by_row(vector.values, codes), _by_row(vector.known, codes))

    return once_per_node(run)


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


class OtherRows:
    """What expressions read of other rows than their own. A call returns the fingerprint."""

    def __init__(
        self, machine: VectorMachine, exprs: Sequence[e.Expr], values: tuple[Fingerprint, ...]
    ) -> None:
        self._machine, self._exprs, self._values = machine, exprs, values

    @cached_property
    def _totals(self) -> tuple[Fingerprint, ...] | None:
        """Of the totals that they read; None: they read more than totals. Few policies have nominated pods beside them."""
        return _totals_read(self._machine, self._exprs)

    def __call__(self, frame: EvalFrame) -> Hashable:
        return tuple([value(frame) for value in self._values])

    def counts_no_more(self, frame: EvalFrame, base: EvalFrame) -> bool:
        """Whether none of the pods that the frame has beside those of `base` counts. Equal values do not tell: -1 and 1 may have
        been added."""
        return self._totals is not None and all(total(frame) == total(base) for total in self._totals)


def fingerprint_of_other_rows(machine: VectorMachine, *exprs: e.Expr | None) -> OtherRows | None:
    """None: the expressions read no other rows."""
    given = [expr for expr in exprs if expr is not None]
    values = tuple([value for expr in given for value in _fingerprints(machine, expr)])
    return OtherRows(machine, given, values) if values else None


def _totals_read(machine: VectorMachine, exprs: Sequence[e.Expr]) -> tuple[Fingerprint, ...] | None:
    pending, visited, totals = list(exprs), {id(expr) for expr in exprs}, list[Fingerprint]()
    while pending:
        part = pending.pop()
        if isinstance(part, e.GangTraffic):
            return None
        if isinstance(part, e.PodTotal) and part.topology_key is not None:
            totals.append(_totals_fingerprint(PodTotalSpec.of(part, machine.program)))
        for child in children(part):
            if id(child) not in visited:
                visited.add(id(child))
                pending.append(child)
    return tuple(totals)


def _fingerprints(machine: VectorMachine, expr: e.Expr) -> Iterator[Fingerprint]:
    """Of the outermost parts that read other rows. A shared part, such as every use of a `let`, is visited once."""
    pending, visited = [expr], {id(expr)}
    while pending:
        part = pending.pop()
        of_domains = machine.domain_fingerprints.get(part)
        match part:
            case e.GangTraffic(topology_key=str()):
                yield members_fingerprint(machine, part)
            case e.PodTotal(topology_key=str()):
                yield _totals_fingerprint(PodTotalSpec.of(part, machine.program))
            case _ if of_domains is not None:
                yield of_domains
            case _:
                for child in reversed(children(part)):
                    if id(child) not in visited:
                        visited.add(id(child))
                        pending.append(child)


def _totals_fingerprint(spec: PodTotalSpec) -> Fingerprint:
    def read(frame: EvalFrame) -> Hashable:
        return frame.view.topology_version, frame.view.pod_totals(spec).totals(frame.context).revision

    return read


@dataclass(slots=True)
class _KnownValues:
    """The values by domain, of these totals up to these positions; `listed` has them as scalar values. `context` reads the same
    leaves as every pod that shares it."""

    topology_version: int
    totals: Sequence[DomainTotals]
    positions: list[int]
    domains: Interner[str]
    vector: ValueVector
    listed: Sequence[EvalValue]
    fingerprint: Hashable
    counter: "_DomainCounter"
    context: EvalContext

    def follow(self, value_of: ScalarFunction, totals: Sequence[DomainTotals], topology_version: int) -> bool:
        """Whether the values are the same with what changed since. False also if that is not known any more."""
        if topology_version != self.topology_version or not all(map(is_, totals, self.totals)):
            return False
        for index, total in enumerate(totals):
            changed = total.changed_since(self.positions[index])
            if changed is None or len(changed) > _DOMAINS_ONE_BY_ONE_MAX:
                return False
            for domain in changed:
                code = UNKNOWN if domain is None else self.domains.find(domain)
                self.counter.domain = domain
                # A domain without a node decides nothing.
                if code >= len(self.listed) - 1:
                    return False
                if code != UNKNOWN and value_of(self.context) != self.listed[1 + code]:
                    return False
        self.positions = [total.position for total in totals]
        return True


@dataclass(slots=True)
class _DomainCounter:
    """Totals of one domain after the other, without a node."""

    cluster: PodCounter | None
    totals: Mapping[int, DomainTotals]
    domain: Domain = None

    def total(self, expr: e.PodTotal, program: ExprDeclarations, context: EvalContext) -> EvalValue:
        totals = self.totals.get(id(expr))
        if totals is not None:
            return rounded_total(totals.by_domain.get(self.domain, 0), floating=expr.floating)
        assert self.cluster is not None, f"the context has no counter for `{expr.span.text}`"
        return self.cluster.total(expr, program, context)

    def next_change_ns(self, expr: e.PodTotal, program: ExprDeclarations, context: EvalContext) -> int | None:
        raise AssertionError("only values are read")


class _DomainValues:
    """The values by domain of an expression that differs by domain alone. A comparison of a total is the same after most
    placements. So pods that read the same totals share the values, and they are computed again only for the domains
    whose totals changed, unless one of these differs."""

    def __init__(self, machine: VectorMachine, expr: e.Expr, step: VectorStep, key: str) -> None:
        self._expr, self._step, self._key = expr, step, key
        self._program, self._leaf_by_expr = machine.program, machine.leaf_by_expr
        self._column = DomainColumn(key)
        self._known: dict[Hashable, _KnownValues] = {}
        self._latest: tuple[View, EvalContext, _KnownValues] | None = None

    def fingerprint(self, frame: EvalFrame) -> Hashable:
        """The values themselves."""
        if frame.view.is_hypothetical:
            return _fingerprint_of(self._computed(frame), frame)
        return self._up_to_date(frame).fingerprint

    def vector(self, frame: EvalFrame) -> ValueVector:
        """Read-only."""
        return self._computed(frame) if frame.view.is_hypothetical else self._up_to_date(frame).vector

    def _computed(self, frame: EvalFrame) -> ValueVector:
        """Of a hypothetical view this is all: its totals are not read again, and must not stay in memory."""
        return self._step(_over_domains(frame, self._key))

    # Compiled when a rule first evaluates the expression itself, and not only as a part of another one.

    @cached_property
    def _totals_read(self) -> list[tuple[e.PodTotal, PodTotalSpec]]:
        return [
            (part, PodTotalSpec.of(part, self._program))
            for part in walk(self._expr)
            if isinstance(part, e.PodTotal) and part.topology_key is not None
        ]

    @cached_property
    def _leaves(self) -> list[int]:
        leaves = self._leaf_by_expr
        return [index for part in walk(self._expr) if (index := leaves.get(part)) is not None]

    @cached_property
    def _value_of(self) -> ScalarFunction:
        return compile_scalar(self._expr, self._program)

    def _up_to_date(self, frame: EvalFrame) -> _KnownValues:
        """A new evaluation asks twice on one view: for the rows, and for the fingerprint."""
        latest = self._latest
        if latest is not None and latest[0] is frame.view and latest[1] is frame.context:
            return latest[2]
        known = self._look_up(frame)
        self._latest = frame.view, frame.context, known
        return known

    def _look_up(self, frame: EvalFrame) -> _KnownValues:
        view, context = frame.view, frame.context
        totals = [view.pod_totals(spec).totals(context) for _, spec in self._totals_read]
        key = (*[frame.leaf_values[index] for index in self._leaves], *map(id, totals))
        known = self._known.get(key)
        if known is not None and known.follow(self._value_of, totals, view.topology_version):
            return known
        computed, domains = self._computed(frame), _domains(frame, self._column)
        vector = ValueVector(computed.values.copy(), computed.known)  # a total's own table would change
        if len(self._known) >= _KNOWN_VALUES_MAX:
            self._known.clear()
        by_expr = {id(part): total for (part, _), total in zip(self._totals_read, totals, strict=True)}
        counter = _DomainCounter(context.pod_counter, by_expr)
        known = self._known[key] = _KnownValues(
            view.topology_version,
            totals,
            [total.position for total in totals],
            domains,
            vector,
            _listed(vector, 1 + len(domains)),
            _fingerprint_of(vector, frame),
            counter,
            replace(context, pod_counter=counter),
        )
        return known


def _fingerprint_of(vector: ValueVector, frame: EvalFrame) -> Hashable:
    return frame.view.topology_version, vector.values.tobytes(), np.asarray(vector.known).tobytes()


def _listed(vector: ValueVector, count: int) -> list[EvalValue]:
    """The value of each domain; None: missing."""
    values: list[EvalValue] = np.broadcast_to(vector.values, (count,)).tolist()
    known: list[bool] = np.broadcast_to(np.asarray(vector.known), (count,)).tolist()
    return [value if is_known else None for value, is_known in zip(values, known, strict=True)]
