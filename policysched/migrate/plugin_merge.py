"""Which plugins are on at each extension point, as kube-scheduler itself works it out.

First the profile's sets are laid over the defaults (`mergePluginSet`, v1.36.2 `apis/config/v1/default_plugins.go`),
then multiPoint is spread over the points (`expandMultiPointPlugins`, `framework/runtime/framework.go`): a plugin that
its own point enables comes before those of multiPoint if it is one of them, otherwise behind them.
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
    """A plugin that is on. `path` is where the configuration says so, None for a default. `weight` 0: none is said."""

    name: str
    weight: int
    path: Path | None


@dataclass(frozen=True, slots=True)
class PluginSet:
    enabled: tuple[EnabledPlugin, ...] = ()
    disabled: Mapping[str, Path] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ExtensionPoints:
    """`enabled` gives for each point what is on, in its order. `weights` are those of the scores. `disabled` is everything
    that the profile switches off by its name or with `*`, by point; `defaults` is what would be on without it."""

    enabled: Mapping[str, tuple[EnabledPlugin, ...]]
    weights: Mapping[str, int]
    disabled: Mapping[str, Mapping[str, Path]]
    defaults: Mapping[str, frozenset[str]]

    def is_enabled(self, point: str, plugin: str) -> bool:
        return any(one.name == plugin for one in self.enabled[point])

    def points_of(self, plugin: str) -> list[tuple[str, EnabledPlugin]]:
        """The points at which it is on."""
        return [
            (point, one) for point in EXTENSION_POINTS for one in self.enabled[point] if one.name == plugin
        ]


def merge_plugins(
    document: LocatedDocument, path: Path, custom: Mapping[str, Any], version: ConfigVersion
) -> ExtensionPoints:
    """`path` leads to the profile's `plugins`, which is `custom`. Raises UnusableFile where kube-scheduler would not
    start with it."""
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
    usual = {point: frozenset(one.name for one in defaults[point].enabled) for point in sets}
    return ExtensionPoints(at, _weights(merged), disabled, usual)


def _read_set(
    document: LocatedDocument, above: Path, point: str, called: str, custom: Mapping[str, Any]
) -> PluginSet:
    """The set of a point, which stands in the field `called`."""
    path, given = (*above, called), custom.get(called) or {}
    enabled = tuple(
        EnabledPlugin(one["name"], one.get("weight") or 0, (*path, "enabled", index))
        for index, one in enumerate(given.get("enabled") or ())
    )
    seen: set[str] = set()
    for one in enabled:
        assert one.path is not None, one
        if one.name in seen:
            raise document.unusable_file(one.path, f"`{one.name}` is enabled twice")
        if one.name == ALL_PLUGINS:
            raise document.unusable_file(one.path, "`*` can be disabled, not enabled")
        seen.add(one.name)
        if (
            one.name in KNOWN_PLUGINS
            and point in ("queueSort", "filter", "score")
            and point not in KNOWN_PLUGINS[one.name].points
        ):
            may_score = one.name == "VolumeBinding" and point == "score"  # with StorageCapacityScoring
            if not may_score:
                raise document.unusable_file(one.path, f"`{one.name}` has nothing to do at {point}")
    disabled = {
        one["name"]: (*path, "disabled", index) for index, one in enumerate(given.get("disabled") or ())
    }
    return PluginSet(enabled, disabled)


def _defaults(version: ConfigVersion) -> dict[str, PluginSet]:
    sets = {point: PluginSet() for point in ("multiPoint", *EXTENSION_POINTS)}
    if version.multi_point:
        every = tuple(
            EnabledPlugin(name, plugin.weight or 0, None) for name, plugin in DEFAULT_PLUGINS.items()
        )
        return {**sets, "multiPoint": PluginSet(every)}
    points = default_points(version)
    return sets | {
        point: PluginSet(tuple(EnabledPlugin(name, weight, None) for name, weight in found))
        for point, found in points.items()
    }


def _merge_set(default: PluginSet, custom: PluginSet) -> PluginSet:
    """A default that is enabled again keeps its place and takes the new weight; the others come behind."""
    own = {one.name: one for one in custom.enabled}
    kept: list[EnabledPlugin] = []
    if ALL_PLUGINS not in custom.disabled:
        kept = [own.get(one.name, one) for one in default.enabled if one.name not in custom.disabled]
    names = {one.name for one in kept}
    kept += [one for one in custom.enabled if one.name not in names]
    return PluginSet(tuple(kept), custom.disabled)


def _expand_multi_point(point: str, own: PluginSet, multi: PluginSet) -> tuple[EnabledPlugin, ...]:
    if ALL_PLUGINS in own.disabled:
        return own.enabled
    named = {one.name for one in own.enabled}
    spread = [
        one for one in multi.enabled if _has_extension_point(one, point) and one.name not in own.disabled
    ]
    overridden = {one.name for one in spread} & named
    return (
        *(one for one in own.enabled if one.name in overridden),
        *(one for one in spread if one.name not in named),
        *(one for one in own.enabled if one.name not in overridden),
    )


def _has_extension_point(one: EnabledPlugin, point: str) -> bool:
    """Of a plugin from elsewhere it is not known at which points it does something: the profile's reader is told of
    it once, so it stands at all of them."""
    return one.name not in KNOWN_PLUGINS or point in KNOWN_PLUGINS[one.name].points


def _weights(merged: Mapping[str, PluginSet]) -> dict[str, int]:
    """The point's own weight before that of multiPoint; none, or 0, counts as 1."""
    weights: dict[str, int] = {}
    sources: Iterable[EnabledPlugin] = (*merged["score"].enabled, *merged["multiPoint"].enabled)
    for one in sources:
        weights.setdefault(one.name, one.weight or 1)
    return weights
