"""The inputs of the offline commands: one checked policy, a cluster and samples, all from files."""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

from policysched.cluster.samples import MetricSamples
from policysched.files import STANDARD_INPUT, read_text
from policysched.lang.check.bundle import PolicyBundle
from policysched.lang.ir.program import Program
from policysched.metric_sources.file import convert_file_metric, read_samples_file
from policysched.model.identifiers import NodeName
from policysched.policy_files.checking import (
    NO_SETTINGS,
    LoadRules,
    check_source_set,
    reject_unused_parameters,
)
from policysched.policy_files.source_set import UnusableFile
from policysched.policy_files.sources import load_policy_sources
from policysched.text import Diagnostic, Severity

_NAMES_SHOWN_MAX = 3


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


def abbreviate_names(names: Sequence[str]) -> str:
    """The first names, and the number of the others."""
    more = f" and {len(names) - _NAMES_SHOWN_MAX} more" if len(names) > _NAMES_SHOWN_MAX else ""
    return f"{', '.join(names[:_NAMES_SHOWN_MAX])}{more}"
