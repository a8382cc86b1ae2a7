"""`policysched extender`: policies for a cluster that keeps kube-scheduler."""

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
@click.option(
    "--policy-files",
    metavar="PATH",
    multiple=True,
    help="A policy file, or a folder with *.policy files, instead of a ConfigMap. Can be repeated.",
)
@last_good_option
@click.option("--http", metavar="ADDRESS", help="The address to listen on: HOST:PORT or :PORT.")
@http_options
@click.option(
    "--response-timeout",
    "response_timeout_s",
    type=float,
    metavar="SECONDS",
    help="Time limit for a response (default: 4).",
)
@config_option
@metrics_option
@log_format_option
@log_level_option
def extender(
    kubeconfig: str | None,
    context: str | None,
    policies: str | None,
    policy_files: tuple[str, ...],
    last_good: str | None,
    http: str | None,
    response_timeout_s: float | None,
    config: str | None,
    metrics: str | None,
    log_format: str | None,
    log_level: str | None,
    **http_server: Any,
) -> int:
    """Serve policies to kube-scheduler over the extender protocol: filter, prioritize, preempt and bind.

    Add it to kube-scheduler's configuration with `urlPrefix: https://HOST:PORT/POLICY` and the verbs.

    Settings are read from options, POLICYSCHED_* variables and a file (--config), in this order of
    precedence.

    Examples:

    \b
      policysched extender --policies kube-system/policies --http :8888
      policysched extender --policy-files ./policies --http 127.0.0.1:8888 --kubeconfig ~/.kube/config

    Exit codes: 0 stopped by a signal; 2 could not run; 3 no usable policy; 4 the
    wall clock changed by more than a minute.
    """
    flags: dict[str, Any] = {
        "kubeconfig": kubeconfig,
        "context": context,
        "policies": policies,
        "policy_files": list(policy_files),
        "last_good": last_good,
        "http": http,
        "metrics": metrics,
        "log": drop_none(format=log_format, level=log_level),
        "http_server": http_server_flags(http_server),
        "extender_server": drop_none(response_timeout_s=response_timeout_s),
    }
    return _run(config or os.environ.get("POLICYSCHED_CONFIG"), drop_none(**flags))


def _run(config: str | None, flags: dict[str, Any]) -> int:
    # Imported here to keep `--help` and usage errors fast.
    from policysched.config.logs import configure_logging
    from policysched.extender.program import run_extender
    from policysched.extender.settings import read_extender_settings

    with report_start_errors():
        settings = read_extender_settings(Path(config) if config else None, os.environ, flags)
        configure_logging(settings.log_format, settings.log_level)
        return run_extender(settings)
