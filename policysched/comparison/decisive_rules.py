"""The rule that decides about a pod that changed: the one that rejects its earlier node, or whose scores put another ahead.

Both policies are evaluated on the cluster as it was when the new one decided about the pod: where the old policy
makes the same decision there, the pod follows earlier decisions.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from policysched.cluster.metric_samples import Samples
from policysched.comparison.outcomes import PodChange
from policysched.evaluate import Overlay, Plan
from policysched.evaluate import compile as compile_plan
from policysched.explanations.node_comparison import (
    NodePreference,
    preference,
    rejection_of,
    rule_locations,
)
from policysched.lang.ir.program import Program
from policysched.lang.ir.verdict import PlacementExplanation
from policysched.model.identifiers import PodUid
from policysched.scheduler import commands as c
from policysched.scheduler.core import EvaluationInputs, SchedulerCore
from policysched.scheduler.scheduler import Scheduler

DecisionKind = Literal["rejection", "score", "earlier decisions", "other"]


@dataclass(frozen=True, slots=True)
class DecisiveRule:
    """`rule` and `location` are empty where no single rule decides. `policy`: whose rule it is."""

    pod: str
    kind: DecisionKind
    rule: str
    policy: Literal["old", "new"]
    location: str
    text: str

    def record(self) -> dict[str, Any]:
        return {
            "pod": self.pod,
            "decided_by": self.kind,
            "rule": self.rule or None,
            "policy": self.policy if self.rule else None,
            "location": self.location or None,
            "text": self.text,
        }


class DecisiveRules:
    """Observes a simulation of the new policy, and explains the pods with these changes."""

    def __init__(
        self,
        old: Program,
        new: Program,
        wanted: Collection[PodChange],
        policy_name: str,
        old_present: Callable[[], tuple[Samples, int]],
    ) -> None:
        """`old` and `new` are as their authors wrote them; their rules have the locations. They are evaluated as `policy_name`.
        `old_present`: the samples that `old` reads, and the time."""
        self._policy_name, self._old_present = policy_name, old_present
        self.by_pod: dict[str, DecisiveRule] = {}
        self._wanted = {change.pod: change for change in wanted}
        self._old_plan = compile_plan(replace(old, extenders=()))
        self._old_locations, self._new_locations = rule_locations(old), rule_locations(new)

    @property
    def is_done(self) -> bool:
        """Whether every wanted pod is explained."""
        return len(self.by_pod) == len(self._wanted)

    def observe(self, scheduler: Scheduler, command: c.Command) -> None:
        if not isinstance(command, c.Bind | c.ReportPending):
            return
        change = self._wanted.get(f"{command.namespace}/{command.name}")
        if change is None or (change.after.kind == "placed") != isinstance(command, c.Bind):
            return
        pod = scheduler.core.pods.get(command.uid)
        if change.pod not in self.by_pod and pod is not None and pod.policy == self._policy_name:
            overlay = None
            if isinstance(command, c.Bind):
                overlay = scheduler.core.evaluator.overlay()
                overlay.remove_pod(command.uid)
            self.by_pod[change.pod] = self._explain(scheduler, command.uid, change, overlay)

    def _explain(
        self, scheduler: Scheduler, uid: PodUid, change: PodChange, overlay: Overlay | None
    ) -> DecisiveRule:
        core = scheduler.core
        pod = core.pods[uid]
        old_node, new_node = change.before.node, change.after.node
        old_plan = self._old_plan
        inputs = self._inputs(core, old_plan, uid)
        earlier = core.evaluator.evaluate(old_plan, pod.pod, **inputs, overlay=overlay).selected
        if change.before.kind == "placed" and earlier != old_node:
            would = f"chooses {earlier}" if earlier else "finds no node"
            return DecisiveRule(
                change.pod,
                "earlier decisions",
                "",
                "old",
                "",
                f"by then the cluster differs: the old policy {would} too"
                if earlier == new_node
                else f"by then the cluster differs: the old policy {would} there, not {old_node}",
            )
        if old_node is not None:
            now = self._explain_nodes(core, core.plan(pod.policy), uid, overlay)
            decisive = rejection_of(now, old_node) or (new_node and preference(now, new_node, old_node))
            if decisive:
                return self._decisive(change.pod, decisive, "new", self._new_locations)
        if new_node is not None:
            explanation = self._explain_nodes(core, old_plan, uid, overlay)
            decisive = rejection_of(explanation, new_node)
            if decisive:
                return self._decisive(change.pod, decisive, "old", self._old_locations)
        message = change.after.message or change.before.message or "decided by preemption or with its gang"
        return DecisiveRule(change.pod, "other", "", "new", "", message)

    def _inputs(self, core: SchedulerCore, plan: Plan, uid: PodUid) -> EvaluationInputs:
        old_samples, now_ns = self._old_present()
        inputs = core.evaluation_inputs(core.pods[uid], now_ns)
        if plan is self._old_plan:
            inputs["samples"] = {**inputs["samples"], **old_samples}
        return inputs

    def _explain_nodes(
        self, core: SchedulerCore, plan: Plan, uid: PodUid, overlay: Overlay | None
    ) -> PlacementExplanation:
        pod = core.pods[uid].pod
        return core.evaluator.explain(plan, pod, **self._inputs(core, plan, uid), overlay=overlay)

    @staticmethod
    def _decisive(
        pod: str, decisive: NodePreference, policy: Literal["old", "new"], locations: Mapping[str, str]
    ) -> DecisiveRule:
        kind: DecisionKind = "other" if decisive.kind == "equal" else decisive.kind
        return DecisiveRule(pod, kind, decisive.rule, policy, locations.get(decisive.rule, ""), decisive.text)
