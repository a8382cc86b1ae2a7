"""Upstream's integration tests of the scheduler: why some judge only kube-scheduler, and the outcomes of the others."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.upstream.e2e import Outcome
from tests.upstream.integration_build import NOT_BUILT, function
from tests.upstream.recorded import NOT_RUN, OTHER_CASES, PASSED, SKIPPED, Row

Json = dict[str, Any]

POLICYSCHED = "policysched"
FAILED = "failed"
STATES = {"PASS": PASSED, "FAIL": FAILED, "SKIP": SKIPPED}
NO_SCHEDULER = "starts no scheduler, but calls kube-scheduler's functions"

PLUGINS = "registers plugins in the scheduler's process"
QUEUE = "reads the queue of the scheduler's process"
BEYOND_MINIMUM = "expects that members beyond a gang's minimum evict pods; here they evict nothing (ADR 36)"
ATTEMPTS = "calls each attempt of kube-scheduler itself"


def _off(gate: str) -> str:
    return f"needs {gate}, off by default"


OBSTACLES: Mapping[str, str] = {
    "TestReScheduling": PLUGINS,
    "TestTaintTolerationGtLtIntegration": _off("TaintTolerationComparisonOperators"),
    "TestDefaultBinder": "calls kube-scheduler's binder itself",
    "TestTaintTolerationFilter/.*_(Gt|Lt)_": _off("TaintTolerationComparisonOperators"),
    "TestPodAffinityMatchLabelKeyEnablement": "asks the API server alone what it makes of a pod",
    "TestNodeDeclaredFeaturesFilter": "invents a feature of nodes in the scheduler's process",
    "TestNominatedNodeNameIsSetBeforePreBindAndWaitOnPermit": PLUGINS,
    "TestPreemptionAndNominatedNodeNameScenarios": ATTEMPTS,
    "TestSchedulerRestartWithNominatedNode": PLUGINS,
    "TestCPGScheduling": _off("CompositePodGroup"),
    "TestPodGroupDependentRequiredValidation": _off("CompositePodGroup"),
    "TestCPGQueueing": _off("CompositePodGroup"),
    "TestPodGroupScheduling/gang_waits_for_quorum": QUEUE,
    "TestPodGroupScheduling/gang_pods_are_unschedulable_due_to_lack_of_quorum": QUEUE,
    "TestPodGroupScheduling/gang_schedules_with_workload-aware_preemption": BEYOND_MINIMUM,
    "TestPodGroupScheduling/tas_gang_with_constraint": _off("TopologyAwareWorkloadScheduling"),
    "TestWorkloadAwarePreemptionInvocation": "compares the words of kube-scheduler's event",
    "TestPostFilterNotCalled": PLUGINS,
    "TestPodGroupPostFilterIteration": PLUGINS,
    "TestCPGTopologyAwareScheduling": _off("CompositePodGroup"),
    "TestCPGTopologyAwareSchedulingWorkloadAwarePreemption": _off("CompositePodGroup"),
    "TestTopologyAwareSchedulingWithGangPolicy": _off("TopologyAwareWorkloadScheduling"),
    "TestTopologyAwareSchedulingWithBasicPolicy": _off("TopologyAwareWorkloadScheduling"),
    "TestDeferredResizePodPreemption": _off("InPlacePodVerticalScalingSchedulerPreemption"),
    "TestDeferredResizeQueueingHints": _off("InPlacePodVerticalScalingSchedulerPreemption"),
    "TestDeferredResizeNodePreemptionPolicy": _off("InPlacePodVerticalScalingSchedulerPreemption"),
    "TestDeferredResizeQueueingHandlers": _off("InPlacePodVerticalScalingSchedulerPreemption"),
    "TestPreemption/basic_pod_preemption_with": PLUGINS,
    "TestPreemption/.*CPG": _off("CompositePodGroup"),
    "TestAsyncPreemption": ATTEMPTS,
    "TestPreemptionRespectsWaitingPod": PLUGINS,
    "TestPreemptionRespectsBindingPod": PLUGINS,
    "TestInterPodAffinityPreemption": ATTEMPTS,
    "TestNominatedNode/.*failed_on_PreBind": PLUGINS,
    "TestPreferNominatedNode": "changes the pods that kube-scheduler takes from its queue",
    "TestPodGroupPreemption": PLUGINS,
    "TestPodGroupPreemption_NominatedNodeNameRespected": PLUGINS,
    "TestPodGroupPreemptionStatus": "compares the words of kube-scheduler's condition",
    "TestCompositePodGroupPreemption": _off("CompositePodGroup"),
    "TestPodGroupCycleStatePreserved": PLUGINS,
    "TestTaintTolerationScoring/.*_Gt_": _off("TaintTolerationComparisonOperators"),
}
"""Why a test judges only kube-scheduler, or what differs by intent, by its name, or by its name and a pattern of some of its cases."""


OTHER_GATES = (
    r".*(Async_preemption|Async_API_calls|NNN_for_expectation|ClearingNominatedNodeNameAfterBinding)\w*:_false",
    r".*(TopologyAwareWorkloadScheduling|TaintToleration_Comparison_Operators)_enabled:_true",
)
"""Patterns of cases that differ from another one in a feature gate that is not at its default."""

OTHER_GATES_OF_CASES = ("(InterPodAffinityHostnameFastPath|fastPathEnabled)=true",)
"""The same, of cases within a case."""


def _score(name: str, *, prepared: bool = True) -> Json:
    """The plugins of a test of one score."""
    none = {"disabled": [{"name": "*"}]}
    prepare = {"enabled": [{"name": name}]} if prepared else {}
    return {"preScore": none | prepare, "score": none | {"enabled": [{"name": name, "weight": 1}]}}


def _resources(strategy: str) -> Json:
    """The arguments of a test of the score of resources."""
    resources = [{"name": name, "weight": 1} for name in ("cpu", "memory")]
    resources.append({"name": "example.com/gpu", "weight": 2})
    scoring = {"scoringStrategy": {"type": strategy, "resources": resources}}
    return {"pluginConfig": [{"name": "NodeResourcesFit", "args": scoring}]}


PROFILES_OF: Mapping[str, Mapping[str, Json]] = {
    "TestNodeResourcesScoring": {
        "with_least_allocated": _resources("LeastAllocated"),
        "with_most_allocated": _resources("MostAllocated"),
    }
}
"""The profile that a test configures in kube-scheduler for each pattern of its cases; policysched gets it as it gets those of
`PLUGINS_OF`."""

PLUGINS_OF: Mapping[str, Json] = {
    "TestDisablePreemption": {"postFilter": {"disabled": [{"name": "DefaultPreemption"}]}},
    "TestNodeAffinityScoring": _score("NodeAffinity"),
    "TestPodAffinityScoring": _score("InterPodAffinity"),
    "TestTaintTolerationScoring": _score("TaintToleration"),
    "TestImageLocalityScoring": _score("ImageLocality", prepared=False),
    "TestPodTopologySpreadScoring": _score("PodTopologySpread"),
    "TestDefaultPodTopologySpreadScoring": _score("PodTopologySpread"),
}
"""What a test configures in kube-scheduler; policysched gets it by `policysched import-config`."""

RUN = "=== RUN"
SCHEDULER = "=== SCHEDULER"
OUTCOME = re.compile(r"\s*--- (PASS|FAIL|SKIP): (\S+) \(([\d.]+)s\)")
SAID = re.compile(r"\s+\S+\.go:\d+: (?![IWE]\d{4} )(.+)")


@dataclass(frozen=True, slots=True)
class IntegrationTest:
    """A function of a package. `cases`: a pattern of those that are run, all if it is empty."""

    package: str
    name: str
    cases: str = ""

    @property
    def full_name(self) -> str:
        return f"{self.package}.{self.name}"

    @property
    def function(self) -> str:
        """Its name in the binary."""
        return function(self.package, self.name)

    @property
    def run(self) -> str:
        """The pattern of what is run, in the form of `go test -run`."""
        return f"^{self.function}$" + (f"/{self.cases}" if self.cases else "")

    @property
    def obstacle(self) -> str | None:
        return OBSTACLES.get(self.name)

    @property
    def left_out(self) -> dict[str, str]:
        """Patterns of cases that judge only kube-scheduler, with the reasons."""
        parts = ((name.partition("/"), why) for name, why in OBSTACLES.items())
        return {case: why for (name, _, case), why in parts if name == self.name and case}

    @property
    def skip(self) -> str:
        """The pattern of the cases that are not run, in the form of `go test -skip`."""
        patterns = [f"^({'|'.join((*self.left_out, *OTHER_GATES))})"]
        patterns += [f".*/{pattern}" for pattern in OTHER_GATES_OF_CASES]
        return "|".join(f"^{self.function}$/{pattern}" for pattern in patterns)


def cases_in(log: str, test: IntegrationTest) -> dict[str, Outcome]:
    """The outcomes of the smallest cases in a log. A case that no scheduler was started for is skipped; a test whose process
    ended before its outcome has failed."""
    running = ""
    started, said = set[str](), dict[str, str]()
    outcomes = dict[str, Outcome]()
    for line in log.splitlines():
        if line.startswith(RUN):
            running = line.removeprefix(RUN).strip()
        elif line.startswith(SCHEDULER):
            started.add(running)
        elif match := OUTCOME.match(line):
            state, name, seconds = match.groups()
            outcomes[name] = Outcome(STATES[state], said.get(name, ""), float(seconds))
        elif match := SAID.match(line):
            said[running] = match[1]
    if test.function not in outcomes:
        outcomes[test.function] = Outcome(FAILED, said.get(running, "its process ended"), 0.0)
    inner = {parent for name in outcomes for parent in _ancestors(name)}
    return {
        test.name + name.removeprefix(test.function): outcome
        if started & {name, *_ancestors(name)} or outcome.state == FAILED
        else Outcome(SKIPPED, NO_SCHEDULER, outcome.seconds)
        for name, outcome in outcomes.items()
        if name not in inner
    }


def _ancestors(name: str) -> Iterator[str]:
    while "/" in name:
        name = name.rpartition("/")[0]
        yield name


def rows(
    tests: Sequence[IntegrationTest], outcomes: Mapping[str, Mapping[IntegrationTest, Mapping[str, Outcome]]]
) -> Iterator[Row]:
    """One for each case that ran, for each test that judges only kube-scheduler or was not run, and for each package that is
    not built."""
    for test in tests:
        if test.obstacle is not None:
            yield Row(test.package, test.name, {}, test.obstacle)
            continue
        ran = {scheduler: of.get(test, {}) for scheduler, of in outcomes.items()}
        if not any(ran.values()):
            yield Row(test.package, test.name, {}, NOT_RUN)
        for case in dict.fromkeys(case for cases in ran.values() for case in cases):
            states = {scheduler: cases[case].state for scheduler, cases in ran.items() if case in cases}
            why = next(
                (cases[case].why for cases in ran.values() if case in cases and cases[case].state != PASSED),
                "",
            )
            yield Row(test.package, case, states, why)
        if test.cases and test.cases not in PROFILES_OF.get(test.name, {}):
            yield Row(test.package, test.name + OTHER_CASES, {}, NOT_RUN)
        yield from (Row(test.package, f"{test.name}/{case}", {}, why) for case, why in test.left_out.items())
    for package, why in NOT_BUILT.items():
        yield Row(package, "all", {}, why)
