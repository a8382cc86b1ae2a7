"""Reads the policies of ConfigMaps in YAML, each with its location in the file.

The lines of a block scalar are those of the policy, indented. For a quoted scalar only the location of its key is known.
JSON is read as YAML.
"""

import re
from collections.abc import Iterator
from itertools import pairwise

from policysched.files import normalize_text
from policysched.policy_files.source_set import (
    PARAMETERS_SUFFIX,
    POLICY_SUFFIX,
    SourceSet,
    TextBlock,
    UnusableFile,
)
from policysched.text import Origin, Position, Source
from policysched.yaml_values import InvalidYaml, YamlValue, read_yaml_documents

DOCUMENT_CHARACTERS_MAX = 2 * 2**20
"""A ConfigMap holds 1 MiB, which is longer in YAML. The parser needs up to 200 times the size of a document."""
_DOCUMENT_START = re.compile(r"^---", re.MULTILINE)


def read_config_maps(text: str, name: str) -> Iterator[SourceSet]:
    """Each ConfigMap with a policy key. Raises UnusableFile where the text is not YAML, or too long for it."""
    _limit_documents(text, name)
    lines = text.split("\n")
    try:
        sets = [
            _config_map(config_map, name, lines)
            for document in read_yaml_documents(text)
            for config_map in _config_maps(document)
        ]
    except InvalidYaml as error:
        raise UnusableFile(error.at(name)) from None
    yield from (source_set for source_set in sets if source_set is not None)


def _limit_documents(text: str, name: str) -> None:
    starts = [0, *(match.start() for match in _DOCUMENT_START.finditer(text)), len(text)]
    for start, end in pairwise(starts):
        if end - start > DOCUMENT_CHARACTERS_MAX:
            line = text.count("\n", 0, start) + 1
            raise UnusableFile(
                f"{name}:{line}: a document of {end - start:,} characters, the limit is {DOCUMENT_CHARACTERS_MAX:,}: a ConfigMap "
                "holds 1 MiB; write each ConfigMap of a long List as a document of its own"
            )


def _config_maps(value: YamlValue) -> Iterator[YamlValue]:
    kind = _scalar(value, "kind") or ""
    if kind == "ConfigMap":
        yield value
    elif kind.endswith("List") and (items := value.children.get("items")) is not None and items.is_list:
        for _, item in items.entries():
            yield from _config_maps(item)


def _config_map(config_map: YamlValue, name: str, lines: list[str]) -> SourceSet | None:
    metadata = config_map.children.get("metadata")
    names = [] if metadata is None else [_scalar(metadata, "namespace"), _scalar(metadata, "name")]
    full_name = "/".join(name_part for name_part in names if name_part)
    sources: dict[str, Source] = {}
    blocks: dict[str, TextBlock] = {}
    quoted: set[str] = set()
    params: dict[str, Source] = {}
    _reject_binary_data(config_map, name, full_name)
    for key, value in _policy_keys(config_map, "data"):
        if (content := value.scalar) is None:
            continue
        note = f"ConfigMap {full_name}, key {key}" if full_name else f"ConfigMap, key {key}"
        block = _text_block(value, lines) if value.is_literal_block else None
        text = content if block is not None else normalize_text(content)
        source = Source(name, text, _origin(block, value.key_start, note))
        if key.endswith(PARAMETERS_SUFFIX):
            params[key] = source
            continue
        if block is None:
            quoted.add(key)
        else:
            blocks[key] = block
        sources[key] = source
    if not sources:
        return None
    return SourceSet(name, sources, frozenset(sources), blocks, frozenset(quoted), params)


def _reject_binary_data(config_map: YamlValue, name: str, full_name: str) -> None:
    """kubectl stores files that are not UTF-8 under binaryData; the scheduler rejects them."""
    for key, value in _policy_keys(config_map, "binaryData"):
        at = value.key_start
        raise UnusableFile(
            f"{name}:{at.line}:{at.column}: key {key} of ConfigMap {full_name} is under binaryData, where kubectl puts files "
            "that are not UTF-8"
        )


def _policy_keys(config_map: YamlValue, field: str) -> Iterator[tuple[str, YamlValue]]:
    if (data := config_map.children.get(field)) is not None and data.is_map:
        for key, value in data.children.items():
            if key.endswith((POLICY_SUFFIX, PARAMETERS_SUFFIX)):
                yield key, value


def _origin(block: TextBlock | None, key: Position, note: str) -> Origin:
    if block is None:
        return Origin(note=note, fixed_position=key)
    return Origin(block.first_line, block.indent, note)


def _text_block(value: YamlValue, lines: list[str]) -> TextBlock | None:
    """A block scalar begins on the line after its `|`; its first non-empty line shows the indent."""
    first = value.start.line
    content = (value.scalar or "").split("\n")
    if content[-1] == "":
        content.pop()
    for number, line in enumerate(content):
        if line.strip(" "):
            in_file = lines[first + number]
            indent = len(in_file) - len(in_file.lstrip(" ")) - (len(line) - len(line.lstrip(" ")))
            return TextBlock(first, len(content), indent)
    return None


def _scalar(value: YamlValue, key: str) -> str | None:
    return value.children[key].scalar if key in value.children else None
