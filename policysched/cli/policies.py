"""`policysched policies`: which policies a cluster has, and the removal of one."""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from policysched.cli import CommandError
from policysched.cli.policy_options import output_format_option
from policysched.cli.start_options import (
    config_option,
    context_option,
    drop_none,
    kubeconfig_option,
    last_good_option,
    policies_option,
    report_start_errors,
)

if TYPE_CHECKING:
    from policysched.config.settings import Settings
    from policysched.policy_files.policies_config_map import ListedPolicy, PoliciesConfigMap
    from policysched.scheduler.canaries import CanaryRecord


@click.command()
@click.argument("action", type=click.Choice(["list", "remove", "restore"]))
@click.argument("name", required=False)
@kubeconfig_option
@context_option
@policies_option
@last_good_option
@config_option
@click.option(
    "--reason",
    metavar="TEXT",
    default="",
    help="The reason for the removal; the message of its pods contains it.",
)
@click.option(
    "--dry-run", is_flag=True, help="Send the change to the API server as a dry run; nothing is saved."
)
@output_format_option
def policies(
    action: str,
    name: str | None,
    kubeconfig: str | None,
    context: str | None,
    policies: str | None,
    last_good: str | None,
    config: str | None,
    reason: str,
    dry_run: bool,
    output_format: str,
) -> None:
    """List the policies of a cluster, remove the policy NAME, or restore it.

    A policy whose text is deleted stays active, because the deletion could be a mistake. `remove` adds
    the key NAME.removed to the policies' ConfigMap. The policy then schedules nothing, its pods stay
    pending with the reason, and its last known good text is deleted. Binds in flight finish.
    `restore` deletes the key. Neither changes the text of the policy.

    The command uses your permissions: get and patch on the ConfigMap of --policies, get on that of
    --last-good.

    Examples:

    \b
      policysched policies list --policies kube-system/policies
      policysched policies remove batch --policies kube-system/policies --reason "use batch-v2"
      policysched policies restore batch --policies kube-system/policies --dry-run

    Exit codes: 0 success, also if the policy is already removed; 2 could not run, or no such policy.
    """
    if (name is None) != (action == "list"):
        raise click.UsageError("`list` takes no NAME" if action == "list" else f"`{action}` needs a NAME")
    # Imported here to keep `--help` and usage errors fast.
    from policysched.config.settings import read_settings

    flags = drop_none(kubeconfig=kubeconfig, context=context, policies=policies, last_good=last_good)
    file = config or os.environ.get("POLICYSCHED_CONFIG")
    with report_start_errors():
        settings = read_settings(Path(file) if file else None, os.environ, flags)
        asyncio.run(_run(settings, action, name or "", reason, dry_run=dry_run, output_format=output_format))


async def _run(
    settings: "Settings", action: str, name: str, reason: str, *, dry_run: bool, output_format: str
) -> None:
    from policysched import __version__
    from policysched.kube.client.api import ApiClient, ApiErrors
    from policysched.kube.client.session import ConnectionSettings, connect
    from policysched.kube.decode.errors import MalformedObject
    from policysched.policy_files.policies_config_map import PoliciesConfigMap, RemovalRefused

    connection = ConnectionSettings(
        settings.kubeconfig, settings.context, 2, user_agent=f"policysched/{__version__}"
    )
    source, last_good = settings.policies, settings.last_good
    async with await connect(connection) as session:
        cluster = PoliciesConfigMap(
            ApiClient(session), (source.namespace, source.name), (last_good.namespace, last_good.name)
        )
        try:
            if action == "list":
                _print_list(await cluster.read(), output_format)
            else:
                click.echo(await _change(cluster, action, name, reason, dry_run=dry_run))
        except (*ApiErrors, MalformedObject, RemovalRefused) as error:
            raise CommandError(str(error)) from error


async def _change(cluster: "PoliciesConfigMap", action: str, name: str, reason: str, *, dry_run: bool) -> str:
    done = " (dry run: nothing is changed)" if dry_run else ""
    if action == "remove":
        if await cluster.remove(name, reason, dry_run=dry_run):
            return f"policy {name} is removed{done}"
        return f"policy {name} is already removed; nothing is changed"
    key = await cluster.restore(name, dry_run=dry_run)
    text = f"its text is in key {key}" if key else "the ConfigMap has no text of it, so it stays inactive"
    return f"policy {name} is restored: {text}{done}"


def _print_list(listed: Sequence["ListedPolicy"], output_format: str) -> None:
    from dataclasses import asdict

    from policysched.cli.offline_options import print_json
    from policysched.cli.tables import output_console, print_table

    if output_format == "json":
        print_json({"policies": [asdict(policy) for policy in listed]})
        return
    rows = []
    for policy in listed:
        kept_text = {True: "yes", False: "no", None: "unknown"}[policy.kept]
        removed = "-" if policy.removal is None else policy.removal or "yes"
        rows.append((policy.name, policy.key or "-", kept_text, removed, _canary_text(policy.canary)))
    print_table(output_console(), ("policy", "key", "kept", "removed", "canary"), rows)


def _canary_text(canary: "CanaryRecord | None") -> str:
    from datetime import UTC, datetime

    if canary is None:
        return "-"
    if canary.rolled_back_ns is None:
        return f"{canary.name}: active"
    at = datetime.fromtimestamp(canary.rolled_back_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M UTC")
    return f"{canary.name}: rolled back at {at}, {canary.pending} of {canary.pods} pods pending"
