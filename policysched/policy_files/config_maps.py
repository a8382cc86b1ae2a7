"""Reads the policies of ConfigMaps in YAML, each with its location in the file.

The marks of `yaml.compose` locate a block scalar; its lines are those of the policy, indented. For a quoted scalar only
the location of its key is known. JSON is read as YAML.
"""

from collections.abc import Iterator

import yaml

from policysched.files import normalize_text
from policysched.policy_files.source_set import (
    PARAMETERS_SUFFIX,
    POLICY_SUFFIX,
    SourceSet,
    TextBlock,
    UnusableFile,
)
from policysched.policy_files.yaml_depth import NESTING_MAX, nests_too_deep
from policysched.text import Origin, Position, Source

Fields = dict[str, tuple[yaml.Node, yaml.Node]]
_LOADER: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_config_maps(text: str, name: str) -> Iterator[SourceSet]:
    """Each ConfigMap with a policy key. Raises UnusableFile where the text is not YAML."""
    lines = text.split("\n")
    if nests_too_deep(text.encode()):
        raise UnusableFile(f"{name}: nests more than {NESTING_MAX} levels deep")
    try:
        documents = list(yaml.compose_all(text, Loader=_LOADER))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f":{mark.line + 1}:{mark.column + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or str(error).split("\n")[0]
        raise UnusableFile(f"{name}{place}: not YAML: {problem}") from None
    for document in documents:
        for config_map in _objects(document):
            source_set = _config_map(config_map, name, lines)
            if source_set is not None:
                yield source_set


def _objects(node: yaml.Node | None) -> Iterator[Fields]:
    fields = _fields(node)
    kind = _string_value(fields, "kind")
    if kind == "ConfigMap":
        yield fields
    elif (
        kind is not None
        and kind.endswith("List")
        and isinstance(items := _value(fields, "items"), yaml.SequenceNode)
    ):
        for item in items.value:
            yield from _objects(item)


def _config_map(fields: Fields, name: str, lines: list[str]) -> SourceSet | None:
    metadata = _fields(_value(fields, "metadata"))
    names = (_string_value(metadata, "namespace"), _string_value(metadata, "name"))
    full_name = "/".join(name_part for name_part in names if name_part)
    sources: dict[str, Source] = {}
    places: dict[str, TextBlock] = {}
    quoted: set[str] = set()
    params: dict[str, Source] = {}
    _reject_binary_data(_fields(_value(fields, "binaryData")), name, full_name)
    for key, (key_node, node) in _fields(_value(fields, "data")).items():
        if not key.endswith((POLICY_SUFFIX, PARAMETERS_SUFFIX)) or not isinstance(node, yaml.ScalarNode):
            continue
        note = f"ConfigMap {full_name}, key {key}" if full_name else f"ConfigMap, key {key}"
        place = _text_block(node, lines) if node.style == "|" else None
        text = node.value if place is not None else normalize_text(node.value)
        source = Source(name, text, _origin(place, key_node, note))
        if key.endswith(PARAMETERS_SUFFIX):
            params[key] = source
            continue
        if place is None:
            quoted.add(key)
        else:
            places[key] = place
        sources[key] = source
    if not sources:
        return None
    return SourceSet(name, sources, frozenset(sources), places, frozenset(quoted), params)


def _reject_binary_data(fields: Fields, name: str, full_name: str) -> None:
    """kubectl stores files that are not UTF-8 under binaryData; the scheduler rejects them."""
    for key, (node, _) in fields.items():
        if key.endswith((POLICY_SUFFIX, PARAMETERS_SUFFIX)):
            at = f"{name}:{node.start_mark.line + 1}:{node.start_mark.column + 1}"
            raise UnusableFile(
                f"{at}: key {key} of ConfigMap {full_name} is under binaryData, where kubectl puts files that are not UTF-8"
            )


def _origin(place: TextBlock | None, key: yaml.Node, note: str) -> Origin:
    if place is None:
        at = Position(key.start_mark.line + 1, key.start_mark.column + 1)
        return Origin(note=note, fixed_position=at)
    return Origin(place.first_line, place.indent, note)


def _text_block(node: yaml.ScalarNode, lines: list[str]) -> TextBlock | None:
    """A block scalar begins on the line after its `|`; its first non-empty line shows the indent."""
    first = node.start_mark.line + 1
    content = node.value.split("\n")
    if content[-1] == "":
        content.pop()
    for number, line in enumerate(content):
        if line.strip(" "):
            in_file = lines[first + number]
            indent = len(in_file) - len(in_file.lstrip(" ")) - (len(line) - len(line.lstrip(" ")))
            return TextBlock(first, len(content), indent)
    return None


def _fields(node: yaml.Node | None) -> Fields:
    if not isinstance(node, yaml.MappingNode):
        return {}
    return {key.value: (key, value) for key, value in node.value if isinstance(key, yaml.ScalarNode)}


def _value(fields: Fields, key: str) -> yaml.Node | None:
    return fields[key][1] if key in fields else None


def _string_value(fields: Fields, key: str) -> str | None:
    node = _value(fields, key)
    return str(node.value) if isinstance(node, yaml.ScalarNode) else None
