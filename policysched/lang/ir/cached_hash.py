"""Hashes of expression trees, computed once for each node."""

from typing import TypeVar


class CachedHash:
    """Caches the hash, which covers the whole subtree and is needed for many lookups."""

    __slots__ = ("_cached_hash",)
    _cached_hash: int


_ExprClassT = TypeVar("_ExprClassT", bound=CachedHash)


def cache_hash(expr_class: type[_ExprClassT]) -> type[_ExprClassT]:
    compute_hash = expr_class.__hash__

    def cached_hash(self: _ExprClassT) -> int:
        try:
            return self._cached_hash
        except AttributeError:
            value = compute_hash(self)
            object.__setattr__(self, "_cached_hash", value)
            return value

    expr_class.__hash__ = cached_hash  # type: ignore[assignment]
    return expr_class
