"""The settings of `policysched extender`: the same file, variables and precedence as those of `run`.

Both programs can use one file; sections of the other program are validated and ignored.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from policysched.config.http_settings import HttpSettings
from policysched.config.layers import LayeredSettings
from policysched.config.settings import (
    DaemonSettings,
    NamespacedName,
    common_problems,
    config_map_names,
    shared_settings,
    with_overrides,
)
from policysched.data_files import expand_home
from policysched.extender.handlers import ExtenderLimits

SCHEDULER_NAMES_DEFAULT = ("default-scheduler",)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtenderSettings(DaemonSettings):
    """Pods with one of the `scheduler_names` may be bound."""

    http: HttpSettings
    limits: ExtenderLimits = field(default_factory=ExtenderLimits)
    scheduler_names: frozenset[str] = frozenset(SCHEDULER_NAMES_DEFAULT)


def read_extender_settings(
    file: Path | None, environment: Mapping[str, str], flags: Mapping[str, Any]
) -> ExtenderSettings:
    """`flags` has the structure of the file and only the given keys. Raises BadSettings."""
    layers = LayeredSettings(file, environment, flags)
    # A flag for one source overrides the other source in the file.
    from_files = "policy_files" in flags or ("policy_files" in layers.value and "policies" not in flags)
    if not from_files and layers.is_missing("policies"):
        layers.problems.append(
            "no policies are configured: give --policies NAMESPACE/CONFIGMAP or --policy-files PATH"
        )
    if layers.is_missing("http"):
        layers.problems.append("no listen address: give --http HOST:PORT, or `http` in the settings file")
    layers.add_problems(common_problems(layers))
    layers.raise_problems()
    return replace(_settings(layers.value, from_files=from_files), file=file)


def _settings(values: Mapping[str, Any], *, from_files: bool) -> ExtenderSettings:
    server_settings = values.get("extender_server", {})
    policies: NamespacedName | tuple[Path, ...]
    if from_files:
        policies, last_good = tuple(expand_home(path) for path in values["policy_files"]), None
    else:
        policies, last_good = config_map_names(values)
    return ExtenderSettings(
        policies=policies,
        last_good=last_good,
        limits=with_overrides(
            ExtenderLimits,
            {name: value for name, value in server_settings.items() if name != "scheduler_names"},
        ),
        scheduler_names=frozenset(server_settings.get("scheduler_names", SCHEDULER_NAMES_DEFAULT)),
        **shared_settings(values),
    )
