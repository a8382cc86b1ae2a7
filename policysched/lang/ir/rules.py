"""Rules of a checked policy: filters and scores, written in the policy or built in."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from policysched.lang.ir.expr import Expr
from policysched.text import Span

BuiltinParamValue = (
    bool | int | float | str | tuple[tuple[str, int], ...] | tuple[tuple[int, int], ...] | frozenset[str]
)
"""A built-in's parameter after checking: an enum is its word, a map its entries in the order written."""


@dataclass(frozen=True, slots=True)
class MessageTemplate:
    """`receiving {net_rx}, over {hot_link}`: texts and values in turn. `text` is it as written."""

    text: str
    parts: tuple[str | Expr, ...]


@dataclass(frozen=True, slots=True)
class FilterRule:
    """A filter written in the policy.

    A node passes where `when` is not True (False, or missing), or where the condition is True (`rejects`: is not
    True). Where the condition is missing, `missing` decides; None stands where it cannot be missing, or where an
    absent node label in a `reject` does not reject.
    """

    name: str
    when: Expr | None
    rejects: bool
    condition: Expr
    missing: Literal["reject", "pass"] | None
    scaleup: bool  # False: a new, empty node of the same kind would not help
    template: MessageTemplate | None
    locked: bool
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class BuiltinFilter:
    """One of kube-scheduler's filters by its plugin's name in snake case. `params` are complete, defaults included."""

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
    """`floor(100 * (x - lo) / (hi - lo))`, clamped to 0..100; lower is 100 less that. In the value's held unit."""

    low: int | float
    high: int | float


@dataclass(frozen=True, slots=True)
class MaxNormalize:
    """higher `floor(100 * x / max)`, lower 100 less that; a maximum of 0 (or less) gives higher 0, lower 100."""


@dataclass(frozen=True, slots=True)
class MinMaxNormalize:
    """`floor(100 * (x - min) / (max - min))` over the candidates; a span of 0 gives 100; lower is 100 less that."""


Normalize = RangeNormalize | MaxNormalize | MinMaxNormalize


@dataclass(frozen=True, slots=True)
class ScoreRule:
    """A score written in the policy: whole numbers 0..100 a node, times `weight`.

    `when` not True: 0 for every node. `normalize` is None for `prefer` (a boolean: 100 or 0). `missing` is a fixed
    score, or `neutral`: the floor of the mean score of the candidates that have it, 50 where none has; `worst` is 0
    and `best` 100, already replaced. None where the value cannot be missing.
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
    """Filters and scores in the order of the file. A name is unique among filters and among scores."""

    filters: tuple[FilterRule | BuiltinFilter, ...]
    scores: tuple[ScoreRule | BuiltinScore, ...]
