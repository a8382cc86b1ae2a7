"""Random clusters and planted edits for comparisons of policies."""

import random
from collections.abc import Iterable
from dataclasses import dataclass

from policysched.comparison.runner import ComparedCluster
from policysched.from_files.cluster_files import ClusterFiles
from policysched.from_files.inputs import PresentInputs
from policysched.from_files.simulate import Scope
from policysched.lang.check import check_text
from policysched.lang.ir.program import Program
from tests.builders import node_manifest, pod_manifest

NOW_NS = 1_767_225_600 * 10**9

POLICY = """\
policy test version 1

let crowd: int = 6
let wide: cpu = 3
input pool: string = node.labels["pool"] default "none"

queue by pod.priority desc, pod.queued

include kube_default

filter few require node.pods < crowd says "has {node.pods} pods"
filter roomy when pod.requests.cpu >= 1 require node.allocatable.cpu >= wide
score calm weight 3 prefer pool == "a"
preemption { victims = any }
"""


@dataclass(frozen=True, slots=True)
class Edit:
    """`mark` is on the line that the edit writes."""

    before: str
    after: str
    mark: str


EDITS = (
    Edit("let crowd: int = 6", "let crowd: int = 2", "crowd: int = 2"),
    Edit("let wide: cpu = 3", "let wide: cpu = 5", "wide: cpu = 5"),
    Edit('prefer pool == "a"', 'prefer pool == "b"', 'pool == "b"'),
    Edit("queue by pod.priority desc,", "queue by pod.requests.cpu desc,", "cpu desc"),
    Edit("preemption { victims = any }", "preemption never", "never"),
    Edit("filter few require", 'filter no_c require pool != "c"\nfilter few require', "no_c"),
    Edit("include kube_default", "include kube_default\nreweight node_resources_fit 9", "reweight"),
)


def edited(edits: Iterable[Edit]) -> str:
    text = POLICY
    for edit in edits:
        assert edit.before in text, edit
        text = text.replace(edit.before, edit.after, 1)
    return text


def line_of(edit: Edit, text: str) -> int:
    """Counted from 1."""
    return next(number for number, line in enumerate(text.split("\n"), start=1) if edit.mark in line)


def policy(text: str, name: str = "test.policy") -> Program:
    checked = check_text(text, name)
    assert checked.program is not None, checked.diagnostics
    return checked.program


def random_files(seed: int, *, nodes: int = 6, pods: int = 30) -> ClusterFiles:
    """Nodes of three pools and two sizes, running pods of low priority, and more pending pods than fit."""
    rng = random.Random(seed)
    files = ClusterFiles()
    for number in range(nodes):
        labels = {"pool": rng.choice("abc")}
        files.add(node_manifest(f"node-{number}", cpu=rng.choice(["4", "8"]), memory="16Gi", labels=labels))
    for number in range(nodes):
        files.add(
            pod_manifest(
                f"running-{number}",
                cpu="2",
                priority=-1,
                node=f"node-{number}",
                phase="Running",
                scheduler="test",
            )
        )
    for number in range(pods):
        files.add(
            pod_manifest(
                f"pod-{number}",
                cpu=rng.choice(["100m", "500m", "1", "2"]),
                priority=rng.choice([0, 0, 0, 5]),
                scheduler="test",
            )
        )
    assert not files.malformed, files.malformed[0]
    return files


def compared(files: ClusterFiles, scope: Scope = "named", *, workers: int = 1) -> ComparedCluster:
    return ComparedCluster(
        files, scope, NOW_NS, lambda _program: PresentInputs(NOW_NS, {}, None, []), workers=workers
    )
