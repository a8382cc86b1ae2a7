"""What the offline commands ask with: one checked policy, a cluster and samples, all from files."""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

from policysched.cluster.samples import MetricSamples
from policysched.files import STANDARD_INPUT, read_text
from policysched.lang.check.bundle import PolicyBundle
from policysched.lang.ir.program import Program
from policysched.metric_sources.file import convert_file_metric, read_samples_file
from policysched.model.identifiers import NodeName
from policysched.policy_files.checking import check_source_set, reject_unused_parameters
from policysched.policy_files.source_set import UnusableFile
from policysched.policy_files.sources import load_policy_sources
from policysched.text import Diagnostic, Severity

_NAMES_SHOWN_MAX = 3


class PolicyHasErrors(Exception):
    """The chosen policy does not check. `diagnostics` are its errors."""

    def __init__(self, diagnostics: tuple[Diagnostic, ...]) -> None:
        super().__init__(f"the policy has {len(diagnostics)} error(s)")
        self.diagnostics = diagnostics


def choose_policy(path: str, name: str | None, flags: Sequence[str] = ()) -> Program:
    """The one policy of a file (`-` is standard input), or of a ConfigMap or folder with several the one by that name. `flags` are values for
    its parameters, `NAME=VALUE`.

    Raises UnusableFile where there is none or more than one to choose from, PolicyHasErrors where it does not check.
    """
    programs: dict[str, Program] = {}
    errors: list[Diagnostic] = []
    bundles: list[PolicyBundle] = []
    for one in load_policy_sources([path], stdin=partial(read_text, STANDARD_INPUT)):
        bundles.append(check_source_set(one, flags))
        for key, checked in bundles[-1].sources.items():
            if key not in one.requested:
                continue
            errors += [found for found in checked.diagnostics if found.severity >= Severity.ERROR]
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
            f"{path}: has several policies; choose one by --name: {', '.join(sorted(programs))}"
        )
    if programs:
        raise UnusableFile(f"{path}: has no policy `{name}`; there is {', '.join(sorted(programs))}")
    raise UnusableFile(f"{path}: holds libraries only, and a library is no policy by itself")


def load_samples(
    path: Path | None, program: Program, nodes: Collection[NodeName], *, now_ns: int
) -> tuple[Mapping[str, MetricSamples], list[str]]:
    """The samples that the policy's metrics have in the file, counted as measured now, and notes for the user about
    metrics without samples, samples without a metric or a node, and what is no value. Raises BadSamples."""
    table = read_samples_file(path) if path is not None else {}
    source = path if path is not None else "no --metrics file was given"
    samples, notes = dict[str, MetricSamples](), list[str]()
    for name, metric in program.metrics.items():
        if name not in table:
            notes.append(f"metric {name} has no samples ({source})")
            continue
        found = convert_file_metric(metric, table[name], nodes, now_ns)
        samples[name] = found.samples
        if found.invalid_message is not None:
            notes.append(f"{path}: {found.invalid_message}")
        if found.unknown_nodes:
            names = abbreviate_names(found.unknown_nodes)
            notes.append(f"{path}: metric {name} has samples of nodes that are not there: {names}")
    notes += [
        f"{path}: the policy declares no metric {name}" for name in table if name not in program.metrics
    ]
    return samples, notes


def abbreviate_names(names: Sequence[str]) -> str:
    """The first of them, and how many more there are."""
    more = f" and {len(names) - _NAMES_SHOWN_MAX} more" if len(names) > _NAMES_SHOWN_MAX else ""
    return f"{', '.join(names[:_NAMES_SHOWN_MAX])}{more}"
