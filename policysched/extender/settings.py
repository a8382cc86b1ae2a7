"""The settings of `policysched extender`: the same file, variables and precedence as those of `run`.

One file may serve both; what only the other one reads is checked all the same, and left alone.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from policysched.config.logs import LogFormat
from policysched.config.setting_layers import Given, Wrong
from policysched.config.settings import Place, made, wrong_for_all
from policysched.config.source_settings import SamplesSettings, samples_settings
from policysched.extender.handlers import ExtenderLimits
from policysched.kube.watch.reflector import ReflectSettings
from policysched.kube.write.report import ReportSettings
from policysched.resources import at_home
from policysched.serve.server import Address
from policysched.serve.tls import TlsFiles


@dataclass(frozen=True, slots=True)
class ExtenderSettings:
    """`source` is the policies' ConfigMap, or files and folders; `last_good` goes with a ConfigMap."""

    source: Place | tuple[Path, ...]
    last_good: Place | None
    http: Address
    limits: ExtenderLimits = field(default_factory=ExtenderLimits)
    tls: TlsFiles | None = None
    kubeconfig: Path | None = None
    context: str | None = None
    metrics: Path | None = None
    samples: SamplesSettings = field(default_factory=SamplesSettings)
    log_format: LogFormat = "text"
    log_level: str = "info"
    connections_max: int = 96
    reflecting: ReflectSettings = field(default_factory=ReflectSettings)
    reporting: ReportSettings = field(default_factory=ReportSettings)
    params: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    compile_timeout_s: float = 20.0
    as_given: Mapping[str, Any] = field(default_factory=dict)

    @property
    def place(self) -> str:
        """Where the policies stand, for words about them."""
        if isinstance(self.source, Place):
            return f"ConfigMap {self.source}"
        return f"files {', '.join(map(str, self.source))}"


def read_extender_settings(
    file: Path | None, environment: Mapping[str, str], flags: Mapping[str, Any]
) -> ExtenderSettings:
    """`flags` has the form of the file, without what was not given. Raises BadSettings."""
    layers = Given(file, environment, flags)
    # A flag for the one wins over the other in the file.
    from_files = "policy_files" in flags or ("policy_files" in layers.value and "policies" not in flags)
    if not from_files and layers.may_lack("policies"):
        layers.problems.append(
            "nothing says where the policies are: give --policies NAMESPACE/CONFIGMAP or --policy-files PATH"
        )
    if layers.may_lack("http"):
        layers.problems.append(
            "nothing says where to listen: give --http HOST:PORT, or `http` in the settings file"
        )
    layers.refuse(wrong_for_all(layers))
    layers.refuse(_wrong_tls(layers))
    layers.complete()
    return _settings(layers.value, from_files=from_files)


def _wrong_tls(given: Given) -> Iterator[Wrong]:
    tls = given.sound("extender_server", "tls")
    if tls is not None and not {"certificate", "key"} <= tls.keys():
        yield ("extender_server", "tls"), "a certificate and its key belong together: give both"


def _settings(given: Mapping[str, Any], *, from_files: bool) -> ExtenderSettings:
    own = given.get("extender_server", {})
    api, log = given.get("api", {}), given.get("log", {})
    source: Place | tuple[Path, ...]
    if from_files:
        source, last_good = tuple(at_home(one) for one in given["policy_files"]), None
    else:
        source = Place.parse(given["policies"])
        last_good = Place.parse(given.get("last_good", f"{source}-last-good"))
    return ExtenderSettings(
        source=source,
        last_good=last_good,
        http=Address.parse(given["http"]),
        limits=made(ExtenderLimits, {name: one for name, one in own.items() if name != "tls"}),
        tls=_tls(own.get("tls")),
        kubeconfig=at_home(given["kubeconfig"]) if "kubeconfig" in given else None,
        context=given.get("context"),
        metrics=at_home(given["metrics"]) if "metrics" in given else None,
        samples=samples_settings(given),
        log_format=log.get("format", "text"),
        log_level=log.get("level", "info"),
        connections_max=api.get("connections_max", 96),
        reflecting=made(ReflectSettings, {name: api[name] for name in ("page_size",) if name in api}),
        reporting=made(ReportSettings, given.get("reporting", {})),
        params=given.get("params", {}),
        compile_timeout_s=given.get("compile_timeout_s", 20.0),
        as_given=given,
    )


def _tls(given: Mapping[str, str] | None) -> TlsFiles | None:
    if given is None:
        return None
    files = {name: at_home(path) for name, path in given.items()}
    return TlsFiles(files["certificate"], files["key"], files.get("client_ca"))
