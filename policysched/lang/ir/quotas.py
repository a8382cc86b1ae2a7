"""Checked `quota` statements: who is limited, by how much, and what may be borrowed."""

from dataclasses import dataclass, field

from policysched.lang.ir.expr import Expr
from policysched.text import Span

EntityPath = tuple[str, ...]
"""The names of an entity from the top-level quota inward: `("research", "vision")`."""


@dataclass(frozen=True, slots=True)
class QuotaLimit:
    """The limit of one entity for one resource, in the resource's internal unit. `amount` is what the entity is
    entitled to, `borrow` what it may use beyond that while others leave it idle (None: as much as they leave)."""

    resource: str
    amount: int
    borrow: int | None

    @property
    def ceiling(self) -> int | None:
        """What the entity may use at most; None: only what others leave limits it."""
        return None if self.borrow is None else self.amount + self.borrow


@dataclass(frozen=True, slots=True)
class QuotaRow:
    """The limits of one entity. A resource that is not listed is not limited for it."""

    path: EntityPath
    limits: tuple[QuotaLimit, ...]
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class QuotaSpec:
    """One `quota` statement. `key` is a string expression of the pod and its namespace: the entity that the pod counts
    towards. `parent` is the quota that it is nested in, declared above it. `others` are the limits of each entity
    without a row; empty: not limited."""

    name: str
    key: Expr
    parent: str | None
    rows: tuple[QuotaRow, ...]
    others: tuple[QuotaLimit, ...]
    span: Span = field(compare=False)
