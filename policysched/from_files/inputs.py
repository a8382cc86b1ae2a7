"""The inputs of the offline commands: one checked policy, a cluster and samples, all from files."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import orjson

from policysched.cluster.metric_samples import MetricSamples
from policysched.files import STANDARD_INPUT, UnreadableFile, read_text
from policysched.from_files.state_values import load_state_values
from policysched.lang.check.bundle import PolicyBundle
from policysched.lang.ir.program import Program
from policysched.metric_sources.file import convert_file_metric, read_samples_file
from policysched.metric_sources.samples_export import (
    BadSamplesExport,
    SamplesExport,
    is_samples_export,
    read_samples_export,
)
from policysched.model.identifiers import NodeName
from policysched.model.pods import Pod
from policysched.policy_files.checking import (
    NO_SETTINGS,
    LoadRules,
    check_source_set,
    reject_unused_parameters,
)
from policysched.policy_files.source_set import UnusableFile
from policysched.policy_files.sources import load_policy_sources
from policysched.text import Diagnostic, Severity
from policysched.text.abbreviate import abbreviate_names


class PolicyHasErrors(Exception):
    """The chosen policy has errors: `diagnostics`."""

    def __init__(self, diagnostics: tuple[Diagnostic, ...]) -> None:
        super().__init__(f"the policy has {len(diagnostics)} error(s)")
        self.diagnostics = diagnostics


def choose_policy(
    path: str, name: str | None, flags: Sequence[str] = (), rules: LoadRules = NO_SETTINGS
) -> Program:
    """The policy of a file (`-` is standard input), or the named one of a ConfigMap or folder with several. `flags` are
    parameter values, `NAME=VALUE`; `rules` are those of the settings.

    Raises UnusableFile if there is none or the choice is ambiguous, PolicyHasErrors if it has errors.
    """
    programs: dict[str, Program] = {}
    errors: list[Diagnostic] = []
    bundles: list[PolicyBundle] = []
    for sources in load_policy_sources([path], stdin=partial(read_text, STANDARD_INPUT)):
        bundles.append(check_source_set(sources, flags, rules))
        for key, checked in bundles[-1].sources.items():
            if key not in sources.requested:
                continue
            errors += [
                diagnostic for diagnostic in checked.diagnostics if diagnostic.severity >= Severity.ERROR
            ]
            if checked.program is not None:
                programs[checked.program.name] = checked.program
    reject_unused_parameters(flags, bundles)
    wanted = [program for program in programs.values() if name in (None, program.name)]
    if len(wanted) == 1 and (name is not None or not errors):
        return wanted[0]
    if errors:
        raise PolicyHasErrors(tuple(errors))
    if wanted:
        raise UnusableFile(
            f"{path}: has several policies; choose one with --name: {', '.join(sorted(programs))}"
        )
    if programs:
        raise UnusableFile(f"{path}: has no policy `{name}`; there is {', '.join(sorted(programs))}")
    raise UnusableFile(f"{path}: contains only libraries, no policy")


def load_samples(
    path: Path | None, program: Program, nodes: Collection[NodeName], *, now_ns: int
) -> tuple[Mapping[str, MetricSamples], list[str]]:
    """The samples of the policy's metrics in the file, as measured now, and notes for the user about metrics without
    samples, samples without a metric or a node, and invalid values. Raises an error for an invalid file."""
    table = read_samples_file(path) if path is not None else {}
    source = path if path is not None else "no --metrics file was given"
    samples, notes = dict[str, MetricSamples](), list[str]()
    for name, metric in program.metrics.items():
        if name not in table:
            notes.append(f"metric {name} has no samples ({source})")
            continue
        converted = convert_file_metric(metric, table[name], nodes, now_ns)
        samples[name] = converted.samples
        if converted.invalid_message is not None:
            notes.append(f"{path}: {converted.invalid_message}")
        if converted.unknown_nodes:
            names = abbreviate_names(converted.unknown_nodes)
            notes.append(f"{path}: metric {name} has samples of unknown nodes: {names}")
    notes += [
        f"{path}: the policy declares no metric {name}" for name in table if name not in program.metrics
    ]
    return samples, notes


@dataclass(frozen=True, slots=True)
class PresentInputs:
    """What the offline commands take as the present: the time, the samples of the policy's metrics, the saved values of
    its states (None: start values), and notes for the user."""

    now_ns: int
    samples: Mapping[str, MetricSamples]
    states: str | None
    notes: list[str]


def load_present(
    metrics_path: Path | None,
    state_path: Path | None,
    program: Program,
    nodes: Collection[NodeName],
    *,
    at_ns: int | None,
    clock_ns: int,
) -> PresentInputs:
    """`at_ns` is the present time that the user gave. The default is the time of the samples if they are an export of a
    scheduler (`/samples`), otherwise the clock's. Raises an error for an unusable file."""
    export = _read_export(metrics_path, program)
    now_ns = at_ns if at_ns is not None else export.time_ns if export is not None else clock_ns
    if export is None:
        samples, notes = load_samples(metrics_path, program, nodes, now_ns=now_ns)
    else:
        samples = export.samples
        notes = [
            f"metric {name} has no samples ({metrics_path})"
            for name in program.metrics
            if name not in samples
        ]
        if export.sha256 != program.sha256:
            notes.append(
                f"{metrics_path}: the scheduler ran another text of {program.name} (sha {export.sha256[:12]})"
            )
    if export is not None and export.states is not None and state_path is None:
        return PresentInputs(now_ns, samples, export.states, notes)
    states, state_notes = load_state_values(state_path, program, nodes, now_ns=now_ns)
    return PresentInputs(now_ns, samples, states, [*notes, *state_notes])


def with_assumed_load(samples: Mapping[str, MetricSamples]) -> Mapping[str, MetricSamples]:
    """Samples whose values include the load assumed at the time of the export: a simulation assumes anew, for the pods
    that it places."""
    return {
        name: replace(
            polled,
            assumed={},
            values={
                node: replace(sample, value=sample.value + polled.assumed.get(node, 0))
                for node, sample in polled.values.items()
            },
        )
        for name, polled in samples.items()
    }


def _read_export(path: Path | None, program: Program) -> SamplesExport | None:
    """None if the file is a table that a person wrote, or there is none."""
    if path is None:
        return None
    try:
        document = orjson.loads(read_text(path))
    except (UnreadableFile, orjson.JSONDecodeError):
        return None  # reported, or read as YAML, by `load_samples`
    if not is_samples_export(document):
        return None
    try:
        return read_samples_export(document, program)
    except BadSamplesExport as error:
        raise UnusableFile(f"{path}: {error}") from None


def queued_at_creation(pod: Pod, now_ns: int) -> int:
    """A pending pod of a cluster file waits since it was created; one without a creation time since now."""
    return min(pod.created_ns or now_ns, now_ns)
