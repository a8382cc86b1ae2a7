"""The settings of `policysched extender`: the same file, variables and precedence as those of `run`.

Both programs can use one file; sections of the other program are validated and ignored.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from policysched.config.http_settings import HttpSettings, http_settings
from policysched.config.layers import LayeredSettings
from policysched.config.logs import LogFormat
from policysched.config.settings import NamespacedName, common_problems, with_overrides
from policysched.config.source_settings import SamplesSettings, samples_settings
from policysched.data_files import expand_home
from policysched.extender.handlers import ExtenderLimits
from policysched.kube.watch.reflector import ReflectorSettings
from policysched.kube.write.events_and_conditions import ReporterSettings
from policysched.lang.check.limits import POLICY_COST_MAX

SCHEDULER_NAMES_DEFAULT = ("default-scheduler",)


@dataclass(frozen=True, slots=True)
class ExtenderSettings:
    """`source` is the policies' ConfigMap, or files and folders; `last_good` is set for a ConfigMap only. Pods with one of
    the `scheduler_names` may be bound."""

    source: NamespacedName | tuple[Path, ...]
    last_good: NamespacedName | None
    http: HttpSettings
    limits: ExtenderLimits = field(default_factory=ExtenderLimits)
    scheduler_names: frozenset[str] = frozenset(SCHEDULER_NAMES_DEFAULT)
    kubeconfig: Path | None = None
    context: str | None = None
    metrics: Path | None = None
    samples: SamplesSettings = field(default_factory=SamplesSettings)
    log_format: LogFormat = "text"
    log_level: str = "info"
    connections_max: int = 96
    reflecting: ReflectorSettings = field(default_factory=ReflectorSettings)
    reporting: ReporterSettings = field(default_factory=ReporterSettings)
    params: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    compile_timeout_s: float = 20.0
    policy_timeout_s: float = 5.0
    policy_cost_max: int = POLICY_COST_MAX
    configured: Mapping[str, Any] = field(default_factory=dict)

    @property
    def source_name(self) -> str:
        """The location of the policies, for messages."""
        if isinstance(self.source, NamespacedName):
            return f"ConfigMap {self.source}"
        return f"files {', '.join(map(str, self.source))}"


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
    return _settings(layers.value, from_files=from_files)


def _settings(given: Mapping[str, Any], *, from_files: bool) -> ExtenderSettings:
    own = given.get("extender_server", {})
    api, log = given.get("api", {}), given.get("log", {})
    source: NamespacedName | tuple[Path, ...]
    if from_files:
        source, last_good = tuple(expand_home(path) for path in given["policy_files"]), None
    else:
        source = NamespacedName.parse(given["policies"])
        last_good = NamespacedName.parse(given.get("last_good", f"{source}-last-good"))
    http = http_settings(given)
    assert http is not None, "checked before"
    return ExtenderSettings(
        source=source,
        last_good=last_good,
        http=http,
        limits=with_overrides(
            ExtenderLimits, {name: value for name, value in own.items() if name != "scheduler_names"}
        ),
        scheduler_names=frozenset(own.get("scheduler_names", SCHEDULER_NAMES_DEFAULT)),
        kubeconfig=expand_home(given["kubeconfig"]) if "kubeconfig" in given else None,
        context=given.get("context"),
        metrics=expand_home(given["metrics"]) if "metrics" in given else None,
        samples=samples_settings(given),
        log_format=log.get("format", "text"),
        log_level=log.get("level", "info"),
        connections_max=api.get("connections_max", 96),
        reflecting=with_overrides(
            ReflectorSettings, {name: api[name] for name in ("page_size",) if name in api}
        ),
        reporting=with_overrides(ReporterSettings, given.get("reporting", {})),
        params=given.get("params", {}),
        compile_timeout_s=given.get("compile_timeout_s", 20.0),
        policy_timeout_s=given.get("policy_timeout_s", 5.0),
        policy_cost_max=given.get("policy_cost_max", POLICY_COST_MAX),
        configured=given,
    )
