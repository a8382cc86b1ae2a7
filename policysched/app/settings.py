"""What the operator sets: a YAML file, POLICYSCHED_* variables over it, flags over both.

Each layer is checked against `schemas/settings.json` on its own, so that a mistake is reported where it was made: the
file with its line, or the variable by its name. A field of a section is written with two underscores in a variable:
`POLICYSCHED_LEADER_ELECTION__ENABLED=false`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

import yaml

from policysched.app.logs import LogFormat
from policysched.app.source_settings import SamplesSettings, samples_settings
from policysched.kube.bind import BindSettings
from policysched.kube.extender_client import Peer, PeerTls
from policysched.kube.lease import LeaseSettings
from policysched.kube.reflect import ReflectSettings
from policysched.kube.report import ReportSettings
from policysched.schedule.limits import Limits
from policysched.schemas import findings, schema
from policysched.serve.server import Address

ENVIRONMENT_PREFIX = "POLICYSCHED_"
Made = TypeVar("Made")


class BadSettings(Exception):
    """Settings that cannot be used: one line that says where and what."""


@dataclass(frozen=True, slots=True)
class Place:
    """A namespaced object by name."""

    namespace: str
    name: str

    @classmethod
    def parse(cls, text: str) -> "Place":
        """`NAMESPACE/NAME`. The settings' schema has seen to its form."""
        namespace, _, name = text.partition("/")
        return cls(namespace, name)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class NodeObjects:
    """A kind of custom resource that is read beside the nodes: policies know it as `node.objects["KIND"]`."""

    kind: str
    group: str
    version: str
    resource: str


@dataclass(frozen=True, slots=True)
class Settings:
    """Complete, defaults included. `lease` None: no leader election."""

    policies: Place
    last_good: Place
    kubeconfig: Path | None = None
    context: str | None = None
    http: Address | None = None
    metrics: Path | None = None
    log_format: LogFormat = "text"
    log_level: str = "info"
    lease: LeaseSettings | None = field(default_factory=LeaseSettings)
    connections_max: int = 96
    reflecting: ReflectSettings = field(default_factory=ReflectSettings)
    binding: BindSettings = field(default_factory=BindSettings)
    reporting: ReportSettings = field(default_factory=ReportSettings)
    limits: Limits = field(default_factory=Limits)
    params: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    extenders: Mapping[str, Peer] = field(default_factory=dict)
    node_objects: tuple[NodeObjects, ...] = ()
    compile_timeout_s: float = 20.0
    stop_wait_s: float = 25.0
    samples: SamplesSettings = field(default_factory=SamplesSettings)
    as_given: Mapping[str, Any] = field(default_factory=dict)


def read_settings(file: Path | None, environment: Mapping[str, str], flags: Mapping[str, Any]) -> Settings:
    """`flags` has the form of the file, without what was not given. Raises BadSettings."""
    return _settings(given_settings(file, environment, flags))


def given_settings(
    file: Path | None, environment: Mapping[str, str], flags: Mapping[str, Any]
) -> dict[str, Any]:
    """What was given, the layers laid over each other, in the form of the file. Raises BadSettings."""
    from_file = _read_file(file) if file is not None else {}
    from_environment = _read_environment(environment)
    if found := findings("settings", flags):
        raise BadSettings(f"flags: {found[0]}")
    return _laid_over(_laid_over(from_file, from_environment), flags)


def _read_file(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        value = yaml.safe_load(text)
    except (OSError, UnicodeDecodeError) as error:
        raise BadSettings(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    # ValueError and RecursionError: a date such as 2026-99-99, a number of thousands of digits, brackets without end.
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise BadSettings(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    value = {} if value is None else value
    if found := findings("settings", value, text):
        raise BadSettings(f"{path}: {found[0]}")
    read: dict[str, Any] = value
    return read


def _read_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """Variables that name a setting. Others with our prefix are refused: a misspelt one must not be ignored."""
    read: dict[str, Any] = {}
    for name in sorted(environment):
        if not name.startswith(ENVIRONMENT_PREFIX) or name in _NOT_SETTINGS:
            continue
        path = name.removeprefix(ENVIRONMENT_PREFIX).lower().split("__")
        try:
            value = yaml.safe_load(environment[name])
        except (yaml.YAMLError, ValueError, RecursionError):
            value = environment[name]
        nested: Any = value if _wants_no_text(path) or isinstance(value, dict | list) else environment[name]
        for part in reversed(path):
            nested = {part: nested}
        if found := findings("settings", nested):
            raise BadSettings(f"environment variable {name}: {found[0]}")
        read = _laid_over(read, nested)
    return read


_NOT_SETTINGS = frozenset({"POLICYSCHED_REQUIRE", "POLICYSCHED_CONFIG"})
"""What the project's tests are told, and the file itself."""


def _wants_no_text(path: list[str]) -> bool:
    """Whether the setting is a number or a truth: then `5` is 5 and not a text."""
    found: Any = schema("settings")
    for part in path:
        found = found.get("properties", {}).get(part, {})
        if "$ref" in found:
            found = schema("settings")["$defs"][found["$ref"].rpartition("/")[2]]
    return found.get("type") in ("integer", "number", "boolean")


def _laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    laid = dict(below)
    for name, value in above.items():
        old = laid.get(name)
        both = isinstance(value, Mapping) and isinstance(old, Mapping)
        laid[name] = _laid_over(old, value) if both and isinstance(old, Mapping) else value
    return laid


def _settings(given: Mapping[str, Any]) -> Settings:
    if "policies" not in given:
        raise BadSettings(
            "nothing says where the policies are: give --policies NAMESPACE/CONFIGMAP, or `policies` in the settings file"
        )
    policies = Place.parse(given["policies"])
    last_good = given.get("last_good", f"{policies}-last-good")
    api, log = given.get("api", {}), given.get("log", {})
    try:
        return Settings(
            policies=policies,
            last_good=Place.parse(last_good),
            kubeconfig=Path(given["kubeconfig"]).expanduser() if "kubeconfig" in given else None,
            context=given.get("context"),
            http=Address.parse(given["http"]) if "http" in given else None,
            metrics=Path(given["metrics"]).expanduser() if "metrics" in given else None,
            log_format=log.get("format", "text"),
            log_level=log.get("level", "info"),
            lease=_lease(given.get("leader_election", {})),
            connections_max=api.get("connections_max", 96),
            reflecting=made(ReflectSettings, {name: api[name] for name in ("page_size",) if name in api}),
            binding=made(BindSettings, given.get("binding", {})),
            reporting=made(ReportSettings, given.get("reporting", {})),
            limits=made(Limits, given.get("scheduling", {})),
            params=given.get("params", {}),
            extenders={name: _peer(name, one) for name, one in given.get("extenders", {}).items()},
            node_objects=tuple(
                NodeObjects(kind, one["group"], one["version"], one["resource"])
                for kind, one in sorted(given.get("node_objects", {}).items())
            ),
            compile_timeout_s=given.get("compile_timeout_s", 20.0),
            stop_wait_s=given.get("stop_wait_s", 25.0),
            samples=samples_settings(given),
            as_given=given,
        )
    except ValueError as error:
        raise BadSettings(str(error)) from error


def _lease(given: Mapping[str, Any]) -> LeaseSettings | None:
    if not given.get("enabled", True):
        return None
    usual = LeaseSettings()
    times = {
        name: given.get(name, getattr(usual, name)) for name in ("duration_s", "renew_deadline_s", "retry_s")
    }
    place = Place.parse(given.get("lease", f"{usual.namespace}/{usual.name}"))
    if not times["retry_s"] < times["renew_deadline_s"] < times["duration_s"]:
        raise ValueError("leader_election: it must hold that retry_s < renew_deadline_s < duration_s")
    if times["duration_s"] < 1:
        raise ValueError("leader_election: duration_s must be at least 1: a Lease counts whole seconds")
    return LeaseSettings(namespace=place.namespace, name=place.name, **times)


def _peer(name: str, given: Mapping[str, Any]) -> Peer:
    tls = dict(given.get("tls", {}))
    for file in ("ca", "certificate", "key"):
        if file in tls:
            tls[file] = Path(tls[file]).expanduser()
    if ("certificate" in tls) != ("key" in tls):
        raise ValueError(f"extenders.{name}.tls: a certificate and its key belong together: give both")
    if tls and not given["url"].startswith("https:"):
        raise ValueError(f"extenders.{name}.tls: the url is not https")
    if "filter" not in given and "prioritize" not in given:
        raise ValueError(f"extenders.{name}: nothing to ask it: give `filter` or `prioritize`")
    own = {key: value for key, value in given.items() if key not in ("tls", "resources")}
    return Peer(name=name, tls=PeerTls(**tls), resources=frozenset(given.get("resources", ())), **own)


def made(kind: type[Made], given: Mapping[str, Any]) -> Made:
    """The defaults of a dataclass with what was given put in their places."""
    names = {one.name for one in fields(kind)}  # type: ignore[arg-type]
    assert set(given) <= names, f"the schema lets through what {kind.__name__} lacks: {set(given) - names}"
    return kind(**given)
