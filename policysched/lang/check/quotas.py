"""`quota NAME by E within PARENT { "entity" { cpu = 40 borrow 20 } others { cpu = 2 } }`."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from policysched.lang.check.attributes import warn_unknown_resource
from policysched.lang.check.constants import check_constant
from policysched.lang.check.expressions import check_expression_as
from policysched.lang.check.presence import check_always_present
from policysched.lang.check.scope import (
    QUOTA_KEY,
    DeclaredQuota,
    Scope,
    declared_here,
    did_you_mean,
    join_alternatives,
)
from policysched.lang.ir.attributes import resource_type
from policysched.lang.ir.constant_folding import fold_constants
from policysched.lang.ir.quotas import EntityPath, QuotaLimit, QuotaRow, QuotaSpec
from policysched.lang.parse.name_length import name_too_long
from policysched.lang.syntax import tree as s
from policysched.lang.types.kinds import STRING, Type
from policysched.lang.types.units import format_value
from policysched.text import Span

_AMOUNT_MAX = 2**60
"""More than any cluster has; sums of amounts stay within 64 bits."""

_NAME_CHARACTERS_MAX = 317
"""As for the key of a label: a prefix of 253 characters, a slash and 63."""

_KUBERNETES_NAMES = ("cpu", "memory", "pods")


@dataclass(frozen=True, slots=True)
class _CheckedRow:
    row: QuotaRow
    node: s.QuotaRowDecl


def declare_quotas(scope: Scope, nodes: Sequence[s.QuotaDecl]) -> None:
    """All `quota` statements, in order. Resources are declared already."""
    for node in nodes:
        name = node.name.text
        declared = scope.quotas.get(name)
        if declared is not None:
            scope.report(
                "PS213",
                f"duplicate quota `{name}`",
                node.name.span,
                label="declared again",
                related=(declared_here(declared.span),),
            )
            continue
        errors = scope.error_count()
        definition = _check_quota(scope, node, nodes)
        valid = definition if scope.error_count() == errors else None
        scope.quotas[name] = DeclaredQuota(node.name.span, valid)


def _check_quota(scope: Scope, node: s.QuotaDecl, nodes: Sequence[s.QuotaDecl]) -> QuotaSpec | None:
    key = check_expression_as(scope, node.key, QUOTA_KEY, STRING)
    if key is not None:
        check_always_present(scope, key)
    parent = _check_parent(scope, node, nodes)
    rows = _check_rows(scope, node, parent)
    others = _check_others(scope, node)
    if key is None:
        return None
    spec = QuotaSpec(
        name=node.name.text,
        key=fold_constants(key),
        parent=None if parent is None else parent.name,
        rows=tuple(checked.row for checked in rows),
        others=others,
        span=node.name.span,
    )
    if parent is not None:
        _warn_above_parent(scope, spec, parent, rows)
    return spec


# ── nesting ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _check_parent(scope: Scope, node: s.QuotaDecl, nodes: Sequence[s.QuotaDecl]) -> QuotaSpec | None:
    if node.parent is None:
        return None
    name = node.parent.text
    declared = scope.quotas.get(name)
    if declared is not None:
        return declared.definition
    if name in scope.broken_names:
        return None
    cycle = _cycle(node, nodes)
    written = {other.name.text: other for other in nodes}
    if cycle:
        message, label = f"quota `{node.name.text}` is within itself", "begins a cycle"
        chain = " within ".join(f"`{word}`" for word in cycle)
        help_text = f"it says {chain}: remove one `within`"
    elif name in written:
        message, label = f"quota `{name}` is declared below", "not declared yet"
        help_text = f"move `quota {name}` above this statement"
    else:
        message, label = f"unknown quota `{name}`", "not declared"
        help_text = did_you_mean(name, written) or "declare the enclosing quota above this statement"
    related = (declared_here(written[name].name.span),) if name in written and not cycle else ()
    scope.report("PS271", message, node.parent.span, label=label, help=help_text, related=related)
    return None


def _cycle(node: s.QuotaDecl, nodes: Sequence[s.QuotaDecl]) -> list[str]:
    """The names from the quota back to itself; empty if `within` leads elsewhere."""
    parents = {other.name.text: other.parent.text for other in nodes if other.parent is not None}
    names, at = [node.name.text], parents.get(node.name.text)
    while at is not None and at not in names:
        names.append(at)
        at = parents.get(at)
    return [*names, at] if at == node.name.text else []


# ── rows ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _check_rows(scope: Scope, node: s.QuotaDecl, parent: QuotaSpec | None) -> list[_CheckedRow]:
    depth = _depth(scope, parent)
    outer_paths = set() if parent is None else {row.path for row in parent.rows}
    rows: dict[EntityPath, _CheckedRow] = {}
    for written in node.rows:
        if not written.path or written.amounts is None:
            continue
        for part in written.path:
            _check_length(scope, part, "name of a row")
        path = tuple(part.value for part in reversed(written.path))
        span = _names_span(written)
        if (parent is not None or node.parent is None) and len(path) != depth:
            _report_path(scope, node, span, written, parent)
            continue
        if path in rows:
            scope.report(
                "PS213",
                f"duplicate row for {_describe(path)}",
                span,
                label="declared again",
                related=(declared_here(_names_span(rows[path].node)),),
            )
            continue
        limits = _check_limits(scope, written.amounts)
        if parent is not None and path[:-1] not in outer_paths:
            scope.report(
                "PS421",
                f"quota `{parent.name}` has no row for {_describe(path[:-1])}",
                written.path[1].span,
                label="only the limits of `others` apply to it",
                help=did_you_mean(path[-2], [row.path[-1] for row in parent.rows])
                or f"add a row to `quota {parent.name}`",
                related=(declared_here(parent.span),),
            )
        rows[path] = _CheckedRow(QuotaRow(path, limits, span), written)
    return list(rows.values())


def _check_length(scope: Scope, node: s.StringLit, what: str) -> None:
    """Rows and resources are labels of metrics."""
    if len(node.value) > _NAME_CHARACTERS_MAX:
        scope.add_diagnostic(name_too_long(what, node.value, node.span, _NAME_CHARACTERS_MAX))


def _depth(scope: Scope, parent: QuotaSpec | None) -> int:
    depth = 1
    while parent is not None:
        depth += 1
        above = None if parent.parent is None else scope.quotas.get(parent.parent)
        parent = None if above is None else above.definition
    return depth


def _report_path(
    scope: Scope, node: s.QuotaDecl, span: Span, row: s.QuotaRowDecl, parent: QuotaSpec | None
) -> None:
    if parent is None:
        message, help_text = (
            f"quota `{node.name.text}` is within no other",
            f"write one name, or `quota {node.name.text} by ... within PARENT`",
        )
    else:
        first = f'"{row.path[0].value}"'
        message = f"a row of quota `{node.name.text}` must say where in `{parent.name}` the entity is"
        help_text = f'write {first} in "NAME of the {parent.name}"'
    scope.report("PS270", message, span, label="wrong number of names", help=help_text)


def _names_span(row: s.QuotaRowDecl) -> Span:
    return Span(row.span.source, row.path[0].span.start, row.path[-1].span.end)


def _describe(path: EntityPath) -> str:
    return " in ".join(f'"{name}"' for name in reversed(path))


def _check_others(scope: Scope, node: s.QuotaDecl) -> tuple[QuotaLimit, ...]:
    others = [row for row in node.rows if not row.path]
    if not others:
        scope.report(
            "PS272",
            f"quota `{node.name.text}` has no limits for entities without a row",
            node.name.span,
            label="no `others`",
            help="add `others { cpu = 0 }` with the limits of each of them, or `others unlimited`",
        )
        return ()
    for extra_row in others[1:]:
        scope.report(
            "PS213",
            "duplicate `others`",
            extra_row.span,
            label="only one is allowed",
            related=(declared_here(others[0].span),),
        )
    return () if others[0].amounts is None else _check_limits(scope, others[0].amounts)


# ── amounts ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _check_limits(scope: Scope, amounts: Iterable[s.QuotaAmountDecl]) -> tuple[QuotaLimit, ...]:
    limits: dict[str, QuotaLimit] = {}
    spans: dict[str, Span] = {}
    for node in amounts:
        name = _resource_name(scope, node)
        if name is None:
            continue
        if name in spans:
            scope.report(
                "PS213",
                f"duplicate amount of `{name}`",
                node.resource.span,
                label="declared again",
                related=(declared_here(spans[name]),),
            )
            continue
        spans[name] = node.resource.span
        type_ = quota_resource_type(scope, name)
        if type_ is None:
            continue
        amount = _check_amount(scope, node.amount, type_, name)
        borrow = _check_borrow(scope, node.borrow, type_, name)
        if amount is not None and borrow != -1:
            limits[name] = QuotaLimit(name, amount, borrow)
    return tuple(limits.values())


def _resource_name(scope: Scope, node: s.QuotaAmountDecl) -> str | None:
    resource = node.resource
    if isinstance(resource, s.StringLit):
        _check_length(scope, resource, "name of a resource")
        if resource.value in scope.resources:
            scope.resources[resource.value].used = True
        else:
            warn_unknown_resource(scope, resource.value, resource.span, label="no pod can request it")
        return resource.value
    name = resource.text
    if name in scope.resources:
        scope.resources[name].used = True
        return name
    if name in _KUBERNETES_NAMES:
        return name
    known = (*_KUBERNETES_NAMES, *scope.resources)
    scope.report(
        "PS273",
        f"unknown resource `{name}`",
        resource.span,
        label="not declared",
        help=(did_you_mean(name, known) if name != "gpu" else "")  # which is not `cpu`
        or f'the names are {join_alternatives(known)}; quote others, for example `"nvidia.com/gpu" = 8`',
    )
    return None


def quota_resource_type(scope: Scope, name: str) -> Type | None:
    """The type of an amount of the resource; None for a resource of the policy with a reported error."""
    declared = scope.resources.get(name)
    if declared is None:
        return resource_type(name)
    return None if declared.definition is None else declared.definition.type


def _check_amount(scope: Scope, node: s.Expression, type_: Type, name: str) -> int | None:
    const = check_constant(scope, node, type_)
    if const is None or not isinstance(const.value, int | float):
        return None
    value = int(const.value)
    if value < 0:
        scope.report("PS208", f"a quota of {name} cannot be negative", node.span, label="below 0")
        return None
    if value > _AMOUNT_MAX:
        scope.report(
            "PS208",
            f"no cluster has so much {name}",
            node.span,
            label="out of range",
            help="leave the resource out of the row if it is not to be limited",
        )
        return None
    return value


def _check_borrow(scope: Scope, node: s.Expression | None, type_: Type, name: str) -> int | None:
    """0: nothing may be borrowed. None: any amount. -1: after a reported error."""
    match node:
        case None:
            return 0
        case s.NameExpr(name="any"):
            return None
        case _:
            amount = _check_amount(scope, node, type_, name)
            return -1 if amount is None else amount


def _warn_above_parent(scope: Scope, spec: QuotaSpec, parent: QuotaSpec, rows: Sequence[_CheckedRow]) -> None:
    """Amounts that sum to more than the parent has cannot all be had at once."""
    by_parent: dict[EntityPath, list[_CheckedRow]] = {}
    for checked in rows:
        by_parent.setdefault(checked.row.path[:-1], []).append(checked)
    for outer in parent.rows:
        inside = by_parent.get(outer.path, [])
        for limit in outer.limits:
            total = sum(
                inner.amount
                for checked in inside
                for inner in checked.row.limits
                if inner.resource == limit.resource
            )
            type_ = quota_resource_type(scope, limit.resource)
            if total <= limit.amount or type_ is None:
                continue
            last = [
                checked
                for checked in inside
                if any(inner.resource == limit.resource for inner in checked.row.limits)
            ][-1]
            scope.report(
                "PS420",
                f"the rows of quota `{spec.name}` in {_describe(outer.path)} sum to "
                f"{_amount_text(total, type_)} of {limit.resource}; it has {_amount_text(limit.amount, type_)}",
                last.row.span,
                label="not all of them can have their amount at once",
                help="reduce an amount and let the entity `borrow` instead",
                related=(declared_here(outer.span),),
            )


def _amount_text(amount: int, type_: Type) -> str:
    return format_value(float(amount) if type_.is_float64 else amount, type_)
