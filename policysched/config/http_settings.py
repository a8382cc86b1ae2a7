"""The settings of the HTTP server, which `run` and `extender` share: `http` and the section `http_server`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from policysched.config.layers import LayeredSettings
from policysched.data_files import expand_home
from policysched.metric_sources.source_kind import SettingProblem
from policysched.serve.connections import CONNECTIONS_MAX_DEFAULT
from policysched.serve.server import ListenAddress
from policysched.serve.tls import ServerTlsFiles


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """`insecure`: plain HTTP without authentication, on a loopback address only."""

    address: ListenAddress
    tls: ServerTlsFiles = field(default_factory=ServerTlsFiles)
    insecure: bool = False
    connections_max: int = CONNECTIONS_MAX_DEFAULT

    @property
    def scheme(self) -> str:
        return "http" if self.insecure else "https"


def http_problems(layers: LayeredSettings) -> Iterator[SettingProblem]:
    server, address = layers.valid("http_server") or {}, None
    text = layers.valid("http")
    if text is not None:
        try:
            address = ListenAddress.parse(text)
        except ValueError as error:
            yield ("http",), str(error)
    tls = server.get("tls", {})
    if ("certificate" in tls) != ("key" in tls):
        yield ("http_server", "tls"), "set both the certificate and its key"
    if not server.get("insecure"):
        return
    if tls:
        yield ("http_server", "insecure"), "plain HTTP has no certificate: give `insecure` or `tls`"
    if address is not None and not address.is_loopback:
        yield (
            ("http_server", "insecure"),
            "plain HTTP without authentication needs a loopback address in `http`, such as 127.0.0.1:10259",
        )


def http_settings(values: Mapping[str, Any]) -> HttpSettings | None:
    """None without `http`: nothing listens."""
    if "http" not in values:
        return None
    server = values.get("http_server", {})
    return HttpSettings(
        ListenAddress.parse(values["http"]),
        ServerTlsFiles(**{name: expand_home(path) for name, path in server.get("tls", {}).items()}),
        server.get("insecure", False),
        server.get("connections_max", CONNECTIONS_MAX_DEFAULT),
    )
