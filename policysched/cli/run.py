"""`policysched run`: the scheduler."""

import os
from pathlib import Path
from typing import Any

import click

from policysched.cli.start_options import (
    config_option,
    context_option,
    drop_none,
    http_options,
    http_server_flags,
    kubeconfig_option,
    last_good_option,
    log_format_option,
    log_level_option,
    metrics_option,
    policies_option,
    report_start_errors,
)


@click.command()
@kubeconfig_option
@context_option
@policies_option
@last_good_option
@click.option(
    "--http",
    metavar="ADDRESS",
    help="Serve /livez, /readyz, /metrics, /policy, /decisions, /quotas and /configz on HOST:PORT or :PORT.",
)
@http_options
@config_option
@metrics_option
@log_format_option
@log_level_option
@click.option(
    "--leader-elect",
    type=bool,
    is_flag=False,
    flag_value="true",
    default=None,
    metavar="[=true|false]",
    help="Schedule only while holding a Lease (default: true).",
)
@click.option("--no-leader-elect", is_flag=True, help="The same as --leader-elect=false.")
@click.option(
    "--lease", metavar="NAMESPACE/NAME", help="The Lease to hold (default: kube-system/policysched)."
)
@click.option(
    "--record",
    metavar="DIR",
    help="Record every decision, and what it was made on, for `policysched replay DIR`.",
)
@click.option(
    "--otlp",
    metavar="URL",
    help="Export every decision to the OpenTelemetry collector at this URL, by OTLP over HTTP.",
)
def run(
    kubeconfig: str | None,
    context: str | None,
    policies: str | None,
    last_good: str | None,
    http: str | None,
    config: str | None,
    metrics: str | None,
    log_format: str | None,
    log_level: str | None,
    leader_elect: bool | None,
    no_leader_elect: bool,
    lease: str | None,
    record: str | None,
    otlp: str | None,
    **http_server: Any,
) -> int:
    """Schedule the pods whose schedulerName is the name of a policy.

    Settings are read from options, POLICYSCHED_* variables and a file (--config), in this order of
    precedence.

    Examples:

    \b
      policysched run --kubeconfig ~/.kube/config --policies kube-system/policies --http :10259
      policysched run --config settings.yaml --log-format json

    Exit codes: 0 stopped by a signal; 1 lost the Lease; 2 could not run; 3 no usable policy; 4 the
    clock was set by more than a minute.
    """
    flags: dict[str, Any] = {
        "kubeconfig": kubeconfig,
        "context": context,
        "policies": policies,
        "last_good": last_good,
        "http": http,
        "http_server": http_server_flags(http_server),
        "metrics": metrics,
        "log": drop_none(format=log_format, level=log_level),
        "recording": drop_none(folder=record),
        "otlp": drop_none(endpoint=otlp),
        "leader_election": drop_none(enabled=False if no_leader_elect else leader_elect, lease=lease),
    }
    return _run(config or os.environ.get("POLICYSCHED_CONFIG"), drop_none(**flags))


def _run(config: str | None, flags: dict[str, Any]) -> int:
    # Imported here to keep `--help` and usage errors fast.
    from policysched.config.logs import configure_logging
    from policysched.config.settings import read_settings
    from policysched.runtime.program import run_program

    with report_start_errors():
        settings = read_settings(Path(config) if config else None, os.environ, flags)
        configure_logging(settings.log_format, settings.log_level)
        return run_program(settings)
