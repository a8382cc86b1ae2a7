"""Machine-readable diagnostics: JSON, JSON lines, GitHub annotations, GitLab code quality, JUnit and SARIF 2.1.0.

Lines and columns count from 1, ends are exclusive. JSON output may gain fields; `format_version` changes only when a field
is removed or changes its meaning.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any
from xml.etree import ElementTree

from policysched.text.diagnostic import Diagnostic, Severity
from policysched.text.render_text import render_concise
from policysched.text.sanitize import escape_to_line, escape_unprintable
from policysched.text.source import Position, Span

FORMAT_VERSION = 1
_SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


@dataclass(frozen=True, slots=True)
class ReportingDescriptor:
    """The description of a code in a report."""

    code: str
    name: str
    summary: str
    explanation: str
    severity: Severity


@dataclass(frozen=True, slots=True)
class DiagnosticReport:
    """The diagnostics, the checked files, and the rules of the codes that occur."""

    diagnostics: tuple[Diagnostic, ...]
    files: tuple[str, ...]
    rules: tuple[ReportingDescriptor, ...]
    version: str  # of policysched


def render_json(report: DiagnosticReport) -> str:
    counts = {
        f"{severity.label}_count": sum(d.severity is severity for d in report.diagnostics)
        for severity in Severity
    }
    entries = [_json_entry(diagnostic) for diagnostic in report.diagnostics]
    return json.dumps({"format_version": FORMAT_VERSION, **counts, "diagnostics": entries}, indent=2) + "\n"


def render_json_lines(report: DiagnosticReport) -> str:
    return "".join(json.dumps(_json_entry(diagnostic)) + "\n" for diagnostic in report.diagnostics)


def render_github(report: DiagnosticReport) -> str:
    """Workflow commands: https://docs.github.com/actions/reference/workflow-commands-for-github-actions"""
    levels = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.HINT: "notice"}
    lines = []
    for diagnostic in report.diagnostics:
        fields = {"title": f"policysched ({diagnostic.code})"}
        if diagnostic.span is not None:
            start, end = _start_and_end(diagnostic.span)
            fields |= {"file": diagnostic.span.source.name, "line": str(start.line), "col": str(start.column)}
            fields |= {"endLine": str(end.line), "endColumn": str(end.column)}
        text = render_concise(diagnostic) + (f"\n  help: {diagnostic.help}" if diagnostic.help else "")
        properties = ",".join(
            f"{key}={_escape_github(value, property_=True)}" for key, value in fields.items()
        )
        lines.append(f"::{levels[diagnostic.severity]} {properties}::{_escape_github(text)}\n")
    return "".join(lines)


def render_gitlab(report: DiagnosticReport) -> str:
    """Code quality: https://docs.gitlab.com/ci/testing/code_quality/#code-quality-report-format"""
    levels = {Severity.ERROR: "major", Severity.WARNING: "minor", Severity.HINT: "info"}
    entries = []
    for diagnostic in report.diagnostics:
        start, end = _start_and_end(diagnostic.span)
        entries.append(
            {
                "check_name": diagnostic.code,
                "description": f"{diagnostic.message}{f' ({diagnostic.help})' if diagnostic.help else ''}",
                "severity": levels[diagnostic.severity],
                "fingerprint": _fingerprint(diagnostic),
                "location": {
                    "path": _file_name(diagnostic.span),
                    "positions": {
                        "begin": {"line": start.line, "column": start.column},
                        "end": {"line": end.line, "column": end.column},
                    },
                },
            }
        )
    return json.dumps(entries, indent=2) + "\n"


def render_junit(report: DiagnosticReport) -> str:
    """A test suite for each file; a file without diagnostics has one passed test."""
    suites = ElementTree.Element("testsuites", name="policysched")
    by_file = {file: [d for d in report.diagnostics if _file_name(d.span) == file] for file in report.files}
    without_file = [d for d in report.diagnostics if _file_name(d.span) not in by_file]
    if without_file:
        by_file[""] = without_file
    for file, diagnostics in by_file.items():
        file_name = escape_to_line(file)
        suite = ElementTree.SubElement(
            suites,
            "testsuite",
            name=file_name,
            tests=str(max(1, len(diagnostics))),
            failures=str(len(diagnostics)),
            errors="0",
        )
        for diagnostic in diagnostics:
            start, _ = _start_and_end(diagnostic.span)
            name = f"org.policysched.{diagnostic.code}"
            case = ElementTree.SubElement(
                suite, "testcase", name=name, classname=file_name, line=str(start.line)
            )
            message = strip_xml_control_characters(diagnostic.message)
            failure = ElementTree.SubElement(case, "failure", message=message, type=diagnostic.severity.label)
            failure.text = strip_xml_control_characters(
                f"{render_concise(diagnostic)}\n{diagnostic.help}".rstrip()
            )
        if not diagnostics:
            ElementTree.SubElement(suite, "testcase", name="org.policysched", classname=file_name)
    ElementTree.indent(suites)
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(suites, encoding="unicode") + "\n"
    )


def render_sarif(report: DiagnosticReport) -> str:
    """https://docs.oasis-open.org/sarif/sarif/v2.1.0/"""
    index = {rule.code: number for number, rule in enumerate(report.rules)}
    rules = [
        {
            "id": rule.code,
            "name": rule.name,
            "shortDescription": {"text": rule.summary},
            "fullDescription": {"text": rule.explanation},
            "help": {"text": f"policysched rule {rule.code}"},
            "defaultConfiguration": {"level": _sarif_level(rule.severity)},
        }
        for rule in report.rules
    ]
    driver = {"name": "policysched", "version": report.version, "rules": rules}
    results = [_sarif_result(diagnostic, index) for diagnostic in report.diagnostics]
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return json.dumps({"$schema": _SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


MACHINE_FORMATS: Mapping[str, Callable[[DiagnosticReport], str]] = {
    "json": render_json,
    "json-lines": render_json_lines,
    "github": render_github,
    "gitlab": render_gitlab,
    "junit": render_junit,
    "sarif": render_sarif,
}


def _json_entry(diagnostic: Diagnostic) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "code": diagnostic.code,
        "name": diagnostic.name,
        "severity": diagnostic.severity.label,
        "message": diagnostic.message,
        "label": diagnostic.label,
        "help": diagnostic.help,
        "notes": list(diagnostic.notes),
        "related": [{"message": label.text, **_location(label.span)} for label in diagnostic.related],
    }
    return entry | _location(diagnostic.span)


def _location(span: Span | None) -> dict[str, Any]:
    if span is None:
        return {"filename": None, "location": None, "end_location": None, "part": None}
    start, end = _start_and_end(span)
    return {
        "filename": span.source.name,
        "location": {"row": start.line, "column": start.column},
        "end_location": {"row": end.line, "column": end.column},
        "part": span.source.origin.note or None,
    }


def _start_and_end(span: Span | None) -> tuple[Position, Position]:
    if span is None:
        return Position(1, 1), Position(1, 1)
    return span.source.file_position(span.start), span.source.file_position(span.end)


def _file_name(span: Span | None) -> str:
    return "" if span is None else span.source.name


def _fingerprint(diagnostic: Diagnostic) -> str:
    """Stable while lines above are added or removed: it depends on the text of the line, not on its number."""
    line = (
        ""
        if diagnostic.span is None
        else diagnostic.span.source.line_text(diagnostic.span.source.position(diagnostic.span.start).line)
    )
    parts = (diagnostic.code, _file_name(diagnostic.span), diagnostic.message, line.strip())
    return blake2b("\0".join(parts).encode("utf-8", "replace"), digest_size=16).hexdigest()


def _sarif_level(severity: Severity) -> str:
    return {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.HINT: "note"}[severity]


def _sarif_result(diagnostic: Diagnostic, index: Mapping[str, int]) -> dict[str, Any]:
    text = f"{diagnostic.message}{f'; {diagnostic.help}' if diagnostic.help else ''}"
    result: dict[str, Any] = {
        "ruleId": diagnostic.code,
        "level": _sarif_level(diagnostic.severity),
        "message": {"text": text},
        "partialFingerprints": {"policysched/v1": _fingerprint(diagnostic)},
    }
    if diagnostic.code in index:
        result["ruleIndex"] = index[diagnostic.code]
    if diagnostic.span is not None:
        result["locations"] = [_sarif_location(diagnostic.span)]
    if diagnostic.related:
        result["relatedLocations"] = [
            {"id": number, "message": {"text": label.text}, **_sarif_location(label.span)}
            for number, label in enumerate(diagnostic.related, start=1)
        ]
    return result


def _sarif_location(span: Span) -> dict[str, Any]:
    start, end = _start_and_end(span)
    region = {
        "startLine": start.line,
        "startColumn": start.column,
        "endLine": end.line,
        "endColumn": max(end.column, start.column + (end.line == start.line)),
    }
    return {"physicalLocation": {"artifactLocation": {"uri": span.source.name}, "region": region}}


def _escape_github(text: str, *, property_: bool = False) -> str:
    text = escape_unprintable(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return text.replace(":", "%3A").replace(",", "%2C") if property_ else text


def strip_xml_control_characters(text: str) -> str:
    """Replaces the control characters that XML 1.0 does not allow."""
    return "".join(
        char if char in "\n\t" or (char >= " " and char not in "\ufffe\uffff") else "\ufffd" for char in text
    )
