"""The settings' `sources`: from checked YAML to what each kind of source takes.

What a schema cannot say is checked here: credentials that stand in each other's way, or in the settings themselves.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from policysched.samples.annotations import AnnotationsSettings
from policysched.samples.prometheus_server import BasicAuth, PrometheusSettings, TlsFiles


@dataclass(frozen=True, slots=True)
class MetricsApiSettings:
    timeout_s: float = 10.0


@dataclass(frozen=True, slots=True)
class FileSettings:
    path: Path


SourceSettings = PrometheusSettings | AnnotationsSettings | MetricsApiSettings | FileSettings


@dataclass(frozen=True, slots=True)
class SamplesSettings:
    sources: Mapping[str, SourceSettings] = field(default_factory=dict)
    default: str | None = None


def samples_settings(given: Mapping[str, Any]) -> SamplesSettings:
    """Of settings that fit the schema. Raises ValueError."""
    sources = {name: _source(name, one) for name, one in given.get("sources", {}).items()}
    default = given.get("default_source")
    if default is not None and default not in sources:
        raise ValueError(f"default_source: there is no source `{default}` under `sources`")
    return SamplesSettings(sources, default)


def without_secrets(given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings for people to see. Credentials are in files, which only their names tell; but headers may be some."""
    shown = dict(given)
    if "sources" in given:
        shown["sources"] = {
            name: {**one, **({"headers": dict.fromkeys(one["headers"], "***")} if "headers" in one else {})}
            for name, one in given["sources"].items()
        }
    return shown


def _source(name: str, given: Mapping[str, Any]) -> SourceSettings:
    match given["kind"]:
        case "prometheus":
            return _prometheus(name, given)
        case "annotations":
            return AnnotationsSettings(_time_zone(name, given.get("time_zone")))
        case "metrics-api":
            return MetricsApiSettings(given.get("timeout_s", 10.0))
        case "file":
            return FileSettings(Path(given["path"]).expanduser())
        case kind:
            raise AssertionError(f"the schema lets through the kind {kind!r}")


def _prometheus(name: str, given: Mapping[str, Any]) -> PrometheusSettings:
    usual = PrometheusSettings("")
    headers, header_files = given.get("headers", {}), given.get("header_files", {})
    ways = [way for way in ("bearer_token_file", "basic_auth") if way in given]
    named = [one.lower() for one in (*headers, *header_files)]
    if "authorization" in (one.lower() for one in headers):
        raise ValueError(
            f"sources.{name}.headers: credentials do not stand in the settings: "
            "use bearer_token_file, basic_auth, or header_files"
        )
    ways += ["header_files"] * ("authorization" in named)
    if len(ways) > 1:
        raise ValueError(f"sources.{name}: {' and '.join(ways)} both say who we are; give one of them")
    if doubled := {one for one in named if named.count(one) > 1}:
        raise ValueError(f"sources.{name}: the header {min(doubled)} is given twice")
    tls = given.get("tls", {})
    if tls and not given["url"].startswith("https:"):
        raise ValueError(f"sources.{name}.tls: the url is not an https:// one")
    if "proxy_auth" in given and "proxy" not in given:
        raise ValueError(f"sources.{name}.proxy_auth: there is no proxy")
    return PrometheusSettings(
        url=given["url"],
        timeout_s=given.get("timeout_s", usual.timeout_s),
        answer_bytes_max=given.get("answer_bytes_max", usual.answer_bytes_max),
        bearer_token_file=_path(given, "bearer_token_file"),
        basic_auth=_login(given, "basic_auth"),
        headers=headers,
        header_files={header: Path(path).expanduser() for header, path in header_files.items()},
        proxy=given.get("proxy"),
        proxy_auth=_login(given, "proxy_auth"),
        tls=TlsFiles(
            ca_file=_path(tls, "ca_file"),
            cert_file=_path(tls, "cert_file"),
            key_file=_path(tls, "key_file"),
            server_name=tls.get("server_name"),
            verify=tls.get("verify", True),
        ),
    )


def _path(given: Mapping[str, Any], name: str) -> Path | None:
    return Path(given[name]).expanduser() if name in given else None


def _login(given: Mapping[str, Any], name: str) -> BasicAuth | None:
    if name not in given:
        return None
    return BasicAuth(given[name]["username"], Path(given[name]["password_file"]).expanduser())


def _time_zone(name: str, zone: str | None) -> str | None:
    if zone is None:
        return None
    try:
        ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"sources.{name}.time_zone: this machine knows no time zone `{zone}`") from None
    return zone
