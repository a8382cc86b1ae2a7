"""Options that `run` and `extender` share, and how they report errors at start."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click

from policysched.cli import CommandError

kubeconfig_option = click.option(
    "--kubeconfig",
    type=click.Path(dir_okay=False),
    help="The kubeconfig of the cluster (default in a pod: its service account).",
)
context_option = click.option(
    "--context", metavar="NAME", help="The kubeconfig context to use (default: the current one)."
)
policies_option = click.option(
    "--policies",
    metavar="NAMESPACE/CONFIGMAP",
    help="The ConfigMap that holds the policies in keys *.policy.",
)
last_good_option = click.option(
    "--last-good",
    metavar="NAMESPACE/CONFIGMAP",
    help="The ConfigMap that keeps the last known good policies (default: that of --policies with the suffix `-last-good`).",
)
config_option = click.option("--config", type=click.Path(dir_okay=False), help="A settings file (YAML).")
metrics_option = click.option(
    "--metrics",
    type=click.Path(dir_okay=False),
    help="A file with metric samples; it overrides the sources for the metrics that it contains.",
)
_INSECURE_HTTP_OPTION = click.option(
    "--insecure-http",
    is_flag=True,
    default=None,
    help="Serve plain HTTP without authentication; --http must be a loopback address.",
)
_TLS_OPTIONS = (
    click.option(
        "--tls-certificate",
        type=click.Path(dir_okay=False),
        help="The certificate of the HTTP server, PEM (default: a self-signed one).",
    ),
    click.option("--tls-key", type=click.Path(dir_okay=False), help="The key of the certificate (PEM)."),
    click.option(
        "--tls-client-ca",
        type=click.Path(dir_okay=False),
        help="The CA of client certificates, PEM (default: the cluster's).",
    ),
)
log_format_option = click.option(
    "--log-format", type=click.Choice(["text", "json"]), help="The format of a log line."
)
log_level_option = click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="The least severe level that is logged.",
)


def http_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of the HTTP server, as parameters `insecure_http` and `tls_*`."""
    for option in (*reversed(_TLS_OPTIONS), _INSECURE_HTTP_OPTION):
        command = option(command)
    return command


def http_server_flags(options: Mapping[str, Any]) -> dict[str, Any]:
    """The section `http_server` from the parameters of `http_options`."""
    tls = {name: options[f"tls_{name}"] for name in ("certificate", "key", "client_ca")}
    return drop_none(insecure=options["insecure_http"], tls=drop_none(**tls))


def drop_none(**values: Any) -> dict[str, Any]:
    """Drop options that were not given."""
    return {name: value for name, value in values.items() if value not in (None, {}, [])}


@contextmanager
def report_start_errors() -> Iterator[None]:
    """Report wrong settings, and wrong files that they name, one line per problem."""
    # Imported here to keep `--help` and usage errors fast.
    from policysched.config.layers import BadSettings
    from policysched.kube.client.session import BadKubeconfig
    from policysched.kube.extender.client import BadExtenderSettings
    from policysched.metric_sources.file import BadSamplesFile
    from policysched.policy_files.source_set import UnusableFile
    from policysched.serve.server import ListenFailed
    from policysched.serve.tls import BadCertificate

    try:
        yield
    except (BadSettings, BadSamplesFile) as error:
        raise CommandError(*error.problems) from error
    except (
        BadKubeconfig,
        BadExtenderSettings,
        BadCertificate,
        ListenFailed,
        UnusableFile,
    ) as error:
        raise CommandError(str(error)) from error
