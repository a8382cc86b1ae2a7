"""`policysched import-config`: convert a kube-scheduler configuration to policies."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from policysched.cli import CommandError, echo_error, write_file
from policysched.files import UnreadableFile, path_exists, read_text
from policysched.migrate import ImportResult
from policysched.migrate import import_config as import_text
from policysched.policy_files.source_set import POLICY_SUFFIX, UnusableFile

if TYPE_CHECKING:
    from policysched.migrate.report import ImportNote


def _renames(_context: click.Context, parameter: click.Parameter, values: Sequence[str]) -> dict[str, str]:
    renames: dict[str, str] = {}
    for value in values:
        old, equal, new = value.partition("=")
        if not (old and equal and new) or old in renames:
            raise click.BadParameter(f"`{value}` is not OLD=NEW, or OLD is given twice", param=parameter)
        renames[old] = new
    return renames


def _config_map(_context: click.Context, parameter: click.Parameter, value: str) -> str:
    from policysched.schemas import findings

    if findings("settings", {"policies": value}):
        raise click.BadParameter(f"`{value}` is not NAMESPACE/NAME", param=parameter)
    return value


@click.command("import-config")
@click.argument("file", metavar="FILE")
@click.option(
    "--name",
    multiple=True,
    callback=_renames,
    metavar="OLD=NEW",
    help="Use NEW as the policy's name for the schedulerName OLD. Can be repeated.",
)
@click.option(
    "--output-format",
    type=click.Choice(["text", "configmap", "json"]),
    default="text",
    show_default=True,
    help="Print the policies as text, the policies as a ConfigMap, or everything as JSON.",
)
@click.option(
    "--output-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write each policy to NAME.policy in this directory instead of stdout.",
)
@click.option(
    "--config-map",
    default="policysched/policies",
    show_default=True,
    callback=_config_map,
    metavar="NAMESPACE/NAME",
    help="The namespace and name of the ConfigMap.",
)
@click.option(
    "--settings",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write settings for `policysched run` (leader election, backoff, extenders) to this file.",
)
@click.option("--force", is_flag=True, help="Overwrite existing files.")
def import_config(
    file: str,
    name: dict[str, str],
    output_format: str,
    output_dir: Path | None,
    config_map: str,
    settings: Path | None,
    force: bool,
) -> int:
    """Convert a kube-scheduler configuration to policies.

    FILE is a KubeSchedulerConfiguration (v1alpha1 to v1), a legacy Policy in JSON or YAML, a ConfigMap
    that holds one of these, or - for standard input. Each profile becomes a policy with the name of
    its schedulerName. Fields that a policy cannot express are listed on stderr with their position
    in the file.

    Examples:

    \b
      policysched import-config scheduler-config.yaml --output-dir policies/
      policysched import-config scheduler-config.yaml --output-format configmap | kubectl apply -f -
      policysched import-config policy.json --name default-scheduler=legacy

    Exit codes: 0 everything is imported; 1 parts are not imported (listed on stderr); 2 could not run.
    """
    if output_dir is not None and output_format != "text":
        raise click.UsageError(f"--output-dir cannot be combined with --output-format {output_format}")
    try:
        imported = import_text(_read(file), file, name)
    except UnusableFile as error:
        raise CommandError(str(error)) from None
    files = (
        {}
        if output_dir is None
        else {output_dir / f"{policy}{POLICY_SUFFIX}": text for policy, text in imported.policies.items()}
    )
    if settings is not None:
        files[settings] = _settings_text(imported, file, config_map)
    _write_files(files, force=force)
    if output_dir is None:
        click.echo(_render(imported, output_format, config_map), nl=False)
    _print_report(imported, with_settings=settings is not None)
    return int(bool(imported.not_imported))


def _read(path: str) -> str:
    try:
        return read_text(path)
    except UnreadableFile as error:
        raise UnusableFile(f"{path}: {error}") from None


def _write_files(files: dict[Path, str], *, force: bool) -> None:
    existing = [path for path in files if path_exists(path)]
    if existing and not force:
        raise CommandError(f"{existing[0]}: the file exists; use --force to overwrite it")
    for path, text in files.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CommandError(f"{path}: {error.strerror or error}") from None
        write_file(str(path), text)
        click.echo(f"wrote {path}", err=True)


def _print_report(imported: ImportResult, *, with_settings: bool) -> None:
    def print_items(items: "list[ImportNote]", label: str) -> None:
        for item in items:
            echo_error(f"{item.place}: {label}: {item.finding}")

    print_items(imported.not_imported, "not imported")
    print_items(imported.notes, "note")
    if imported.settings and not with_settings:
        click.echo(
            f"note: use --settings FILE to write {', '.join(sorted(imported.settings))} for `policysched run`",
            err=True,
        )
    count, notes = len(imported.policies), len(imported.notes)
    click.echo(
        f"{count} {'policy' if count == 1 else 'policies'}, {len(imported.not_imported)} not imported, "
        f"{notes} {'note' if notes == 1 else 'notes'}",
        err=True,
    )


# ── output ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _render(imported: ImportResult, output_format: str, config_map: str) -> str:
    if output_format == "json":
        return _json(imported)
    if output_format == "configmap":
        return _config_map_text(imported, config_map)
    if len(imported.policies) == 1:
        return next(iter(imported.policies.values()))
    return "\n".join(f"# ── {name}{POLICY_SUFFIX}\n\n{text}" for name, text in imported.policies.items())


def _json(imported: ImportResult) -> str:
    import json

    def records(items: "list[ImportNote]") -> list[dict[str, object]]:
        fields = ("file", "where", "line", "column", "subject", "reason")
        return [{field: getattr(item, field) for field in fields} for item in items]

    record = {
        "format_version": 1,
        "policies": imported.policies,
        "settings": imported.settings,
        "not_imported": records(imported.not_imported),
        "notes": records(imported.notes),
    }
    return json.dumps(record, indent=2, ensure_ascii=False) + "\n"


def _config_map_text(imported: ImportResult, config_map: str) -> str:
    """Write the YAML by hand: block scalars keep the policies readable, and lint positions exact."""
    namespace, _, name = config_map.partition("/")
    lines = [
        "apiVersion: v1",
        "kind: ConfigMap",
        "metadata:",
        f"  name: {name}",
        f"  namespace: {namespace}",
        "data:",
    ]
    for policy, text in imported.policies.items():
        lines.append(f"  {policy}{POLICY_SUFFIX}: |")
        lines += [f"    {line}" if line else "" for line in text.rstrip("\n").split("\n")]
    return "\n".join(lines) + "\n"


def _settings_text(imported: ImportResult, file: str, config_map: str) -> str:
    import yaml

    settings = {"policies": config_map, **imported.settings}
    header = f"# From {file}, by policysched import-config.\n"
    return header + yaml.safe_dump(settings, sort_keys=False)
