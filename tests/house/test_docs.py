"""The documentation matches the program: generated parts are up to date, settings and metrics complete."""

import dataclasses
import html
import re
from pathlib import Path
from random import Random
from typing import get_args

import click
import jsonschema
import pytest
import yaml

from policysched.builtins.registry import BUILTINS
from policysched.builtins.unsupported import UNSUPPORTED_FEATURES
from policysched.cli import COMMANDS, CommandError, main
from policysched.config.layers import BadSettings
from policysched.config.settings import read_settings
from policysched.daemon.app import Runtime
from policysched.daemon.process import ExitReason
from policysched.extender.extender_app import ExtenderApp
from policysched.extender.settings import read_extender_settings
from policysched.extender.telemetry import ExtenderTelemetry
from policysched.lang.check import check_text
from policysched.lang.diagnostics.catalogue import DIAGNOSTIC_DOCS
from policysched.lang.ir.attributes import ATTRIBUTES
from policysched.scheduler.commands import PendingReason
from policysched.schemas import schema
from policysched.text import Severity
from tests.house import coverage_doc, docs, metrics_doc, settings_doc
from tests.house.exported_metrics import exported
from tests.inline import check_inline
from tests.kube.world import World, on_virtual_time

ROOT = docs.ROOT
SCHEMAS = sorted((ROOT / "policysched" / "schemas").glob("*.json"))


GENERATED = {*docs.written_pages(), *(ROOT / page for page in docs.PAGES)} - {ROOT / "docs" / "explain.svg"}


@pytest.mark.parametrize("path", sorted(GENERATED), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_generated_parts_of_a_page_are_up_to_date(path: Path) -> None:
    written = path.read_text(encoding="utf-8")

    assert written == docs.should_be(path), f"run: {docs.COMMAND}"


def test_the_picture_shows_the_output_on_the_page_without_a_cluster() -> None:
    """The words, not the bytes: another version of rich draws another file."""
    drawn = html.unescape(
        re.sub(r"<[^>]*>", " ", (ROOT / "docs" / "explain.svg").read_text(encoding="utf-8"))
    )
    page = (ROOT / "docs" / "offline.md").read_text(encoding="utf-8")
    output = page[page.index("$ policysched explain shop/web-1") :].split("```")[0]

    assert "link_cool" in output
    assert [word for word in output.split() if word not in drawn.split()] == []


def test_every_generated_section_is_used_once() -> None:
    assert sorted(docs.marks()) == sorted(docs.SECTIONS)


def test_an_outdated_page_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docs").mkdir()
    page = tmp_path / "README.md"
    page.write_text("<!-- generated: units -->\nan old table\n<!-- end -->\n")
    monkeypatch.setattr(docs, "ROOT", tmp_path)
    monkeypatch.setattr(docs, "PAGES", {})

    before = docs.behind()
    page.write_text(docs.should_be(page))

    assert before == [page]
    assert docs.behind() == []


def test_the_page_of_attributes_has_each_of_them() -> None:
    page = (ROOT / "docs" / "attributes.md").read_text(encoding="utf-8")

    assert ATTRIBUTES
    assert [row.qualified_name for row in ATTRIBUTES.values() if f"`{row.qualified_name}" not in page] == []


def test_the_page_of_diagnostics_has_each_of_them() -> None:
    page = (ROOT / "docs" / "rules.md").read_text(encoding="utf-8")

    headings = re.findall(r"^### (PS\d+) (.+)$", page, flags=re.MULTILINE)
    assert headings
    assert sorted(headings) == sorted((row.code, row.name) for row in DIAGNOSTIC_DOCS.values())


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


def test_the_page_for_operators_names_every_plugin_as_covered_or_not() -> None:
    section = (
        (ROOT / "docs" / "running.md").read_text(encoding="utf-8").split("\n## What is not covered\n")[1]
    )
    pending = {row.plugin for row in UNSUPPORTED_FEATURES if row.effect == "the pod stays pending"}
    covered = {builtin.plugin for builtin in BUILTINS.values()}

    assert pending and covered
    assert {plugin for plugin in covered | pending if plugin not in section} == set()


# ── settings ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_exactly_the_existing_settings_are_described() -> None:
    undescribed = {name for name, field in settings_doc.fields() if not field.get("description")}

    assert set(settings_doc.SAID) == undescribed - {"policies", "last_good"}


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, _ in settings_doc.fields()
        if name.partition(".")[0]
        in ("leader_election", "binding", "reporting", "scheduling", "check_timeout_s", "shutdown_timeout_s")
        or name.startswith(("api.", "log."))
    ],
)
def test_the_documented_default_is_the_actual_one(name: str) -> None:
    documented = yaml.safe_load(settings_doc.default(name))

    nested: object = documented
    for part in reversed(name.split(".")):
        nested = {part: nested}
    assert isinstance(nested, dict)
    as_documented = read_settings(None, {}, {"policies": "a/b", **nested})

    unset = read_settings(None, {}, {"policies": "a/b"})
    assert dataclasses.replace(as_documented, configured={}) == dataclasses.replace(unset, configured={})


def test_a_value_other_than_the_default_changes_the_settings() -> None:
    unset = read_settings(None, {}, {"policies": "a/b"})

    changed = read_settings(None, {}, {"policies": "a/b", "scheduling": {"backoff_max_s": 30}})

    assert changed.limits.backoff_max_s == 30 != unset.limits.backoff_max_s


def test_the_manifests_use_existing_settings() -> None:
    read = read_settings(ROOT / "deploy" / "settings.yaml", {}, {})

    assert read.http is not None and read.lease is not None
    with pytest.raises(BadSettings):
        read_settings(ROOT / "deploy" / "lease.yaml", {}, {})
    extender = read_extender_settings(ROOT / "deploy" / "extender" / "settings.yaml", {}, {})
    assert extender.source_name == "ConfigMap policysched/extender-policies"


@pytest.mark.parametrize(
    "name",
    [name for name, _ in settings_doc.fields() if re.match(r"extender_server\.(?!scheduler_names)", name)],
)
def test_a_documented_default_of_the_extender_is_the_actual_one(name: str) -> None:
    given = {"policies": "a/b", "http": ":1"}
    documented = {name.partition(".")[2]: yaml.safe_load(settings_doc.default(name))}

    as_documented = read_extender_settings(None, {}, {**given, "extender_server": documented})

    assert as_documented.limits == read_extender_settings(None, {}, given).limits


# ── commands, flags, exit codes ────────────────────────────────────────────────────────────────────────────────────

OF_OTHER_PROGRAMS = frozenset(
    [
        "--clusterrole",
        "--create-namespace",
        "--dry-run",
        "--field-selector",
        "--force-conflicts",
        "--from-file",
        "--ignore-not-found",
        "--image",
        "--namespace",
        "--non-resource-url",
        "--overrides",
        "--patch-file",
        "--replicas",
        "--reset-then-reuse-values",
        "--serviceaccount",
        "--set",
        "--take-ownership",
        "--terminated-pod-gc-threshold",
        "--type",
        "--update",
        "--update-golden",
        "--verb",
    ]
)
"""kubectl's, helm's, kube-controller-manager's, and those of this project's own tests."""


def flags_of(command: click.Command) -> set[str]:
    options = [option for option in command.params if isinstance(option, click.Option)]
    return {flag for option in options for flag in (*option.opts, *option.secondary_opts)}


def commands() -> list[click.Command]:
    listed = [main.get_command(click.Context(main), name) for name in COMMANDS]
    return [command for command in listed if command is not None]


def flags_in(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]+(?!\w)", text))


def test_the_commands_page_lists_every_command_with_every_flag() -> None:
    sections = re.split(r"^## ", docs.PAGES["docs/commands.md"](), flags=re.MULTILINE)[1:]

    assert [section.split("\n")[0] for section in sections] == list(COMMANDS)
    for command, section in zip(commands(), sections, strict=True):
        assert flags_of(command) <= flags_in(section)


@pytest.mark.parametrize("path", docs.written_pages(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_flag_that_a_page_names_exists(path: Path) -> None:
    existing = set().union(*map(flags_of, commands())) | {"--help", "--version"}

    assert flags_in(path.read_text(encoding="utf-8")) - existing - OF_OTHER_PROGRAMS == set()


def test_a_missing_flag_is_detected() -> None:
    assert flags_in("give `--metric` or --no-wait, and a-b--c") == {"--metric", "--no-wait"}


def test_the_page_lists_the_exit_codes_of_the_scheduler() -> None:
    page = (ROOT / "docs" / "running.md").read_text(encoding="utf-8")
    table = page[page.index("| exit code |") :].split("\n\n")[0]

    listed = [int(code) for code in re.findall(r"^\| (\d+) \|", table, flags=re.MULTILINE)]

    assert listed == sorted({exit_reason.value for exit_reason in ExitReason} | {CommandError.exit_code})


def test_the_pages_list_the_metrics_of_the_extender() -> None:
    telemetry = ExtenderTelemetry()
    settings = read_extender_settings(None, {}, {"policies": "a/b", "http": ":1"})
    exports: list[str] = []

    async def scenario() -> None:
        world = World()
        runtime = Runtime(
            transport=world.transport(),
            check_texts=check_inline,
            now_ns=world.now_ns,
            monotonic_s=world.loop.time,
            random=Random,
            identity="one",
        )
        telemetry.attach(ExtenderApp(settings, runtime), world.now_ns)
        exports.extend(re.findall(r"^# TYPE (\w+) ", telemetry.registry.render(), flags=re.MULTILINE))

    on_virtual_time(scenario)

    page = (ROOT / "docs" / "extender.md").read_text(encoding="utf-8")
    own = set(re.findall(r"^\| `(policysched_\w+)` \|", page, flags=re.MULTILINE))
    assert {export for export in exports if export.startswith("policysched_extender_")} == own
    assert own < set(exports)
    assert set(exports) - own <= {metric.name for metric in exported()}


# ── metrics and alerts ─────────────────────────────────────────────────────────────────────────────────────────────


def test_every_metric_has_a_sample_in_the_run_behind_the_table() -> None:
    metrics = list(exported())

    assert len(metrics) > 50
    assert [metric.name for metric in metrics if not metric.sampled] == []


OF_KUBE_SCHEDULER = """
    async_api_call_execution_duration_seconds async_api_call_execution_total batch_attempts_total
    batch_cache_flushed_total cache_size dra_bindingconditions_allocations_total
    dra_bindingconditions_wait_duration_seconds event_handling_duration_seconds
    framework_extension_point_duration_seconds get_node_hint_duration_seconds goroutines inflight_events
    pending_async_api_calls pending_pods permit_wait_duration_seconds plugin_evaluation_total
    plugin_execution_duration_seconds pod_scheduled_after_flush_total pod_scheduling_attempts
    pod_scheduling_sli_duration_seconds podgroup_schedule_attempts_total
    podgroup_scheduling_algorithm_duration_seconds podgroup_scheduling_attempt_duration_seconds
    preemption_attempts_total preemption_goroutines_duration_seconds preemption_goroutines_execution_total
    preemption_victims queue_incoming_pods_total queueing_hint_execution_duration_seconds resourceclaim_creates_total
    schedule_attempts_total scheduling_algorithm_duration_seconds scheduling_attempt_duration_seconds
    store_schedule_results_duration_seconds unschedulable_pods
    batch_rescore_attempts_total batch_rescore_duration_seconds generated_placements_total
    placement_evaluation_duration_seconds placement_evaluations_total pre_queueing_hint_evaluations_total
    preemption_evaluation_duration_seconds preemption_execution_duration_seconds preemption_pdb_violations_total
    preemption_workload_disruptions queue_incoming_entities_total queued_entities
    workload_preemption_attempts_total workload_preemption_victims
"""
"""All metrics of kube-scheduler 1.37, from `pkg/scheduler/metrics/metrics.go`."""


def test_each_kube_scheduler_metric_exists_or_its_replacement_is_documented() -> None:
    exported_names = {
        metric.name for metric in exported() if metric.name.startswith(metrics_doc.KUBE_SCHEDULERS)
    }
    not_here = {metrics_doc.KUBE_SCHEDULERS + name for name in metrics_doc.NOT_HERE}

    assert exported_names.isdisjoint(not_here)
    assert exported_names | not_here == {
        metrics_doc.KUBE_SCHEDULERS + name for name in OF_KUBE_SCHEDULER.split()
    }


def alert_expressions() -> dict[str, str]:
    expressions: dict[str, str] = {}
    for path in sorted((ROOT / "deploy" / "alerts").glob("*.yaml")):
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]:
            expressions |= {rule["alert"]: rule["expr"] for rule in group["rules"]}
    return expressions


@pytest.mark.parametrize("alert", alert_expressions())
def test_an_alert_reads_metrics_and_labels_that_are_exported(alert: str) -> None:
    known = {metric.name: set(metric.labels) for metric in exported()}

    read = metrics_in(alert_expressions()[alert])

    assert read, f"{alert} reads nothing of ours"
    assert {name: labels - known.get(name, set()) for name, labels in read.items() if name in known} == {
        name: set() for name in read
    }


def metrics_in(expression: str) -> dict[str, set[str]]:
    """Our metrics in a PromQL expression, with the labels that it selects by."""
    labels_of: dict[str, set[str]] = {}
    for name, selector in re.findall(r"\b((?:policysched|scheduler)_\w+)\b(?:\{([^}]*)\})?", expression):
        labels_of.setdefault(name, set()).update(re.findall(r"(\w+)\s*[=!]", selector))
    return labels_of


def test_an_alert_on_a_missing_metric_or_label_is_detected() -> None:
    assert metrics_in('rate(policysched_nothing{result="x", b!="y"}[5m]) > 0') == {
        "policysched_nothing": {"result", "b"}
    }


# ── schemas ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("path", SCHEMAS, ids=lambda path: path.stem)
def test_a_schema_is_a_valid_schema_of_its_draft_with_a_title(path: Path) -> None:
    document = schema(path.stem)

    jsonschema.Draft202012Validator.check_schema(document)
    assert document["$schema"] == jsonschema.Draft202012Validator.META_SCHEMA["$id"]
    assert document["title"]


# ── unsupported features ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("part", coverage_doc.MAY_BE_LEFT_OUT)
def test_an_example_of_an_optional_part_is_valid(part: str) -> None:
    text = coverage_doc.MAY_BE_LEFT_OUT[part]

    checked = check_text(f"policy example version 1\ninclude kube_default\n{text}\n").diagnostics

    assert [diagnostic.message for diagnostic in checked if diagnostic.severity >= Severity.ERROR] == []


# ── terms that users search for ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("path", docs.written_pages(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_code_that_a_page_names_is_in_the_catalogue(path: Path) -> None:
    named = set(re.findall(r"\bPS\d{3}\b", path.read_text(encoding="utf-8")))

    assert named <= DIAGNOSTIC_DOCS.keys()


_REASON = r'(?:Report\w+\(\s*"(?:Warning|Normal)"|EventContent\(\w+, "(?:Warning|Normal)"|_warning_event\([^"\n]*|report\(\w+), "(\w+)"'


def reasons_in_the_code() -> set[str]:
    """Reasons of events and conditions, from the source."""
    files = [
        *(ROOT / "policysched" / "scheduler").rglob("*.py"),
        ROOT / "policysched" / "runtime" / "command_dispatcher.py",
    ]
    code = "\n".join(file.read_text(encoding="utf-8") for file in files)
    return set(re.findall(_REASON, code)) | set(get_args(PendingReason)) | {"FailedScheduling"}


def test_every_reason_of_an_event_or_a_condition_is_explained() -> None:
    page = (ROOT / "docs" / "running.md").read_text(encoding="utf-8")

    reasons = reasons_in_the_code()

    assert {"Scheduled", "InvalidInput", "PolicyRejected", "SchedulerError", "MetricOutage"} <= reasons
    assert {reason for reason in reasons if f"`{reason}`" not in page} == set()
