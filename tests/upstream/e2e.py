"""Upstream's e2e tests: which there are, why some cannot run on hollow nodes, and the outcome of those that do."""

import json
import re
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.controlplane.cluster import ControlPlane

Json = dict[str, Any]

TIMEOUT = "2h"
OUTCOMES = "outcomes.json"
OFF_BY_DEFAULT = "Feature:OffByDefault"
RUNS_CONTAINERS = "Feature:DynamicResourceAllocation"
FEATURE_GATE = "FeatureGate:"
TAG = re.compile(r"\s*\[[^\]]*\]")


@dataclass(frozen=True, slots=True)
class UpstreamTest:
    """`path` are the texts of its containers and its own, as Ginkgo has them; `labels` those of all of them."""

    path: tuple[str, ...]
    labels: frozenset[str]

    @property
    def judges_a_scheduler(self) -> bool:
        """The binary also has the tests that the framework of e2e tests brings along."""
        return self.path[0].startswith("[sig-scheduling]") or "DRA" in self.labels

    @property
    def area(self) -> str:
        """`SchedulerPreemption`, without the group that owns it and without tags."""
        return TAG.sub("", self.path[0]).strip() or "DRA"

    @property
    def name(self) -> str:
        """What follows the area, without tags."""
        words = (TAG.sub("", text).strip() for text in self.path[1:])
        return " ".join(word for word in words if word)

    @property
    def full_name(self) -> str:
        """The name that `--ginkgo.focus` is matched against."""
        return " ".join(self.path)

    @property
    def gates(self) -> frozenset[str]:
        """The feature gates that it needs."""
        return frozenset(
            label.removeprefix(FEATURE_GATE) for label in self.labels if label.startswith(FEATURE_GATE)
        )

    def obstacle(self, gates_on: AbstractSet[str]) -> str | None:
        """Why it cannot run on hollow nodes."""
        if RUNS_CONTAINERS in self.labels:
            return "needs a kubelet that runs the containers of a device driver"
        off = self.gates - gates_on
        return f"needs {', '.join(sorted(off))}, off by default" if off else None


@dataclass(frozen=True, slots=True)
class Outcome:
    """`state` is `passed`, `skipped`, `failed` or another of Ginkgo's; `why` is the first line of what the test said."""

    state: str
    why: str
    seconds: float

    @property
    def was_run(self) -> bool:
        """A test that skips itself says why; one that was not chosen does not."""
        return self.state != "skipped" or bool(self.why)


def gates_on_by_default(tests: Iterable[UpstreamTest]) -> frozenset[str]:
    """Those that a test needs which does not say that one of its gates is off by default."""
    return frozenset(gate for test in tests if OFF_BY_DEFAULT not in test.labels for gate in test.gates)


def all_tests(upstream: Path, folder: Path) -> list[UpstreamTest]:
    """Every test of scheduling and of dynamic resource allocation, without running one."""
    report = folder / "tests.json"
    run_ginkgo(upstream, folder, "--ginkgo.dry-run", f"--ginkgo.json-report={report}")
    tests = (test for test, _ in read_report(report) if test.judges_a_scheduler)
    return sorted(tests, key=lambda test: (test.area, test.name))


def run_tests(
    upstream: Path, control_plane: ControlPlane, tests: Sequence[UpstreamTest], folder: Path
) -> dict[UpstreamTest, Outcome]:
    """Run them one after the other in the cluster. The log is `e2e.log` in `folder`."""
    run_ginkgo(
        upstream,
        folder,
        f"--ginkgo.json-report={folder / OUTCOMES}",
        f"--ginkgo.timeout={TIMEOUT}",
        *(f"--ginkgo.focus= {re.escape(test.full_name)}$" for test in tests),
        f"--kubeconfig={control_plane.kubeconfig_path}",
        "--provider=skeleton",
        "--dump-logs-on-failure=false",
        "--disable-log-dump",
    )
    outcomes = outcomes_in(folder, tests)
    assert outcomes is not None, f"upstream's tests did not all run; see {folder / 'e2e.log'}"
    return outcomes


def outcomes_in(folder: Path, tests: Sequence[UpstreamTest]) -> dict[UpstreamTest, Outcome] | None:
    """The outcomes of these tests that a run left in the folder; None if it did not run all of them."""
    report = folder / OUTCOMES
    if not report.exists():
        return None
    outcomes = {test: outcome for test, outcome in read_report(report) if outcome.was_run}
    return {test: outcomes[test] for test in tests} if outcomes.keys() >= set(tests) else None


def run_ginkgo(upstream: Path, folder: Path, *flags: str) -> None:
    """Its exit code says only that some test failed, which the report says better."""
    with (folder / "e2e.log").open("a") as log:
        subprocess.run(
            [upstream, "e2e", "--ginkgo.no-color", *flags], cwd=folder, stdout=log, stderr=log, check=False
        )


def read_report(report: Path) -> Iterator[tuple[UpstreamTest, Outcome]]:
    """The tests of one of Ginkgo's JSON reports. Raises `AssertionError` with the failure of the suite's own set-up."""
    for suite in json.loads(report.read_text()):
        for spec in suite["SpecReports"] or ():
            why = (spec.get("Failure") or {}).get("Message", "").strip()
            if spec["LeafNodeType"] == "It":
                texts = [*(spec["ContainerHierarchyTexts"] or ()), spec["LeafNodeText"]]
                labels = frozenset(
                    label
                    for level in [*(spec["ContainerHierarchyLabels"] or ()), spec["LeafNodeLabels"]]
                    for label in level or ()
                )
                outcome = Outcome(spec["State"], why.partition("\n")[0], spec["RunTime"] / 1e9)
                yield UpstreamTest(tuple(texts), labels), outcome
            else:
                assert not why, f"upstream's {spec['LeafNodeType']}: {why}"
