"""The content of the ConfigMap with the last known good texts: one key per text, or one compressed key.

Texts are kept with their includes expanded, so that each policy can be rebuilt from its own text alone. Policies that
share a library then repeat it, and sixty small ones can exceed the size limit of a ConfigMap. Compressed, a repeated
library costs almost nothing. Small contents stay readable: they are plain keys.
"""

import base64
import lzma
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import orjson

from policysched.kube.watch.resources import ConfigMapUpdated
from policysched.policy_files.source_set import POLICY_SUFFIX
from policysched.scheduler.policies.saved_texts import is_of_team

STATE_SUFFIX = ".state.json"
ARCHIVE_KEY = "last-good.json.xz"
"""The key of `binaryData`: a JSON object of texts by key, compressed by xz."""

PLAIN_BYTES_MAX = 512 * 1024
ARCHIVE_BYTES_MAX = 2**20 - 2**14
"""kube-apiserver refuses a ConfigMap whose values exceed 1 MiB (k8s.io/api/core/v1, MaxSecretSize)."""
UNPACKED_BYTES_MAX = 16 * 2**20
"""Of the JSON object. A larger archive is not read: a few KiB can unpack to gigabytes."""
_UNPACK_MEMORY_MAX = 64 * 2**20


class UnreadableArchive(Exception):
    """The compressed key is damaged or too large. The message is one line."""


@dataclass(frozen=True, slots=True)
class PackedTexts:
    """`data` and `binary_data` (base64) of the ConfigMap; `omitted` are the keys that do not fit."""

    data: Mapping[str, str]
    binary_data: Mapping[str, str]
    omitted: tuple[str, ...] = ()


def pack_texts(
    texts: Mapping[str, str],
    plain_bytes_max: int = PLAIN_BYTES_MAX,
    owner_of: Callable[[str], str | None] = lambda _policy: None,
) -> PackedTexts:
    """Texts that do not fit even compressed are omitted: states before policies, those of teams before the operator's, large
    ones before small ones. Of teams (`owner_of`), the one with the largest total loses its largest first. Takes up to
    seconds if they do not compress."""
    if sum(len(text.encode()) for text in texts.values()) <= plain_bytes_max:
        return PackedTexts(dict(texts), {})
    sizes = {key: len(orjson.dumps(text)) for key, text in texts.items()}
    sizes = {key: sizes[key] for key in _most_important_first(texts, sizes, owner_of)}
    kept = _first(sizes, UNPACKED_BYTES_MAX - 2**20)  # the keys need room too
    while len(archive := _compress({key: texts[key] for key in sorted(kept)})) > ARCHIVE_BYTES_MAX:
        kept_bytes = sum(kept.values())
        kept = _first(kept, kept_bytes * ARCHIVE_BYTES_MAX * 9 // (10 * len(archive)))
    omitted = tuple(sorted(texts.keys() - kept.keys()))
    return PackedTexts({}, {ARCHIVE_KEY: base64.b64encode(archive).decode()}, omitted)


def _most_important_first(
    texts: Mapping[str, str], sizes: Mapping[str, int], owner_of: Callable[[str], str | None]
) -> list[str]:
    """A state is of a team if the policy is, or if that has no text."""
    by_rank = defaultdict[tuple[bool, bool], dict[str, list[tuple[int, str]]]](dict)
    for key in texts:
        is_state = key.endswith(STATE_SUFFIX)
        policy = key.removesuffix(STATE_SUFFIX).removesuffix(POLICY_SUFFIX)
        text = texts.get(f"{policy}{POLICY_SUFFIX}")
        of_team = text is None or is_of_team(text)
        owner = (owner_of(policy) or "") if of_team else ""
        by_rank[is_state, of_team].setdefault(owner, []).append((sizes[key], key))
    last_first: list[str] = []
    for _, by_owner in sorted(by_rank.items(), reverse=True):
        largest_owner = [(-sum(size for size, _ in owned), owner) for owner, owned in by_owner.items()]
        heapify(largest_owner)
        for owned in by_owner.values():
            owned.sort()
        while largest_owner:
            total, owner = heappop(largest_owner)
            size, key = by_owner[owner].pop()
            last_first.append(key)
            if by_owner[owner]:
                heappush(largest_owner, (total + size, owner))
    return last_first[::-1]


def _first(sizes: Mapping[str, int], bytes_max: int) -> dict[str, int]:
    """As many texts as fit, in their order."""
    kept: dict[str, int] = {}
    total = 0
    for key, size in sizes.items():
        total += size
        if total > bytes_max:
            break
        kept[key] = size
    return kept


def _compress(texts: Mapping[str, str]) -> bytes:
    """One text after the other: other threads run while one is compressed, but not while it is made JSON."""
    compressor, before = lzma.LZMACompressor(preset=2), b""
    parts = [compressor.compress(b"{")]
    for key, text in texts.items():
        parts.append(compressor.compress(b"".join([before, orjson.dumps(key), b":", orjson.dumps(text)])))
        before = b","
    return b"".join([*parts, compressor.compress(b"}"), compressor.flush()])


def unpack_texts(config_map: ConfigMapUpdated) -> dict[str, str]:
    """All texts by key. Plain keys override compressed ones. Raises UnreadableArchive."""
    archive = config_map.binary.get(ARCHIVE_KEY)
    if archive is None:
        return dict(config_map.data)
    try:
        unpacked = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_UNPACK_MEMORY_MAX)
        raw = unpacked.decompress(archive, max_length=UNPACKED_BYTES_MAX + 1)
    except (lzma.LZMAError, EOFError) as error:
        raise UnreadableArchive(f"key {ARCHIVE_KEY}: {error}") from None
    if len(raw) > UNPACKED_BYTES_MAX:
        raise UnreadableArchive(f"key {ARCHIVE_KEY} unpacks to more than {UNPACKED_BYTES_MAX} bytes")
    if not unpacked.eof:
        raise UnreadableArchive(f"key {ARCHIVE_KEY} is truncated")
    try:
        texts = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise UnreadableArchive(f"key {ARCHIVE_KEY}: {error}") from None
    if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
        raise UnreadableArchive(f"key {ARCHIVE_KEY} is not a JSON object of strings")
    return {**texts, **config_map.data}
