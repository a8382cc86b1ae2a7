"""What `policysched diff` compares two policies on: a cluster, or a recording."""

import time
from collections.abc import Sequence
from pathlib import Path

import click

from policysched import __version__
from policysched.cli.offline_options import report_malformed
from policysched.comparison.compared_recording import ComparedRecording, compared_recording
from policysched.comparison.forked import Progress
from policysched.comparison.report_texts import count_text
from policysched.comparison.runner import ComparedCluster
from policysched.from_files.cluster_files import ClusterFiles, read_cluster_files
from policysched.from_files.inputs import PresentInputs, load_present
from policysched.from_files.live_cluster import read_live_cluster
from policysched.from_files.simulate import RequestedScope, choose_scope, with_placed_pods_pending
from policysched.lang.ir.program import Program
from policysched.offline.pod_explanation import missing_inputs_note
from policysched.policy_files.source_set import UnusableFile
from policysched.recording.reader import open_recording
from policysched.scheduler.policy_permissions import PolicyPermissions


def reject_both(recording: Path | None, others: Sequence[tuple[str, object]], *, only: bool) -> None:
    """A usage error where options of a recording and of a cluster are mixed. `only`: a part of the recording is chosen."""
    if recording is None and only:
        raise click.UsageError("--from, --to and --last need --recording")
    option_names = [name for name, value in others if value]
    if recording is not None and option_names:
        raise click.UsageError(f"--recording and {option_names[0]} exclude each other")


def read_recording(
    folder: Path,
    programs: tuple[Program, Program],
    from_ns: int | None,
    to_ns: int | None,
    last_ns: int | None,
) -> tuple[ComparedRecording, list[str]]:
    """The recording, for policies that take the place of OLD's name or of its only policy, and notes. Raises
    UnusableRecording."""
    if from_ns is not None and last_ns is not None:
        raise click.UsageError("give --from or --last, not both")
    recording = open_recording(folder)
    since_ns = from_ns if last_ns is None else recording.ends_ns - last_ns
    compared = compared_recording(recording, programs[0].name, since_ns, to_ns)
    notes = []
    if programs[0].name != compared.policy_name or programs[1].name != compared.policy_name:
        notes.append(f"both policies are evaluated under the name {compared.policy_name}, for its pods")
    notes += [missing_inputs_note(program) for program in programs if program.extenders]
    return compared, list(dict.fromkeys(notes))


def read_cluster(
    programs: tuple[Program, Program],
    permissions: PolicyPermissions,
    progress: Progress,
    *,
    paths: tuple[str, ...],
    kubeconfig: str | None,
    context: str | None,
    metrics_path: Path | None,
    state_path: Path | None,
    at_ns: int | None,
    pods_scope: RequestedScope,
    placed: bool,
) -> tuple[ComparedCluster, list[str]]:
    """The cluster of the files or of the kubeconfig, with the samples and states of each policy, and notes."""
    old, new = programs
    files, notes = _read_cluster(paths, kubeconfig, context, progress)
    scope = choose_scope(files, old.name, pods_scope)
    if placed:
        files, taken = with_placed_pods_pending(files, None if scope == "all" else old.name)
        notes.append(f"{count_text(taken, 'placed pod')} placed again")
    nodes = files.node_names()
    now_ns = load_present(metrics_path, state_path, old, nodes, at_ns=at_ns, clock_ns=time.time_ns()).now_ns

    def present_of(program: Program) -> PresentInputs:
        return load_present(metrics_path, state_path, program, nodes, at_ns=now_ns, clock_ns=now_ns)

    for program in programs:
        notes += [note for note in present_of(program).notes if note not in notes]
        notes += [missing_inputs_note(program)] if program.extenders else []
    if old.name != new.name:
        notes.append(f"{new.name} is evaluated under the name {old.name}, for the same pods")
    return ComparedCluster(files, scope, now_ns, present_of, permissions), notes


def _read_cluster(
    paths: tuple[str, ...], kubeconfig: str | None, context: str | None, progress: Progress
) -> tuple[ClusterFiles, list[str]]:
    if paths and (kubeconfig or context):
        raise click.UsageError("--cluster and --kubeconfig exclude each other")
    if paths:
        files, notes = read_cluster_files(paths, progress), list[str]()
    else:
        files, notes = read_live_cluster(
            None if kubeconfig is None else Path(kubeconfig),
            context,
            user_agent=f"policysched-diff/{__version__}",
            progress=progress,
        )
    report_malformed(files)
    if not files.nodes:
        raise UnusableFile("the cluster has no nodes, so that every pod is pending with both policies")
    return files, notes
