"""Attributes of pods, nodes and namespaces, resolved against the attribute table."""

from dataclasses import replace

from policysched.lang.check.condition_lints import lint_label_key
from policysched.lang.check.scope import ExpressionContext, Scope, did_you_mean
from policysched.lang.check.team_reads import refuses_attribute
from policysched.lang.ir import expr as e
from policysched.lang.ir.attributes import ATTRIBUTES, OWNERS, value_type
from policysched.lang.parse.foreign_words import ATTRIBUTE_WORDS, OWNER_WORDS
from policysched.lang.syntax import tree as s
from policysched.text import Span
from policysched.text.suggestions import nearest_match

_KUBERNETES_RESOURCES = ("cpu", "memory", "ephemeral-storage", "pods")
_KUBERNETES_PREFIXES = ("hugepages-", "attachable-volumes-")


def check_attribute(scope: Scope, node: s.AttributeExpr, context: ExpressionContext) -> e.Attr | None:
    """The attribute; None after reporting an unknown owner or path, a missing key, or a forbidden read."""
    if node.owner not in OWNERS:
        _report_unknown_owner(scope, node)
        return None
    owner = node.owner
    if not is_readable(owner, context):
        scope.report(
            "PS220",
            f"{context.description} cannot read `{node.span.text}`",
            node.span,
            label=_unreadable_label(owner),
        )
        return None
    if refuses_attribute(scope, node, context):
        return None
    if owner == "other" and node.path[0].text == "node" and not context.other_node:
        scope.report(
            "PS220",
            f"{context.description} cannot read `{node.span.text}`",
            node.span,
            label="the pod may be on no node",
            help="count `placed pods` or `pods in KEY`",
        )
        return None
    resolved = _resolve_keys(scope, node)
    if resolved is None:
        return None
    node = resolved
    words = tuple(part.text for part in node.path)
    if owner == "pod" and words in (("waited",), ("queued",), ("attempts",)) and not context.queue_values:
        scope.report(
            "PS220",
            f"{context.description} cannot read `{node.span.text}`",
            node.span,
            label="only available in `queue by`",
        )
        return None
    if owner == "namespace" and words[:1] == ("share",) and not context.namespace_shares:
        scope.report(
            "PS220",
            f"{context.description} cannot read `{node.span.text}`",
            node.span,
            label="changes with every placement",
        )
        return None
    if owner == "node" and words[:-1] == ("taints",) and node.path[-1].is_quoted_key:
        words = ("taint_values", words[-1])
    elif words[0] == "taint_values":
        _report_unknown_path(scope, node, owner, words)
        return None
    row = ATTRIBUTES.get((owner, words))
    if row is not None and row.key_kind is None and not any(part.is_quoted_key for part in node.path):
        return e.Attr(owner, words, row.type, node.span)
    container = ATTRIBUTES.get((owner, words[:-1]))
    if container is not None and container.key_kind is not None:
        last = node.path[-1]
        if container.key_kind == "texts" and not last.is_quoted_key:
            scope.report(
                "PS216",
                f"the key `{last.text}` is not quoted",
                last.span,
                label="expected a quoted key",
                help=f'write `{node.owner}.{words[0]}["{last.text}"]`',
            )
            return None
        if container.key_kind == "quotas" and not _is_readable_quota(scope, node, context):
            return None
        if container.key_kind == "shares" and last.text in scope.resources:
            scope.report(
                "PS220",
                f"there is no share of the policy's own resource `{last.text}`",
                node.span,
                label="not counted by namespace",
                help="limit it with a `quota`, and order by `pod.quota_share`",
            )
            return None
        if container.key_kind in ("resources", "shares"):
            example = f'{node.owner}.{node.path[0].text}["nvidia.com/gpu"]'
            warn_unknown_resource(scope, last.text, last.span, label="always 0", example=example)
        if container.key_kind == "texts" and container.path[-1] in ("labels", "annotations", "taint_values"):
            lint_label_key(scope, last.text, last.span)
        return e.Attr(owner, words, value_type(container, last.text), node.span)
    _report_unknown_path(scope, node, owner, words)
    return None


def warn_unknown_resource(
    scope: Scope, name: str, span: Span, *, label: str, example: str = '"nvidia.com/gpu"'
) -> None:
    """The API server accepts resource names without a domain only for native resources."""
    if "/" in name or name in _KUBERNETES_RESOURCES or name.startswith(_KUBERNETES_PREFIXES):
        return
    near = "" if "gpu" in name else did_you_mean(name, _KUBERNETES_RESOURCES)
    scope.report(
        "PS414",
        f"unknown resource `{name}`",
        span,
        label=label,
        help=near
        or f"device resources have a domain, for example `{example}`; declare your own with `resource {name} {{ ... }}`",
    )


def _resolve_keys(scope: Scope, node: s.AttributeExpr) -> s.AttributeExpr | None:
    """Replace the constant in `pod.labels[key]` by its value; None after a diagnostic."""
    path: list[s.PathPart] = []
    for part in node.path:
        if not part.is_constant_key:
            path.append(part)
            continue
        key = scope.use_constant(part.text)
        if key is None:
            if part.text not in scope.names and part.text not in scope.broken_names:
                scope.report(
                    "PS112",
                    f"the key `{part.text}` is not quoted",
                    part.span,
                    label="expected a quoted key",
                    help=f'write `["{part.text}"]`; without quotes it refers to a `param` or `let`',
                )
            elif part.text in scope.names and scope.names[part.text].definition is not None:
                _report_non_string_key(scope, part)
            return None
        if not isinstance(key.value, str):
            _report_non_string_key(scope, part)
            return None
        path.append(s.PathPart(key.value, True, part.span))
    return replace(node, path=tuple(path))


def _report_non_string_key(scope: Scope, part: s.PathPart) -> None:
    scope.report(
        "PS202",
        f"expected a constant string as key, found `{part.text}`",
        part.span,
        help='declare it as `param NAME: string = "key"`',
    )


def suggest_attribute(word: str) -> str:
    """A help line for a bare name that looks like an attribute without its owner."""
    rows = [row for row in ATTRIBUTES.values() if row.owner in ("pod", "node")]
    names = {row.path[-1]: row.qualified_name for row in reversed(rows)}
    near = nearest_match(word, names)
    return "" if near is None else f"did you mean `{names[near]}`? attributes are written with their owner"


def is_readable(owner: e.Owner, context: ExpressionContext) -> bool:
    match owner:
        case "node":
            return context.node
        case "victim":
            return context.victim
        case "other":
            return context.other
        case _:
            return context.pod


def _unreadable_label(owner: e.Owner) -> str:
    match owner:
        case "victim":
            return "`victim` is only available in `preemption`"
        case "other":
            return "`other` is only available in `count(pods where ...)` and `count(pods on node where ...)`"
        case _:
            return "not available here"


def _report_unknown_owner(scope: Scope, node: s.AttributeExpr) -> None:
    if node.owner in scope.names:
        scope.names[node.owner].used = True
        message, hint = f"`{node.owner}` has no attributes", f"write only `{node.owner}`"
    else:
        message = f"unknown name `{node.owner}`"
        hint = (
            OWNER_WORDS.get(node.owner)
            or did_you_mean(node.owner, OWNERS)
            or "attributes belong to `pod`, `node` or `namespace`"
        )
    span = Span(node.span.source, node.span.start, node.span.start + len(node.owner))
    scope.report("PS210", message, span, label="unknown owner", help=hint)


def _is_readable_quota(scope: Scope, node: s.AttributeExpr, context: ExpressionContext) -> bool:
    """Whether the key is a quota of the policy, and the context may read its share."""
    name = node.path[-1]
    if not context.quota_shares:
        scope.report(
            "PS220",
            f"{context.description} cannot read `{node.span.text}`",
            node.span,
            label="only available in `queue by`",
        )
        return False
    if name.text not in scope.quotas and name.text not in scope.broken_names:
        scope.report(
            "PS210",
            f"unknown quota `{name.text}`",
            name.span,
            label="not declared",
            help=did_you_mean(name.text, scope.quotas) or "declare it with `quota NAME by ...`",
        )
    return name.text in scope.quotas


def _resource_key(owner: e.Owner, words: tuple[str, ...]) -> str:
    """A help line for `pod.requests.nvidia.com`, whose key is not quoted; empty for other paths."""
    container = ATTRIBUTES.get((owner, words[:1]))
    if container is None or container.key_kind not in ("resources", "shares") or len(words) < 3:
        return ""
    return f'quote the name of a resource with a domain, for example `{container.qualified_name}["{".".join(words[1:])}/gpu"]`'


_KUBERNETES_PATHS = frozenset({"metadata", "spec", "status"})


def _foreign_attribute(node: s.AttributeExpr, owner: e.Owner) -> str:
    """A help line for an attribute as in Kubernetes' objects: `pod.metadata.labels["x"]`, `node.status.capacity`."""
    kept = [part for part in node.path if part.is_quoted_key or part.text not in _KUBERNETES_PATHS]
    path = ".".join(part.text for part in kept if not part.is_quoted_key)
    advice = ATTRIBUTE_WORDS.get(f"{owner}.{path}") or ATTRIBUTE_WORDS.get(
        f"{owner}.{path.split('.')[0]}", ""
    )
    if advice or len(kept) == len(node.path) or not kept:
        return advice
    if (owner, (kept[0].text,)) in ATTRIBUTES:
        written = "".join(f'["{part.text}"]' if part.is_quoted_key else f".{part.text}" for part in kept)
        return f"write `{owner}{written}`"
    return ""


def report_unquoted_resource(scope: Scope, node: s.Expression) -> bool:
    """Whether a quotient is meant as the name of a resource, `pod.requests.nvidia.com/gpu`; reports it."""
    match node:
        case s.BinaryExpr(
            op="/", left=s.AttributeExpr(owner=owner, path=path) as left, right=s.NameExpr(name=name)
        ):
            words = tuple(part.text for part in path)
        case _:
            return False
    if owner not in OWNERS or name in scope.names or not _resource_key(owner, words):
        return False
    scope.report(
        "PS211",
        f"unknown attribute `{node.span.text}`",
        node.span,
        label="the name of the resource is not quoted",
        help=f'write `{left.owner}.{words[0]}["{".".join(words[1:])}/{name}"]`',
    )
    return True


def _report_unknown_path(scope: Scope, node: s.AttributeExpr, owner: e.Owner, words: tuple[str, ...]) -> None:
    row = ATTRIBUTES.get((owner, words))
    if row is not None and row.key_kind is not None:
        example = {"texts": '["app"]', "resources": ".cpu", "shares": ".cpu", "quotas": ".team"}[row.key_kind]
        scope.report(
            "PS211",
            f"`{row.qualified_name}` is a map and needs a key",
            node.span,
            label="missing key",
            help=f"for example `{row.qualified_name}{example}`",
        )
        return
    paths = [
        ".".join(path)
        for (row_owner, path), attribute in ATTRIBUTES.items()
        if row_owner == owner and attribute.written_path is None
    ]
    scope.report(
        "PS211",
        f"unknown attribute `{node.span.text}`",
        node.path[0].span.cover(node.path[-1].span) if node.path else node.span,
        label=f"{owner} has no such attribute",
        help=_resource_key(owner, words)
        or _foreign_attribute(node, owner)
        or did_you_mean(".".join(words), paths)
        or f"attributes of {owner} are {', '.join(paths)}",
    )
