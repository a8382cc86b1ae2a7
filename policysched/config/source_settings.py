"""The settings' `sources`: from checked YAML to what each kind of source takes.

What a schema cannot say is checked here: credentials that stand in each other's way, or in the settings themselves.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from policysched.config.layers import LayeredSettings, SettingProblem
from policysched.data_files import expand_home
from policysched.metric_sources.annotations import AnnotationsSettings
from policysched.metric_sources.prometheus_transport import (
    BasicAuth,
    PrometheusSettings,
    PrometheusTls,
)


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
    """Of settings that fit the schema, and of which `source_problems` found nothing."""
    sources = {name: _source(one) for name, one in given.get("sources", {}).items()}
    return SamplesSettings(sources, given.get("default_source"))


def source_problems(given: LayeredSettings) -> Iterator[SettingProblem]:
    """What no schema can say of them."""
    for name, one in given.valid_sections("sources"):
        match one["kind"]:
            case "prometheus":
                yield from _prometheus_problems(("sources", name), one)
            case "annotations" if not _is_time_zone(one.get("time_zone", "UTC")):
                yield ("sources", name, "time_zone"), f"this machine knows no time zone `{one['time_zone']}`"
    default, sources = given.valid("default_source"), given.value.get("sources", {})
    if default is not None and isinstance(sources, Mapping) and default not in sources:
        yield ("default_source",), f"there is no source `{default}` under `sources`"


def _prometheus_problems(path: tuple[str, ...], given: Mapping[str, Any]) -> Iterator[SettingProblem]:
    headers, header_files = given.get("headers", {}), given.get("header_files", {})
    named = [one.lower() for one in (*headers, *header_files)]
    if "authorization" in (one.lower() for one in headers):
        yield (
            (*path, "headers"),
            "credentials do not stand in the settings: use bearer_token_file, basic_auth, or header_files",
        )
    ways = [way for way in ("bearer_token_file", "basic_auth") if way in given]
    ways += ["header_files"] * ("authorization" in named)
    if len(ways) > 1:
        yield path, f"{' and '.join(ways)} both say who we are; give one of them"
    if doubled := {one for one in named if named.count(one) > 1}:
        yield path, f"the header {min(doubled)} is given twice"
    if given.get("tls") and not given["url"].startswith("https:"):
        yield (*path, "tls"), "the url is not an https:// one"
    if "proxy_auth" in given and "proxy" not in given:
        yield (*path, "proxy_auth"), "there is no proxy"


def redact_secrets(given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings for people to see. Credentials are in files, which only their names tell; but headers may be some."""
    shown = dict(given)
    if "sources" in given:
        shown["sources"] = {
            name: {**one, **({"headers": dict.fromkeys(one["headers"], "***")} if "headers" in one else {})}
            for name, one in given["sources"].items()
        }
    return shown


def _source(given: Mapping[str, Any]) -> SourceSettings:
    match given["kind"]:
        case "prometheus":
            return _prometheus(given)
        case "annotations":
            return AnnotationsSettings(given.get("time_zone"))
        case "metrics-api":
            return MetricsApiSettings(given.get("timeout_s", 10.0))
        case "file":
            return FileSettings(expand_home(given["path"]))
        case kind:
            raise AssertionError(f"the schema lets through the kind {kind!r}")


def _prometheus(given: Mapping[str, Any]) -> PrometheusSettings:
    usual, tls = PrometheusSettings(""), given.get("tls", {})
    return PrometheusSettings(
        url=given["url"],
        timeout_s=given.get("timeout_s", usual.timeout_s),
        answer_bytes_max=given.get("answer_bytes_max", usual.answer_bytes_max),
        bearer_token_file=_path(given, "bearer_token_file"),
        basic_auth=_basic_auth(given, "basic_auth"),
        headers=given.get("headers", {}),
        header_files={header: expand_home(path) for header, path in given.get("header_files", {}).items()},
        proxy=given.get("proxy"),
        proxy_auth=_basic_auth(given, "proxy_auth"),
        tls=PrometheusTls(
            ca_file=_path(tls, "ca_file"),
            cert_file=_path(tls, "cert_file"),
            key_file=_path(tls, "key_file"),
            server_name=tls.get("server_name"),
            verify=tls.get("verify", True),
        ),
    )


def _path(given: Mapping[str, Any], name: str) -> Path | None:
    return expand_home(given[name]) if name in given else None


def _basic_auth(given: Mapping[str, Any], name: str) -> BasicAuth | None:
    if name not in given:
        return None
    return BasicAuth(given[name]["username"], expand_home(given[name]["password_file"]))


def _is_time_zone(name: str) -> bool:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return True
