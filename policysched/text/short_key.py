"""Keys that tenants write, such as the entity of a quota: of limited length, since messages, records and logs of changes keep
them longer than the pod."""

import hashlib

KEY_CHARACTERS_MAX = 253
"""The longest name of an object in Kubernetes."""
_SHOWN = 100


def short_key(key: str) -> str:
    """The key, or if it is longer than any name its beginning and a digest: different keys stay different."""
    if len(key) <= KEY_CHARACTERS_MAX:
        return key
    digest = hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest()
    return f"{key[:_SHOWN]}…{digest[:32]}"
