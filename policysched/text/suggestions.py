"""The known word that is most similar to a wrong one, for "did you mean". Comparing takes about 10 µs for each known
word, so that a text with thousands of wrong words gets suggestions for the first of them only.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from difflib import get_close_matches

COMPARISONS_MAX = 20_000
"""Of a wrong word with a known one, for one text."""
_CANDIDATES_MAX = 300
"""No suggestion where more words are known."""


@dataclass(slots=True)
class _Comparisons:
    left: int


_comparisons: ContextVar[_Comparisons | None] = ContextVar("comparisons", default=None)


@contextmanager
def limited_suggestions() -> Iterator[None]:
    """Inside, the comparisons are those of one text. May be nested, for an included text."""
    token = _comparisons.set(_Comparisons(COMPARISONS_MAX))
    try:
        yield
    finally:
        _comparisons.reset(token)


def nearest_match(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The most similar known word; None if none is similar (at least `cutoff`, from 0 to 1), or too much is compared."""
    candidates = list(known)
    comparisons = _comparisons.get()
    if len(candidates) > _CANDIDATES_MAX:
        return None
    if comparisons is not None:
        if comparisons.left < len(candidates):
            return None
        comparisons.left -= len(candidates)
    return next(iter(get_close_matches(word, candidates, n=1, cutoff=cutoff)), None)
