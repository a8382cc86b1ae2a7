"""`policysched lint`: check policies and print the findings as text or in a machine format."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from policysched import __version__
from policysched.cli import CommandError, echo_error, write_file
from policysched.cli.colour import wants_colour
from policysched.cli.policy_options import param_option
from policysched.files import read_text
from policysched.lang.diagnostics.catalogue import DIAGNOSTIC_DOCS, find_diagnostic_doc
from policysched.lint.linter import LiveQueryFailed
from policysched.lint.linter import lint as lint_sets
from policysched.policy_files.source_set import UnusableFile
from policysched.policy_files.sources import load_policy_sources
from policysched.text import Diagnostic, Severity
from policysched.text.render_text import render_concise, render_report, summarize

MACHINE_FORMAT_NAMES = ("json", "json-lines", "github", "gitlab", "junit", "sarif")
"""Machine formats. Their renderers are imported on demand."""

if TYPE_CHECKING:
    from policysched.config.settings import Settings
    from policysched.lint.linter import ProgramCheck
    from policysched.policy_files.checking import LoadRules

_LEVELS = {severity.label: severity for severity in Severity}
_LEFT_OUT_CODE = "PS006"
"""Of the diagnostics that are left out, nobody knows whether they are selected."""


def _codes(_context: click.Context, parameter: click.Parameter, values: Sequence[str]) -> frozenset[str]:
    """Expand codes, names and prefixes of codes, which may be separated by commas."""
    codes: set[str] = set()
    for selector in (selector.strip() for value in values for selector in value.split(",")):
        doc = find_diagnostic_doc(selector)
        matching = (
            {doc.code}
            if doc is not None
            else {code for code in DIAGNOSTIC_DOCS if code.startswith(selector.upper()) and selector}
        )
        if not matching:
            raise click.BadParameter(
                f"`{selector}` is neither the code nor the name of a diagnostic", param=parameter
            )
        codes |= matching
    return frozenset(codes)


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "--output-format",
    type=click.Choice(["full", "concise", *MACHINE_FORMAT_NAMES]),
    default="full",
    show_default=True,
    help="The format of the findings.",
)
@click.option(
    "--output-file",
    type=click.Path(dir_okay=False),
    help="Write the findings to this file instead of stdout.",
)
@click.option(
    "--fail-level",
    type=click.Choice(list(_LEVELS)),
    default="error",
    show_default=True,
    help="The lowest severity that makes the command exit with 1.",
)
@click.option("--exit-zero", is_flag=True, help="Exit with 0 even if there are findings.")
@click.option(
    "--select",
    multiple=True,
    callback=_codes,
    metavar="CODE|NAME",
    help="Report only these diagnostics, and errors: codes, names or prefixes of codes, separated by commas. PS6 (values "
    "that tenants can set) is reported only if selected.",
)
@click.option(
    "--ignore",
    multiple=True,
    callback=_codes,
    metavar="CODE|NAME",
    help="Do not report these diagnostics. Errors are always reported.",
)
@param_option
@click.option(
    "--config",
    "config_path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The scheduler's settings file. Check as that scheduler does: with its parameter values, cost limit and rules "
    "for teams' policies. Also report metrics and extenders that the settings do not define, and policy names that "
    "they do not allow.",
)
@click.option(
    "--live",
    is_flag=True,
    help="Also run the query of each metric on its Prometheus server (needs --config).",
)
@click.option("--stdin-filename", default="-", metavar="NAME", help="The file name shown for standard input.")
@click.option("--quiet", is_flag=True, help="Print findings only, without the summary.")
def lint(
    paths: tuple[str, ...],
    output_format: str,
    output_file: str | None,
    fail_level: str,
    exit_zero: bool,
    select: frozenset[str],
    ignore: frozenset[str],
    params: tuple[str, ...],
    config_path: Path | None,
    live: bool,
    stdin_filename: str,
    quiet: bool,
) -> int:
    """Check policies for errors and likely mistakes.

    A PATH is a policy, a YAML file with ConfigMaps (keys that end in .policy), a folder, or - for
    standard input.

    Examples:

    \b
      policysched lint my.policy
      policysched lint deploy/ --output-format sarif > findings.sarif
      kubectl get configmap policies -o yaml | policysched lint -

    Exit codes: 0 no finding at or above --fail-level; 1 findings; 2 could not run.
    """
    unusable_files: list[UnusableFile] = []
    try:
        sets = load_policy_sources(
            paths, stdin=partial(read_text, "-"), stdin_name=stdin_filename, unusable=unusable_files
        )
        for unusable in unusable_files:
            echo_error(f"policysched: {unusable}")
        if unusable_files and not sets:
            return 2
        settings = _read_settings(config_path, live=live)
        diagnostics = (
            lint_sets(sets, params, select=select)
            if settings is None
            else lint_sets(sets, params, _settings_checks(settings, live=live), select, _load_rules(settings))
        )
    except (UnusableFile, LiveQueryFailed) as error:
        raise CommandError(str(error)) from None
    findings = tuple(_selected_findings(diagnostics, select, ignore))
    files = tuple(
        dict.fromkeys(
            source.name
            for source_set in sets
            for key, source in source_set.sources.items()
            if key in source_set.requested
        )
    )
    text = _PRINTERS.get(output_format, _machine_printer(output_format))(findings, files)
    write_file(output_file or "-", text)
    if not quiet:
        click.echo(f"{summarize(findings)} in {len(files)} file{'' if len(files) == 1 else 's'}", err=True)
    if unusable_files:
        return 2
    fails = any(finding.severity >= _LEVELS[fail_level] for finding in findings)
    return int(fails and not exit_zero)


def _selected_findings(
    findings: Iterable[Diagnostic], select: frozenset[str], ignore: frozenset[str]
) -> Iterator[Diagnostic]:
    for finding in findings:
        selected = not select or finding.code in select or finding.code == _LEFT_OUT_CODE
        selected &= finding.code not in ignore
        if selected or finding.severity is Severity.ERROR:  # the scheduler rejects the text
            yield finding


def _read_settings(config_path: Path | None, *, live: bool) -> "Settings | None":
    """None without a settings file."""
    if config_path is None:
        if live:
            raise CommandError("--live needs --config FILE, which names the Prometheus servers")
        return None
    from policysched.config.layers import BadSettings
    from policysched.config.settings import read_settings

    try:
        return read_settings(config_path, {}, {})
    except BadSettings as error:
        raise CommandError(*error.problems) from None


def _settings_checks(settings: "Settings", *, live: bool) -> "ProgramCheck":
    from policysched.lint.settings_checks import SettingsChecks

    return SettingsChecks(settings, live=live).findings


def _load_rules(settings: "Settings") -> "LoadRules":
    from policysched.from_files.settings_rules import load_rules

    return load_rules(settings)


Printer = Callable[[tuple[Diagnostic, ...], tuple[str, ...]], str]


def _full(findings: tuple[Diagnostic, ...], _files: tuple[str, ...]) -> str:
    lines = render_report(findings, colour=wants_colour(sys.stdout), explain_command="policysched rule")
    return "".join(f"{line}\n" for line in lines)


def _concise(findings: tuple[Diagnostic, ...], _files: tuple[str, ...]) -> str:
    return "".join(f"{render_concise(finding)}\n" for finding in findings)


_PRINTERS: dict[str, Printer] = {"full": _full, "concise": _concise}


def _machine_printer(output_format: str) -> Printer:
    def print_report(findings: tuple[Diagnostic, ...], files: tuple[str, ...]) -> str:
        from policysched.text.render_machine import MACHINE_FORMATS, DiagnosticReport, ReportingDescriptor

        rules = tuple(
            ReportingDescriptor(rule.code, rule.name, rule.summary, rule.explanation, rule.severity)
            for rule in (DIAGNOSTIC_DOCS[code] for code in sorted({finding.code for finding in findings}))
        )
        return MACHINE_FORMATS[output_format](DiagnosticReport(findings, files, rules, __version__))

    return print_report
