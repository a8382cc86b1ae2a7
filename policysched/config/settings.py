"""The settings of `policysched run`: a YAML file, overridden by POLICYSCHED_* variables, overridden by flags (`layers`).

A field of a section is written with two underscores in a variable: `POLICYSCHED_LEADER_ELECTION__ENABLED=false`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from policysched.config.http_settings import HttpSettings, http_problems, http_settings
from policysched.config.layers import LayeredSettings
from policysched.config.logs import LogFormat
from policysched.config.permission_settings import permission_settings
from policysched.config.source_settings import SamplesSettings, samples_settings, source_problems
from policysched.config.team_settings import TeamPolicySettings, team_problems, team_settings
from policysched.data_files import expand_home
from policysched.kube.client.transport import CONNECTIONS_MAX_DEFAULT
from policysched.kube.extender.client import ExtenderEndpoint, ExtenderTls
from policysched.kube.leader_election import LeaseSettings
from policysched.kube.watch.reflector import ReflectorSettings
from policysched.kube.write.bind import BindSettings
from policysched.kube.write.events_and_conditions import ReporterSettings
from policysched.lang.check.limits import POLICY_COST_MAX
from policysched.metric_sources.source_kind import SettingProblem
from policysched.recording.recording_settings import RecordingSettings
from policysched.scheduler.limits import SchedulerLimits
from policysched.scheduler.policy_permissions import PolicyPermissions

Dataclass = TypeVar("Dataclass")


@dataclass(frozen=True, slots=True)
class NamespacedName:
    """A namespaced object by name."""

    namespace: str
    name: str

    @classmethod
    def parse(cls, text: str) -> "NamespacedName":
        """`NAMESPACE/NAME`, as checked by the settings schema."""
        namespace, _, name = text.partition("/")
        return cls(namespace, name)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class NodeObjectKind:
    """A kind of custom resource with one object per node; policies read it as `node.objects["KIND"]`."""

    kind: str
    group: str
    version: str
    resource: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonSettings:
    """The settings that `run` and `extender` share, with defaults applied. `policies` is a ConfigMap, or files and folders;
    `last_good` is set for a ConfigMap only. `team_policies` None: only policies of the operator."""

    policies: NamespacedName | tuple[Path, ...]
    last_good: NamespacedName | None
    http: HttpSettings | None = None
    kubeconfig: Path | None = None
    context: str | None = None
    metrics: Path | None = None
    log_format: LogFormat = "text"
    log_level: str = "info"
    connections_max: int = CONNECTIONS_MAX_DEFAULT
    reflecting: ReflectorSettings = field(default_factory=ReflectorSettings)
    reporting: ReporterSettings = field(default_factory=ReporterSettings)
    permissions: PolicyPermissions = field(default_factory=PolicyPermissions)
    params: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    check_timeout_s: float = 20.0
    policy_check_timeout_s: float = 5.0
    policy_cost_max: int = POLICY_COST_MAX
    samples: SamplesSettings = field(default_factory=SamplesSettings)
    team_policies: TeamPolicySettings | None = None
    configured: Mapping[str, Any] = field(default_factory=dict)
    file: Path | None = None

    @property
    def source_name(self) -> str:
        """The location of the policies, for messages."""
        if isinstance(self.policies, NamespacedName):
            return f"ConfigMap {self.policies}"
        return f"files {', '.join(map(str, self.policies))}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(DaemonSettings):
    """The settings of `run`. `lease` None: no leader election. `recording` None: nothing is recorded. `otlp_endpoint` None:
    no decision is exported."""

    policies: NamespacedName
    last_good: NamespacedName
    lease: LeaseSettings | None = field(default_factory=LeaseSettings)
    delay_cache_until_active: bool = False
    binding: BindSettings = field(default_factory=BindSettings)
    limits: SchedulerLimits = field(default_factory=SchedulerLimits)
    extenders: Mapping[str, ExtenderEndpoint] = field(default_factory=dict)
    node_objects: tuple[NodeObjectKind, ...] = ()
    shutdown_timeout_s: float = 25.0
    recording: RecordingSettings | None = None
    otlp_endpoint: str | None = None


def read_settings(file: Path | None, environment: Mapping[str, str], flags: Mapping[str, Any]) -> Settings:
    """`flags` has the form of the file, without flags that are not given. Raises BadSettings."""
    layers = LayeredSettings(file, environment, flags)
    if layers.is_missing("policies"):
        layers.problems.append(
            "no policies are configured: give --policies NAMESPACE/CONFIGMAP, or `policies` in the settings file"
        )
    layers.add_problems(common_problems(layers))
    layers.add_problems(_time_problems(layers))
    layers.add_problems(_extender_problems(layers))
    layers.add_problems(_recording_problems(layers))
    layers.raise_problems()
    return replace(_settings(layers.value), file=file)


def common_problems(layers: LayeredSettings) -> Iterator[SettingProblem]:
    """Problems of settings that `policysched extender` shares."""
    yield from http_problems(layers)
    yield from source_problems(layers)
    yield from team_problems(layers)


def _time_problems(layers: LayeredSettings) -> Iterator[SettingProblem]:
    election = layers.valid("leader_election") or {}
    if not election.get("enabled", True):
        return
    times = _times(election)
    for shorter, longer in (("retry_period_s", "renew_deadline_s"), ("renew_deadline_s", "lease_duration_s")):
        if times[shorter] >= times[longer]:
            name = longer if longer in election else shorter
            wanted = "requires retry_period_s < renew_deadline_s < lease_duration_s"
            yield (
                ("leader_election", name),
                f"{wanted}, but {shorter} is {times[shorter]:g}, {longer} {times[longer]:g}",
            )
    if times["lease_duration_s"] < 1:
        yield ("leader_election", "lease_duration_s"), "must be at least 1: Lease durations are whole seconds"


def _extender_problems(layers: LayeredSettings) -> Iterator[SettingProblem]:
    for name, extender in layers.valid_sections("extenders"):
        path, tls = ("extenders", name), extender.get("tls", {})
        if ("certificate" in tls) != ("key" in tls):
            yield (*path, "tls"), "a certificate and its key belong together: give both"
        if tls and not extender["url"].startswith("https:"):
            yield (*path, "tls"), "the url is not https"
        if "filter" not in extender and "prioritize" not in extender:
            yield path, "no verb is configured: give `filter` or `prioritize`"


def _recording_problems(layers: LayeredSettings) -> Iterator[SettingProblem]:
    section = layers.valid("recording")
    recording = None if section is None else _recording(section)
    if recording is not None and recording.file_bytes_max * 2 > recording.bytes_max:
        limit = f"{recording.bytes_max:,}"
        yield (
            ("recording", "file_bytes_max"),
            f"is more than half of bytes_max ({limit}), so no complete file could be kept",
        )


def config_map_names(values: Mapping[str, Any]) -> tuple[NamespacedName, NamespacedName]:
    """The ConfigMaps of the policies, and of the last known good ones."""
    policies = NamespacedName.parse(values["policies"])
    return policies, NamespacedName.parse(values.get("last_good", f"{policies}-last-good"))


def shared_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `DaemonSettings` but the location of the policies."""
    api, log = values.get("api", {}), values.get("log", {})
    return {
        "http": http_settings(values),
        "kubeconfig": expand_home(values["kubeconfig"]) if "kubeconfig" in values else None,
        "context": values.get("context"),
        "metrics": expand_home(values["metrics"]) if "metrics" in values else None,
        "log_format": log.get("format", "text"),
        "log_level": log.get("level", "info"),
        "connections_max": api.get("connections_max", CONNECTIONS_MAX_DEFAULT),
        "reflecting": with_overrides(
            ReflectorSettings, {name: api[name] for name in ("page_size",) if name in api}
        ),
        "reporting": with_overrides(ReporterSettings, values.get("reporting", {})),
        "permissions": permission_settings(values),
        "params": values.get("params", {}),
        "check_timeout_s": values.get("check_timeout_s", 20.0),
        "policy_check_timeout_s": values.get("policy_check_timeout_s", 5.0),
        "policy_cost_max": values.get("policy_cost_max", POLICY_COST_MAX),
        "samples": samples_settings(values),
        "team_policies": team_settings(values),
        "configured": values,
    }


def _settings(values: Mapping[str, Any]) -> Settings:
    policies, last_good = config_map_names(values)
    return Settings(
        policies=policies,
        last_good=last_good,
        lease=_lease(values.get("leader_election", {})),
        delay_cache_until_active=values.get("leader_election", {}).get("delay_cache_until_active", False),
        binding=with_overrides(BindSettings, values.get("binding", {})),
        limits=with_overrides(SchedulerLimits, values.get("scheduling", {})),
        extenders={name: _extender(name, extender) for name, extender in values.get("extenders", {}).items()},
        node_objects=tuple(
            NodeObjectKind(kind, resource["group"], resource["version"], resource["resource"])
            for kind, resource in sorted(values.get("node_objects", {}).items())
        ),
        shutdown_timeout_s=values.get("shutdown_timeout_s", 25.0),
        recording=_recording(values["recording"]) if "recording" in values else None,
        otlp_endpoint=values.get("otlp", {}).get("endpoint"),
        **shared_settings(values),
    )


def _recording(values: Mapping[str, Any]) -> RecordingSettings:
    limits = {name: value for name, value in values.items() if name != "folder"}
    return RecordingSettings(expand_home(values["folder"]), **limits)


def _lease(values: Mapping[str, Any]) -> LeaseSettings | None:
    if not values.get("enabled", True):
        return None
    default = LeaseSettings()
    lease = NamespacedName.parse(values.get("lease", f"{default.namespace}/{default.name}"))
    return LeaseSettings(namespace=lease.namespace, name=lease.name, **_times(values))


def _times(values: Mapping[str, Any]) -> dict[str, float]:
    default = LeaseSettings()
    return {
        name: values.get(name, getattr(default, name))
        for name in ("lease_duration_s", "renew_deadline_s", "retry_period_s")
    }


def _extender(name: str, values: Mapping[str, Any]) -> ExtenderEndpoint:
    tls = dict(values.get("tls", {}))
    for file in ("ca", "certificate", "key"):
        if file in tls:
            tls[file] = expand_home(tls[file])
    endpoint_values = {key: value for key, value in values.items() if key not in ("tls", "resources")}
    return ExtenderEndpoint(
        name=name, tls=ExtenderTls(**tls), resources=frozenset(values.get("resources", ())), **endpoint_values
    )


def with_overrides(kind: type[Dataclass], values: Mapping[str, Any]) -> Dataclass:
    """The dataclass with the given fields, and defaults for the others."""
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    assert set(values) <= names, f"the schema allows fields that {kind.__name__} lacks: {set(values) - names}"
    return kind(**values)
