"""The result of a test run as JSON (`schemas/test.json`) and as JUnit XML."""

from typing import Any
from xml.etree import ElementTree

from policysched.policytest.coverage import Coverage
from policysched.policytest.expectations import ExpectationFailure
from policysched.policytest.runner import PolicyTestResult, PolicyTestRun, TestFileResult
from policysched.text import Diagnostic
from policysched.text.render_machine import strip_xml_control_characters
from policysched.text.render_text import render_concise


def run_record(run: PolicyTestRun) -> dict[str, Any]:
    return {
        "format_version": 1,
        "passed": len(run.results) - run.failed,
        "failed": run.failed,
        "files": [_file(one) for one in run.files],
        "coverage": {
            "percent": run.percent(),
            "policies": [_coverage(path, name, coverage) for (path, name), coverage in run.coverages.items()],
        },
    }


def junit_xml(run: PolicyTestRun) -> str:
    """One suite per file. Each problem of an unusable file is a test with an error."""
    suites = ElementTree.Element("testsuites", name="policysched")
    for file in run.files:
        suite = ElementTree.SubElement(
            suites,
            "testsuite",
            name=file.path,
            tests=str(len(file.results) or len(file.problems)),
            failures=str(sum(1 for one in file.results if one.failures)),
            errors=str(len(file.problems)),
        )
        for problem in file.problems:
            case = ElementTree.SubElement(suite, "testcase", name=problem.code, classname=file.path)
            error = ElementTree.SubElement(
                case, "error", message=strip_xml_control_characters(problem.message), type=problem.code
            )
            error.text = strip_xml_control_characters(render_concise(problem))
        for one in file.results:
            case = ElementTree.SubElement(
                suite,
                "testcase",
                name=strip_xml_control_characters(one.name),
                classname=file.path,
                line=str(_line(one.span)),
            )
            for failure in one.failures:
                found = ElementTree.SubElement(
                    case, "failure", message=strip_xml_control_characters(failure.message), type="expectation"
                )
                found.text = f"{file.path}:{_line(failure.span)}"
    ElementTree.indent(suites)
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(suites, encoding="unicode") + "\n"
    )


def _file(file: TestFileResult) -> dict[str, Any]:
    return {
        "path": file.path,
        "tests": [_test(one) for one in file.results],
        "problems": [_problem(one) for one in file.problems],
    }


def _test(one: PolicyTestResult) -> dict[str, Any]:
    return {
        "name": one.name,
        "line": _line(one.span),
        "passed": not one.failures,
        "failures": [_failure(failure) for failure in one.failures],
    }


def _failure(one: ExpectationFailure) -> dict[str, Any]:
    place = one.span.source.file_position(one.span.start)
    return {"message": one.message, "line": place.line, "column": place.column}


def _problem(one: Diagnostic) -> dict[str, Any]:
    record: dict[str, Any] = {"code": one.code, "name": one.name, "message": one.message, "help": one.help}
    if one.span is not None:
        place = one.span.source.file_position(one.span.start)
        record |= {"filename": one.span.source.name, "line": place.line, "column": place.column}
    return record


def _coverage(path: str, name: str, coverage: Coverage) -> dict[str, Any]:
    return {
        "policy": name,
        "path": path,
        "percent": coverage.percent,
        "outcomes": [
            {"rule": one.rule, "outcome": one.kind, "reached": one in coverage.reached}
            for one in coverage.outcomes
        ],
    }


def _line(span: Any) -> int:
    return int(span.source.file_position(span.start).line)
