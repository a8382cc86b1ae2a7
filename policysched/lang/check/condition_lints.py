"""Conditions that are never or always true, and texts that a value never has: `x != "a" or x != "b"`, `"team-*"`.

Conditions on parameters are left out, since an operator may set another value.
"""

import re

from policysched.lang.check.scope import Scope
from policysched.lang.ir import expr as e
from policysched.lang.ir.constant_folding import fold_constants
from policysched.lang.ir.domains import DomainAnalysis, meet
from policysched.lang.ir.expr_analysis import children, walk
from policysched.lang.parse.confusables import character_name, has_hidden_character, lookalike
from policysched.text import Label, Span

_NAME = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_LABEL_VALUE = re.compile(rf"(?:{_NAME})?\Z")
_LABEL_KEY = re.compile(rf"(?:[a-z0-9](?:[-a-z0-9.]{{0,251}}[a-z0-9])?/)?{_NAME}\Z")
_SUBDOMAIN = re.compile(r"[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?\Z")
_CONDITION = re.compile(r"(?:True|False|Unknown)\Z")
_OWNER_KIND = re.compile(r"(?!(?:Deployment|CronJob)\Z)(?:[A-Z][A-Za-z0-9]*)?\Z")
_CONTROLLERS = {"Deployment": "ReplicaSet", "CronJob": "Job"}

Shape = tuple[str, re.Pattern[str]]


def lint_conditions(scope: Scope, expr: e.Expr) -> None:
    """Report what is certain about the conditions in an expression, at the smallest part that explains it."""
    analysis, linted, pending = DomainAnalysis(), scope.linted, [expr]
    while pending:
        part = pending.pop()
        if id(part) in linted:
            continue
        linted[id(part)] = part
        match part:
            case e.Const() | e.Attr() | e.InputRef() | e.MetricRef():
                continue
            case e.Compare():
                if not _lint_texts(scope, part):
                    _lint_comparison(scope, analysis, part)
            case e.And() | e.Or():
                _lint_pair(scope, analysis, part)
            case e.In():
                _lint_texts(scope, part)
            case e.Call():
                _lint_clamp(scope, part)
            case e.CountPodsOnNode() | e.PodTotal():
                _lint_count(scope, part)
        pending.extend(children(part))


# ── never and always true ────────────────────────────────────────────────────────────────────────────────────────────


def _lint_comparison(scope: Scope, analysis: DomainAnalysis, part: e.Compare) -> None:
    """`node.pods >= 0`, `bucket(pod.uid, 100) < 200`."""
    if isinstance(part.left, e.Const) and isinstance(part.right, e.Const):
        return
    for value, code, label in ((True, "PS302", "never true"), (False, "PS301", "always true")):
        if analysis.implied(part, value) is None and not scope.names_parameter(part.span):
            scope.report(code, f"`{part.span.text}` is {label}", part.span, label=f"{label} of such a value")


def _lint_pair(scope: Scope, analysis: DomainAnalysis, part: e.And | e.Or) -> None:
    """Two conditions that exclude each other under `and`, or leave nothing out under `or`."""
    value = isinstance(part, e.And)
    implied = [analysis.implied(item, value) for item in part.items]
    if any(known is None for known in implied) or analysis.implied(part, value) is not None:
        return
    if scope.names_parameter(part.span):
        return
    code, verdict = ("PS302", "never true together") if value else ("PS301", "always true together")
    for at, later in enumerate(implied):
        for before, earlier in enumerate(implied[:at]):
            assert later is not None and earlier is not None, part
            if meet(earlier, later) is None:
                first, second = part.items[before], part.items[at]
                scope.report(
                    code,
                    f"`{first.span.text}` and `{second.span.text}` are {verdict}"
                    if value
                    else f"`{first.span.text}` or `{second.span.text}` is always true",
                    second.span,
                    label=f"{verdict} with the other condition",
                    help=_other_operator(first, second, value),
                    related=(Label(first.span, "the other condition"),),
                )
                return
    scope.report(code, f"these conditions are {verdict}", part.span)


def _other_operator(first: e.Expr, second: e.Expr, value: bool) -> str:
    """The `in` or `not in` that is probably meant, or the other operator."""
    other = "or" if value else "and"
    match first, second:
        case (
            e.Compare(op=op, left=left, right=e.Const() as first_value),
            e.Compare(op=same, left=right, right=e.Const() as second_value),
        ) if op == same == ("==" if value else "!=") and left == right:
            word = "in" if value else "not in"
            return f"did you mean `{other}`? Write `{left.span.text} {word} [{first_value.span.text}, {second_value.span.text}]`"
    return f"did you mean `{other}`?"


# ── texts that a value never has ─────────────────────────────────────────────────────────────────────────────────────


def _lint_texts(scope: Scope, part: e.Compare | e.In) -> bool:
    """Whether a text is compared with a value that never has it; reports it."""
    match part:
        case (
            e.Compare(left=e.Const(value=str()) as text, right=value)
            | e.Compare(left=value, right=e.Const(value=str()) as text)
        ):
            texts = [str(text.value)]
        case e.In(item=e.Const(value=str()) as text, options=value):
            texts = [str(text.value)]
        case e.In(item=value, options=e.Const(value=tuple(options)) as text):
            texts = [option for option in options if isinstance(option, str)]
        case _:
            return False
    shape = _shape_of(scope, value)
    if shape is None:
        return False
    what, pattern = shape
    fallbacks = _fallbacks(value)
    for written in texts:
        if has_hidden_character(written):
            return True  # reported by the parser
        if pattern.match(written) is None and written not in fallbacks:
            scope.report(
                "PS314",
                f"{what} is never `{written}`",
                text.span,
                label="never equal",
                help=_text_advice(value, what, written),
            )
            return True
    return False


def _fallbacks(value: e.Expr) -> frozenset[object]:
    """The texts that `else` gives instead."""
    if not isinstance(value, e.Else):
        return frozenset()
    own = {value.fallback.value} if isinstance(value.fallback, e.Const) else set[object]()
    return frozenset(own) | _fallbacks(value.value) | _fallbacks(value.fallback)


def _shape_of(scope: Scope, value: e.Expr) -> Shape | None:
    """What the value is, and the texts that it can be; None if it can be any."""
    match value:
        case e.Else(value=inner, fallback=fallback):
            shape = _shape_of(scope, inner)
            known = isinstance(fallback, e.Const) or _shape_of(scope, fallback) == shape
            return shape if known else None
        case e.Attr(path=(*_, "labels", _)) | e.Attr(path=("taint_values", _)):
            return "the value of a label or taint", _LABEL_VALUE
        case e.Attr(path=("conditions", _)):
            return "the status of a condition", _CONDITION
        case e.Attr(path=("owner", "kind")):
            return "the kind of a pod's controller", _OWNER_KIND
        case e.Attr(path=("taints",)):
            return "the key of a taint", _LABEL_KEY
        case e.Attr(path=("name",)) | e.Attr(path=("namespace",)) | e.Attr(path=("node", "name")):
            return "a name", _SUBDOMAIN
        case e.InputRef(name=name):
            declared = scope.inputs().get(name)
            if declared is None or declared.source_map != "labels" or declared.json_path is not None:
                return None
            is_default = declared.default is not None and not _LABEL_VALUE.match(str(declared.default.value))
            return None if is_default else ("the value of a label", _LABEL_VALUE)
        case _:
            return None


def _text_advice(value: e.Expr, what: str, written: str) -> str:
    near = lookalike(written)
    value_text = value.span.text
    if written in _CONTROLLERS and what.startswith("the kind"):
        return f'the controller of these pods is a {_CONTROLLERS[written]}: write `"{_CONTROLLERS[written]}"`'
    if what.startswith("the status"):
        meant = written.capitalize()
        return f'write `"{meant}"`' if _CONDITION.match(meant) else "it is `True`, `False` or `Unknown`"
    if what.startswith("the key of a taint") and ("=" in written or ":" in written):
        key, _, rest = written.partition("=")
        key, taint_value = key.partition(":")[0], rest.partition(":")[0]
        by_value = f', or `node.taints["{key}"] == "{taint_value}"` with its value' if taint_value else ""
        return f'write the key alone: `"{key}" in {value_text}`{by_value}'
    if near is not None:
        latin = written.replace(*near)
        return f"`{near[0]}` is {character_name(near[0])}: write `{latin}` in Latin letters"
    if "*" in written or "%" in written:
        prefix = re.split(r"[*%]", written)[0]
        return f'there are no patterns; `starts_with({value_text}, "{prefix or "PREFIX"}")` tests the beginning of a text'
    if what == "a name" and written.lower() != written:
        return "names have lower-case letters, digits, `-` and `.`"
    return "letters, digits, `-`, `_` and `.` are allowed, at most 63 characters"


def lint_label_key(scope: Scope, key: str, span: Span) -> None:
    """Report a key that no label, annotation or taint has."""
    if _LABEL_KEY.match(key):
        return
    near = lookalike(key)
    scope.report(
        "PS314",
        f"no label, annotation or taint has the key `{key}`",
        span,
        label="always absent",
        help=f"`{near[0]}` is {character_name(near[0])}: write `{key.replace(*near)}` in Latin letters"
        if near is not None
        else "a key is a name of letters, digits, `-`, `_` and `.`, alone or after `DOMAIN/`",
    )


# ── functions ────────────────────────────────────────────────────────────────────────────────────────────────────────


_OTHER_NAMESPACE = "other.namespace == pod.namespace"


def _lint_clamp(scope: Scope, call: e.Call) -> None:
    if call.function != "clamp" or scope.names_parameter(call.span):
        return
    low, high = (fold_constants(arg) for arg in call.args[1:])
    if not isinstance(low, e.Const) or not isinstance(high, e.Const):
        return
    if isinstance(low.value, int | float) and isinstance(high.value, int | float) and low.value > high.value:
        scope.report(
            "PS301",
            f"`{call.span.text}` is always the same: its low bound is above its high bound",
            call.span,
            help=f"write the lower bound first: `clamp({call.args[0].span.text}, {high.span.text}, {low.span.text})`",
        )


def _lint_count(scope: Scope, part: e.CountPodsOnNode | e.PodTotal) -> None:
    """The condition of a count, or the value of a sum, that does not read the counted pod."""
    value = part.value if isinstance(part, e.PodTotal) else None
    for read, effect, example in (
        (
            part.where,
            "the condition does not read the counted pod, so all pods count or none",
            _OTHER_NAMESPACE,
        ),
        (value, "the value does not read the counted pod, so it is the same for all", "other.requests.cpu"),
    ):
        if read is None or isinstance(read, e.Const) or scope.names_parameter(read.span):
            continue
        if any(isinstance(inner, e.Attr | e.InputRef) and inner.owner == "other" for inner in walk(read)):
            continue
        scope.report(
            "PS315",
            effect,
            read.span,
            label="the counted pod is `other`",
            help=f"write `{read.span.text.replace('pod.', 'other.')}`"
            if read.span.text.startswith("pod.")
            else f"read the counted pod as `other`, for example `{example}`",
        )
