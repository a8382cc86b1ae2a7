"""The result of a test run as JSON (`schemas/test.json`) and as JUnit XML."""

from typing import Any
from xml.etree import ElementTree

from policysched.policytest.coverage import Coverage
from policysched.policytest.expectations import ExpectationFailure
from policysched.policytest.runner import PolicyTestResult, PolicyTestRun, TestFileResult
from policysched.text import Diagnostic
from policysched.text.render_machine import strip_xml_control_characters
from policysched.text.render_text import render_concise
from policysched.text.sanitize import escape_to_line


def run_record(run: PolicyTestRun) -> dict[str, Any]:
    return {
        "format_version": 1,
        "passed": len(run.results) - run.failed,
        "failed": run.failed,
        "files": [_file(file) for file in run.files],
        "coverage": {
            "percent": run.percent(),
            "policies": [_coverage(path, name, coverage) for (path, name), coverage in run.coverages.items()],
        },
    }


def junit_xml(run: PolicyTestRun) -> str:
    """One suite per file. Each problem of an unusable file is a test with an error."""
    suites = ElementTree.Element("testsuites", name="policysched")
    for file in run.files:
        path = escape_to_line(file.path)
        suite = ElementTree.SubElement(
            suites,
            "testsuite",
            name=path,
            tests=str(len(file.results) or len(file.problems)),
            failures=str(sum(1 for result in file.results if result.failures)),
            errors=str(len(file.problems)),
        )
        for problem in file.problems:
            case = ElementTree.SubElement(suite, "testcase", name=problem.code, classname=path)
            error = ElementTree.SubElement(
                case, "error", message=strip_xml_control_characters(problem.message), type=problem.code
            )
            error.text = strip_xml_control_characters(render_concise(problem))
        for result in file.results:
            case = ElementTree.SubElement(
                suite,
                "testcase",
                name=strip_xml_control_characters(result.name),
                classname=path,
                line=str(_line(result.span)),
            )
            for failure in result.failures:
                testcase = ElementTree.SubElement(
                    case, "failure", message=strip_xml_control_characters(failure.message), type="expectation"
                )
                testcase.text = f"{path}:{_line(failure.span)}"
    ElementTree.indent(suites)
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(suites, encoding="unicode") + "\n"
    )


def _file(file: TestFileResult) -> dict[str, Any]:
    return {
        "path": file.path,
        "tests": [_test(result) for result in file.results],
        "problems": [_problem(diagnostic) for diagnostic in file.problems],
    }


def _test(result: PolicyTestResult) -> dict[str, Any]:
    return {
        "name": result.name,
        "line": _line(result.span),
        "passed": not result.failures,
        "failures": [_failure(failure) for failure in result.failures],
    }


def _failure(failure: ExpectationFailure) -> dict[str, Any]:
    position = failure.span.source.file_position(failure.span.start)
    return {"message": failure.message, "line": position.line, "column": position.column}


def _problem(diagnostic: Diagnostic) -> dict[str, Any]:
    record: dict[str, Any] = {
        "code": diagnostic.code,
        "name": diagnostic.name,
        "message": diagnostic.message,
        "help": diagnostic.help,
    }
    if diagnostic.span is not None:
        position = diagnostic.span.source.file_position(diagnostic.span.start)
        record |= {"filename": diagnostic.span.source.name, "line": position.line, "column": position.column}
    return record


def _coverage(path: str, name: str, coverage: Coverage) -> dict[str, Any]:
    return {
        "policy": name,
        "path": path,
        "percent": coverage.percent,
        "outcomes": [
            {"rule": outcome.rule, "outcome": outcome.kind, "reached": outcome in coverage.reached}
            for outcome in coverage.outcomes
        ],
    }


def _line(span: Any) -> int:
    return int(span.source.file_position(span.start).line)
