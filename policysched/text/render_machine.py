"""Diagnostics for machines: JSON, JSON lines, GitHub annotations, GitLab code quality, JUnit and SARIF 2.1.0.

Lines and columns count from 1, ends are exclusive. New fields may appear in the JSON forms; `format_version` changes
only when one goes or changes its meaning.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any
from xml.etree import ElementTree

from policysched.text.diagnostic import Diagnostic, Severity
from policysched.text.render_text import render_concise
from policysched.text.source import Position, Span

FORMAT_VERSION = 1
_SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


@dataclass(frozen=True, slots=True)
class ReportingDescriptor:
    """What a report says of a code besides its findings."""

    code: str
    name: str
    summary: str
    explanation: str
    severity: Severity


@dataclass(frozen=True, slots=True)
class DiagnosticReport:
    """What was found in which files, and the rules of the codes that occur."""

    diagnostics: tuple[Diagnostic, ...]
    files: tuple[str, ...]
    rules: tuple[ReportingDescriptor, ...]
    version: str  # of this program


def render_json(report: DiagnosticReport) -> str:
    counts = {
        f"{severity.label}_count": sum(d.severity is severity for d in report.diagnostics)
        for severity in Severity
    }
    found = [_json_entry(diagnostic) for diagnostic in report.diagnostics]
    return json.dumps({"format_version": FORMAT_VERSION, **counts, "diagnostics": found}, indent=2) + "\n"


def render_json_lines(report: DiagnosticReport) -> str:
    return "".join(json.dumps(_json_entry(diagnostic)) + "\n" for diagnostic in report.diagnostics)


def render_github(report: DiagnosticReport) -> str:
    """Workflow commands: https://docs.github.com/actions/reference/workflow-commands-for-github-actions"""
    levels = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.HINT: "notice"}
    lines = []
    for found in report.diagnostics:
        fields = {"title": f"policysched ({found.code})"}
        if found.span is not None:
            start, end = _start_and_end(found.span)
            fields |= {"file": found.span.source.name, "line": str(start.line), "col": str(start.column)}
            fields |= {"endLine": str(end.line), "endColumn": str(end.column)}
        text = render_concise(found) + (f"\n  help: {found.help}" if found.help else "")
        listed = ",".join(f"{key}={_escape_github(value, property_=True)}" for key, value in fields.items())
        lines.append(f"::{levels[found.severity]} {listed}::{_escape_github(text)}\n")
    return "".join(lines)


def render_gitlab(report: DiagnosticReport) -> str:
    """Code quality: https://docs.gitlab.com/ci/testing/code_quality/#code-quality-report-format"""
    levels = {Severity.ERROR: "major", Severity.WARNING: "minor", Severity.HINT: "info"}
    entries = []
    for found in report.diagnostics:
        start, end = _start_and_end(found.span)
        entries.append(
            {
                "check_name": found.code,
                "description": f"{found.message}{f' ({found.help})' if found.help else ''}",
                "severity": levels[found.severity],
                "fingerprint": _fingerprint(found),
                "location": {
                    "path": _file_name(found.span),
                    "positions": {
                        "begin": {"line": start.line, "column": start.column},
                        "end": {"line": end.line, "column": end.column},
                    },
                },
            }
        )
    return json.dumps(entries, indent=2) + "\n"


def render_junit(report: DiagnosticReport) -> str:
    """A suite for each file; a file without findings is one passed test."""
    suites = ElementTree.Element("testsuites", name="policysched")
    of_file = {file: [d for d in report.diagnostics if _file_name(d.span) == file] for file in report.files}
    of_file |= (
        {"": rest} if (rest := [d for d in report.diagnostics if _file_name(d.span) not in of_file]) else {}
    )
    for file, found in of_file.items():
        suite = ElementTree.SubElement(
            suites,
            "testsuite",
            name=file,
            tests=str(max(1, len(found))),
            failures=str(len(found)),
            errors="0",
        )
        for one in found:
            start, _ = _start_and_end(one.span)
            case = ElementTree.SubElement(
                suite, "testcase", name=f"org.policysched.{one.code}", classname=file, line=str(start.line)
            )
            failure = ElementTree.SubElement(
                case, "failure", message=strip_xml_control_characters(one.message), type=one.severity.label
            )
            failure.text = strip_xml_control_characters(f"{render_concise(one)}\n{one.help}".rstrip())
        if not found:
            ElementTree.SubElement(suite, "testcase", name="org.policysched", classname=file)
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
    results = [_sarif_result(found, index) for found in report.diagnostics]
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


def _json_entry(found: Diagnostic) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "code": found.code,
        "name": found.name,
        "severity": found.severity.label,
        "message": found.message,
        "label": found.label,
        "help": found.help,
        "notes": list(found.notes),
        "related": [{"message": label.text, **_location(label.span)} for label in found.related],
    }
    return entry | _location(found.span)


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


def _fingerprint(found: Diagnostic) -> str:
    """The same while the finding stays, though lines above come and go: it rests on the text of its line."""
    line = (
        ""
        if found.span is None
        else found.span.source.line_text(found.span.source.position(found.span.start).line)
    )
    parts = (found.code, _file_name(found.span), found.message, line.strip())
    return blake2b("\0".join(parts).encode("utf-8", "replace"), digest_size=16).hexdigest()


def _sarif_level(severity: Severity) -> str:
    return {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.HINT: "note"}[severity]


def _sarif_result(found: Diagnostic, index: Mapping[str, int]) -> dict[str, Any]:
    text = f"{found.message}{f'; {found.help}' if found.help else ''}"
    result: dict[str, Any] = {
        "ruleId": found.code,
        "level": _sarif_level(found.severity),
        "message": {"text": text},
        "partialFingerprints": {"policysched/v1": _fingerprint(found)},
    }
    if found.code in index:
        result["ruleIndex"] = index[found.code]
    if found.span is not None:
        result["locations"] = [_sarif_location(found.span)]
    if found.related:
        result["relatedLocations"] = [
            {"id": number, "message": {"text": label.text}, **_sarif_location(label.span)}
            for number, label in enumerate(found.related, start=1)
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
    text = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return text.replace(":", "%3A").replace(",", "%2C") if property_ else text


def strip_xml_control_characters(text: str) -> str:
    """Without the control characters that XML 1.0 cannot hold."""
    return "".join(
        char if char in "\n\t" or (char >= " " and char not in "\ufffe\uffff") else "\ufffd" for char in text
    )
