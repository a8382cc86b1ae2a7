"""The settings `sources` and `default_source`: from checked YAML to the settings of each kind of source."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from policysched.config.layers import LayeredSettings
from policysched.metric_sources.registry import SOURCE_KINDS
from policysched.metric_sources.source_kind import SettingProblem, SourceSettings


@dataclass(frozen=True, slots=True)
class SamplesSettings:
    sources: Mapping[str, SourceSettings] = field(default_factory=dict)
    default: str | None = None


def samples_settings(values: Mapping[str, Any]) -> SamplesSettings:
    """From settings that fit the schema and have no `source_problems`."""
    sources = {
        name: SOURCE_KINDS[source["kind"]].parse(source) for name, source in values.get("sources", {}).items()
    }
    return SamplesSettings(sources, values.get("default_source"))


def source_problems(layers: LayeredSettings) -> Iterator[SettingProblem]:
    """What the schema cannot express."""
    for name, source in layers.valid_sections("sources"):
        for path, reason in SOURCE_KINDS[source["kind"]].problems(source):
            yield ("sources", name, *path), reason
    default, sources = layers.valid("default_source"), layers.value.get("sources", {})
    if default is not None and isinstance(sources, Mapping) and default not in sources:
        yield ("default_source",), f"there is no source `{default}` under `sources`"


def redact_secrets(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings for display. Credentials are in files, of which only the names show; headers may hold some."""
    redacted = dict(values)
    if "sources" in values:
        redacted["sources"] = {
            name: {
                **source,
                **({"headers": dict.fromkeys(source["headers"], "***")} if "headers" in source else {}),
            }
            for name, source in values["sources"].items()
        }
    return redacted
