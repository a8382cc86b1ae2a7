"""Keys that tenants write, such as the entity of a quota: of limited length, since messages, records and logs of changes keep
them longer than the pod."""

import hashlib
from collections.abc import Hashable
from functools import lru_cache

KEY_CHARACTERS_MAX = 253
"""The longest name of an object in Kubernetes."""
_SHOWN = 100


def short_key(key: str) -> str:
    """The key, or if it is longer than any name its beginning and a digest: different keys stay different."""
    if len(key) <= KEY_CHARACTERS_MAX:
        return key
    digest = hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest()
    return f"{key[:_SHOWN]}…{digest[:32]}"


def short_value(value: Hashable) -> Hashable:
    """For keys of tables that are compared and never shown. The value, or its digest if it is a longer text or list. Equal values
    stay equal. No text equals a digest, so that nobody can write a value that counts as another."""
    if isinstance(value, str):
        return value if len(value) <= KEY_CHARACTERS_MAX else _text_digest(value)
    if not isinstance(value, tuple) or value_characters(value) <= KEY_CHARACTERS_MAX:
        return value
    return hashlib.sha256(repr(value).encode()).digest()


def value_characters(value: object) -> int:
    """How long the texts in it are, about."""
    if isinstance(value, str):
        return len(value)
    return sum(8 + value_characters(item) for item in value) if isinstance(value, tuple) else 0


@lru_cache(4)
def _text_digest(text: str) -> bytes:
    """Several totals read the same text of a pod, one after the other."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).digest()
