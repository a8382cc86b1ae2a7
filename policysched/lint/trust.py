"""Where a policy trusts what a tenant writes: labels and annotations of pods that decide an order, a gang, an exemption
from a filter, a quota or who is evicted.

Scores and what else a filter requires are left out: with them a pod chooses among nodes for itself, as with a
nodeSelector. A filter that counts pods by their labels is a quota, though, which a tenant evades with another label.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from policysched.lang.diagnostics.catalogue import make_diagnostic
from policysched.lang.ir.declarations import Input
from policysched.lang.ir.expr import Attr, CountPodsOnNode, Expr, InputRef, PodTotal
from policysched.lang.ir.expr_analysis import walk
from policysched.lang.ir.layers import AmendRule, SetRule
from policysched.lang.ir.program import Program
from policysched.lang.ir.rules import FilterRule
from policysched.text import Diagnostic, Source, Span

_TENANT_MAPS = ("labels", "annotations")
_PODS = ("pod", "other", "victim")


def trust_findings(program: Program, source: Source) -> Iterator[Diagnostic]:
    """A PS601 for each key and use. What an included text reads is reported at the beginning of `source`."""
    reported: set[tuple[str, str]] = set()
    for kind, use, expr in _trusting_expressions(program):
        for field, key, span in _keys_of_pods(expr, program.inputs):
            if (use, key) not in reported:
                reported.add((use, key))
                yield _finding(kind, use, field, key, span, source)


def _trusting_expressions(program: Program) -> Iterator[tuple[str, str, Expr]]:
    """The kind of trust, as in `deploy/admission/trusted-metadata`, the statement, and its expression."""
    for order_key in program.queue:
        yield "rank", "the order of the queue", order_key.value
    if program.gang is not None:
        gang = program.gang
        for expr in (gang.key, gang.minimum, gang.maximum, gang.timeout, gang.topology, gang.disruption):
            if expr is not None:
                yield "gang", "the gang", expr
    for quota in program.quotas.values():
        yield "quota", f"which entity of the quota `{quota.name}` a pod counts towards", quota.key
    for rule in program.rules.filters:
        if isinstance(rule, FilterRule):
            yield from _trusting_parts(rule.name, rule.when, rule.condition)
    for layer in program.layers:
        yield "exemption", f"whether the layer `{layer.name}` applies", layer.condition
        for change in layer.changes:
            match change:
                case SetRule(rule=FilterRule(name=name, when=when, condition=condition)):
                    yield from _trusting_parts(name, when, condition)
                case AmendRule(name=name, kind="filter", changes=changes):
                    new: dict[str, Any] = dict(changes)
                    yield from _trusting_parts(name, new.get("when"), new.get("condition"))
                case _:
                    pass
    if program.preemption.victims is not None:
        yield "exemption", "which pods may be evicted", program.preemption.victims
    for order_key in program.preemption.order:
        yield "exemption", "which pods are evicted first", order_key.value


def _trusting_parts(name: str, when: Expr | None, condition: Expr | None) -> Iterator[tuple[str, str, Expr]]:
    """Those of a filter."""
    if when is not None:
        yield "exemption", f"whether the filter `{name}` applies", when
    for part in () if condition is None else walk(condition):
        if isinstance(part, PodTotal | CountPodsOnNode) and part.where is not None:
            yield "quota", f"what the filter `{name}` counts", part.where


def _keys_of_pods(expr: Expr, inputs: Mapping[str, Input]) -> Iterator[tuple[str, str, Span]]:
    """`labels` or `annotations`, the key, and where it is read."""
    for part in walk(expr):
        match part:
            case Attr(owner=owner, path=(field, key), span=span) if owner in _PODS and field in _TENANT_MAPS:
                yield field, key, span
            case InputRef(name=name, span=span) if inputs[name].owner == "pod":
                field, source_key = inputs[name].source_map, inputs[name].source_key
                if field in _TENANT_MAPS and source_key is not None:
                    yield field, source_key, span
            case _:
                pass


def _finding(kind: str, use: str, field: str, key: str, span: Span, source: Source) -> Diagnostic:
    notes: tuple[str, ...] = ()
    if span.source is not source:
        notes = (f"in `{span.source.name}`, line {span.source.position(span.start).line}",)
        span = Span(source, 0, 0)
    return make_diagnostic(
        "PS601",
        f"{use} depends on the {field.removesuffix('s')} `{key}`, which the creator of a pod sets",
        span,
        label="written by tenants",
        help=f"list `{key}` as `{kind}` in deploy/admission/trusted-metadata: then only namespaces with the label "
        f"`trusted.policysched.dev/{kind}=allowed` may write it",
        notes=notes,
    )
