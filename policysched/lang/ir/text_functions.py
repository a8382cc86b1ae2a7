"""Functions of strings that evaluation, constant folding and documentation share."""

from hashlib import blake2b


def parts_of(text: str, separator: str) -> tuple[str, ...]:
    """The parts between separators, without surrounding spaces; empty parts are left out."""
    return tuple(part for written in text.split(separator) if (part := written.strip(" ")))


def bucket_of(text: str, count: int, salt: str = "") -> int:
    """From 0 to `count - 1`: BLAKE2b of 8 bytes of the UTF-8 text, big-endian, modulo the count. Never changes between
    versions, so that a rollout keeps its pods. Another `salt` gives independent numbers."""
    return int.from_bytes(blake2b((salt + text).encode(), digest_size=8).digest(), "big") % count
