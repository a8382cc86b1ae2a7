"""Functions of strings that evaluation, constant folding and documentation share."""

from functools import lru_cache
from hashlib import blake2b

_LONG_TEXT = 1_000
"""Hashing an annotation of 250 KB takes 0.3 ms, and a policy can do so many times for each pod."""
_LONG_TEXTS_KEPT_MAX = 16


def parts_of(text: str, separator: str) -> tuple[str, ...]:
    """The parts between separators, without surrounding spaces; empty parts are left out."""
    return tuple(part for written in text.split(separator) if (part := written.strip(" ")))


def bucket_of(text: str, count: int, salt: str = "") -> int:
    """From 0 to `count - 1`: BLAKE2b of 8 bytes of the UTF-8 text, big-endian, modulo the count. Never changes between
    versions, so that a rollout keeps its pods. Another `salt` gives independent numbers."""
    hash_of = _kept_hash if len(text) > _LONG_TEXT else _hash
    return hash_of(text, salt) % count


def _hash(text: str, salt: str) -> int:
    return int.from_bytes(blake2b((salt + text).encode(), digest_size=8).digest(), "big")


_kept_hash = lru_cache(_LONG_TEXTS_KEPT_MAX)(_hash)
