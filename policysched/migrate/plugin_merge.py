"""Computes the enabled plugins of each extension point, as kube-scheduler does.

First the profile's sets are merged with the defaults (`mergePluginSet`, v1.37.2
`apis/config/v1/default_plugins.go`), then multiPoint is expanded to the points
(`expandMultiPointPlugins`, `framework/runtime/framework.go`): a plugin that its own point enables comes
before those of multiPoint if multiPoint enables it too, otherwise after them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from policysched.migrate.located_document import LocatedDocument, Path
from policysched.migrate.plugins import (
    DEFAULT_PLUGINS,
    EXTENSION_POINTS,
    KNOWN_PLUGINS,
    ConfigVersion,
    default_points,
)

ALL_PLUGINS = "*"


@dataclass(frozen=True, slots=True)
class EnabledPlugin:
    """An enabled plugin. `path` leads to its entry, None for a default. `weight` 0: not configured."""

    name: str
    weight: int
    path: Path | None


@dataclass(frozen=True, slots=True)
class PluginSet:
    enabled: tuple[EnabledPlugin, ...] = ()
    disabled: Mapping[str, Path] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ExtensionPoints:
    """The merged plugins of a profile.

    `enabled` lists the plugins of each point in order; `weights` are those of scores; `disabled` are the
    names, or `*`, that the profile disables, by point; `defaults` are the plugins enabled by default.
    """

    enabled: Mapping[str, tuple[EnabledPlugin, ...]]
    weights: Mapping[str, int]
    disabled: Mapping[str, Mapping[str, Path]]
    defaults: Mapping[str, frozenset[str]]

    def is_enabled(self, point: str, plugin: str) -> bool:
        return any(enabled.name == plugin for enabled in self.enabled[point])

    def points_of(self, plugin: str) -> list[tuple[str, EnabledPlugin]]:
        """The points at which the plugin is enabled."""
        return [
            (point, enabled)
            for point in EXTENSION_POINTS
            for enabled in self.enabled[point]
            if enabled.name == plugin
        ]


def merge_plugins(
    document: LocatedDocument, path: Path, custom: Mapping[str, Any], version: ConfigVersion
) -> ExtensionPoints:
    """Merge the profile's `plugins` with the defaults. `path` leads to `custom`.

    Raises UnusableFile if kube-scheduler rejects them.
    """
    sets = {
        point: _read_set(document, path, point, version.fields.get(point, point), custom)
        for point in ("multiPoint", *EXTENSION_POINTS)
    }
    defaults = _defaults(version)
    merged = {point: _merge_set(defaults[point], sets[point]) for point in sets}
    at = {
        point: _expand_multi_point(point, merged[point], merged["multiPoint"]) for point in EXTENSION_POINTS
    }
    disabled = {point: sets[point].disabled for point in sets}
    usual = {point: frozenset(plugin.name for plugin in defaults[point].enabled) for point in sets}
    return ExtensionPoints(at, _weights(merged), disabled, usual)


def _read_set(
    document: LocatedDocument, parent: Path, point: str, field_name: str, custom: Mapping[str, Any]
) -> PluginSet:
    """Read the plugin set of a point from its field."""
    path, plugin_set = (*parent, field_name), custom.get(field_name) or {}
    enabled = tuple(
        EnabledPlugin(entry["name"], entry.get("weight") or 0, (*path, "enabled", index))
        for index, entry in enumerate(plugin_set.get("enabled") or ())
    )
    names: set[str] = set()
    for plugin in enabled:
        assert plugin.path is not None, plugin
        if plugin.name in names:
            raise document.unusable_file(plugin.path, f"`{plugin.name}` is enabled twice")
        if plugin.name == ALL_PLUGINS:
            raise document.unusable_file(plugin.path, "`*` can only be disabled, not enabled")
        names.add(plugin.name)
        if (
            plugin.name in KNOWN_PLUGINS
            and point in ("queueSort", "filter", "score")
            and point not in KNOWN_PLUGINS[plugin.name].points
        ):
            raise document.unusable_file(plugin.path, f"`{plugin.name}` does not implement {point}")
    disabled = {
        entry["name"]: (*path, "disabled", index)
        for index, entry in enumerate(plugin_set.get("disabled") or ())
    }
    return PluginSet(enabled, disabled)


def _defaults(version: ConfigVersion) -> dict[str, PluginSet]:
    sets = {point: PluginSet() for point in ("multiPoint", *EXTENSION_POINTS)}
    if version.multi_point:
        all_plugins = tuple(
            EnabledPlugin(name, plugin.weight or 0, None) for name, plugin in DEFAULT_PLUGINS.items()
        )
        return {**sets, "multiPoint": PluginSet(all_plugins)}
    points = default_points(version)
    return sets | {
        point: PluginSet(tuple(EnabledPlugin(name, weight, None) for name, weight in plugins))
        for point, plugins in points.items()
    }


def _merge_set(default: PluginSet, custom: PluginSet) -> PluginSet:
    """A default that is enabled again keeps its position and takes the new weight; others are appended."""
    own_plugins = {plugin.name: plugin for plugin in custom.enabled}
    kept: list[EnabledPlugin] = []
    if ALL_PLUGINS not in custom.disabled:
        kept = [
            own_plugins.get(plugin.name, plugin)
            for plugin in default.enabled
            if plugin.name not in custom.disabled
        ]
    names = {plugin.name for plugin in kept}
    kept += [plugin for plugin in custom.enabled if plugin.name not in names]
    return PluginSet(tuple(kept), custom.disabled)


def _expand_multi_point(point: str, own_plugins: PluginSet, multi: PluginSet) -> tuple[EnabledPlugin, ...]:
    if ALL_PLUGINS in own_plugins.disabled:
        return own_plugins.enabled
    named = {plugin.name for plugin in own_plugins.enabled}
    spread = [
        plugin
        for plugin in multi.enabled
        if _has_extension_point(plugin, point) and plugin.name not in own_plugins.disabled
    ]
    overridden = {plugin.name for plugin in spread} & named
    return (
        *(plugin for plugin in own_plugins.enabled if plugin.name in overridden),
        *(plugin for plugin in spread if plugin.name not in named),
        *(plugin for plugin in own_plugins.enabled if plugin.name not in overridden),
    )


def _has_extension_point(plugin: EnabledPlugin, point: str) -> bool:
    """Whether the plugin implements the point. A third-party plugin counts for every point."""
    return plugin.name not in KNOWN_PLUGINS or point in KNOWN_PLUGINS[plugin.name].points


def _weights(merged: Mapping[str, PluginSet]) -> dict[str, int]:
    """Weights of scores: that of the score point wins over multiPoint; a missing weight, or 0, means 1."""
    weights: dict[str, int] = {}
    sources: Iterable[EnabledPlugin] = (*merged["score"].enabled, *merged["multiPoint"].enabled)
    for source in sources:
        weights.setdefault(source.name, source.weight or 1)
    return weights
