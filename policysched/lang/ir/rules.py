"""Rules of a checked policy: filters and scores, written in the policy or built in."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from policysched.lang.ir.expr import Expr
from policysched.text import Span

BuiltinParamValue = (
    bool | int | float | str | tuple[tuple[str, int], ...] | tuple[tuple[int, int], ...] | frozenset[str]
)
"""A checked parameter of a built-in: an enum is its keyword, a map its entries in source order."""


@dataclass(frozen=True, slots=True)
class MessageTemplate:
    """`receiving {net_rx}, over {hot_link}`: literal texts and values. `text` is the source."""

    text: str
    parts: tuple[str | Expr, ...]


@dataclass(frozen=True, slots=True)
class FilterRule:
    """A filter written in the policy.

    A node passes if `when` is not True (False or missing), or if the condition is True (with `rejects`: not True).
    `missing` decides where the condition is missing; it is None where that cannot happen, and where an absent node label
    in a `reject` does not reject.
    """

    name: str
    when: Expr | None
    rejects: bool
    condition: Expr
    missing: Literal["reject", "pass"] | None
    scaleup: bool  # False: a new, empty node of the same kind would be rejected too
    template: MessageTemplate | None
    locked: bool
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class BuiltinFilter:
    """A filter of kube-scheduler by its plugin's name in snake case. `params` include the defaults."""

    name: str
    builtin: str
    params: tuple[tuple[str, BuiltinParamValue], ...]
    when: Expr | None
    locked: bool
    span: Span = field(compare=False)


class Direction(Enum):
    LOWER = "lower"
    HIGHER = "higher"
    PREFER = "prefer"


@dataclass(frozen=True, slots=True)
class RangeNormalize:
    """`floor(100 * (x - low) / (high - low))`, clamped to 0..100; for `lower` 100 minus that. In the unit of the value's type."""

    low: int | float
    high: int | float


@dataclass(frozen=True, slots=True)
class MaxNormalize:
    """`floor(100 * x / max)`, 0 for a maximum of 0 or less; for `lower` 100 minus that."""


@dataclass(frozen=True, slots=True)
class MinMaxNormalize:
    """`floor(100 * (x - min) / (max - min))` over the candidates, 100 where all are equal; for `lower` 100 minus that."""


Normalize = RangeNormalize | MaxNormalize | MinMaxNormalize


@dataclass(frozen=True, slots=True)
class ScoreRule:
    """A score written in the policy: an integer 0..100 for each node, times `weight`.

    0 for every node if `when` is not True. `normalize` is None for `prefer` (a boolean: 100 or 0). `missing` is the
    score of a node whose value is missing: a number (`worst` is 0, `best` 100), or `neutral` for the floor of the mean
    score of the other candidates, 50 without any. None where the value cannot be missing.
    """

    name: str
    weight: int
    when: Expr | None
    direction: Direction
    value: Expr
    normalize: Normalize | None
    missing: int | Literal["neutral"] | None
    locked: bool
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class BuiltinScore:
    name: str
    builtin: str
    weight: int
    params: tuple[tuple[str, BuiltinParamValue], ...]
    when: Expr | None
    locked: bool
    span: Span = field(compare=False)


Rule = FilterRule | BuiltinFilter | ScoreRule | BuiltinScore


@dataclass(frozen=True, slots=True)
class RuleSet:
    """Filters and scores in source order. Names are unique among filters and among scores."""

    filters: tuple[FilterRule | BuiltinFilter, ...]
    scores: tuple[ScoreRule | BuiltinScore, ...]


NO_RULES = RuleSet((), ())


def with_shadows(rules: RuleSet, shadows: RuleSet) -> RuleSet:
    """Everything that is evaluated for a pod, for what it costs."""
    return RuleSet(rules.filters + shadows.filters, rules.scores + shadows.scores)


def included_by(span: Span, policy: Span) -> str:
    """The include that brings in the rule with this span: `include kube_default`, or `include` and the library's file;
    empty for a rule of the text that names the policy (the span of its name)."""
    if span.text.startswith("include "):
        return span.text
    if span.source.name != policy.source.name:
        return f'include "{_file(span)}"'
    return ""


def location_of(span: Span) -> str:
    """`my.policy:34`: the file or key, and the line."""
    return f"{_file(span)}:{span.source.position(span.start).line}"


def _file(span: Span) -> str:
    """Without folders, and without the ConfigMap that a key belongs to."""
    return span.source.name.rpartition(" ")[2].rpartition("/")[2]
