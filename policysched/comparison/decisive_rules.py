"""The rule that decides about a pod that changed: the one that rejects its earlier node, or whose scores put another ahead.

The new policy is asked on the cluster as it was when it decided about the pod, and so is the old one: where the old policy
makes the same decision there, the pod follows earlier decisions.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from policysched.cluster.samples import Samples
from policysched.comparison.outcomes import PodChange
from policysched.evaluate import Overlay, Plan
from policysched.evaluate import compile as compile_plan
from policysched.lang.ir.program import Program
from policysched.lang.ir.rules import place_of
from policysched.lang.ir.verdict import PlacementExplanation
from policysched.model.identifiers import PodUid
from policysched.scheduler import commands as c
from policysched.scheduler.core import EvaluationInputs, SchedulerCore
from policysched.scheduler.scheduler import Scheduler

DecisionKind = Literal["rejection", "score", "earlier decisions", "other"]


@dataclass(frozen=True, slots=True)
class DecisiveRule:
    """`rule` and `place` are empty where no single rule decides. `policy`: whose rule it is."""

    pod: str
    kind: DecisionKind
    rule: str
    policy: Literal["old", "new"]
    place: str
    text: str

    def record(self) -> dict[str, Any]:
        return {
            "pod": self.pod,
            "decided_by": self.kind,
            "rule": self.rule or None,
            "policy": self.policy if self.rule else None,
            "place": self.place or None,
            "text": self.text,
        }


class DecisiveRules:
    """Observes a simulation of the new policy, and explains the pods with these changes."""

    def __init__(
        self, old: Program, new: Program, wanted: Collection[PodChange], *, old_samples: Samples, now_ns: int
    ) -> None:
        """`old` and `new` are as their authors wrote them; their rules have the places."""
        self._old_samples, self._now_ns = old_samples, now_ns
        self.by_pod: dict[str, DecisiveRule] = {}
        self._wanted = {change.pod: change for change in wanted}
        self._old_plan = compile_plan(replace(old, extenders=()))
        self._old_places, self._new_places = _places(old), _places(new)

    def observe(self, scheduler: Scheduler, command: c.Command) -> None:
        if not isinstance(command, c.Bind | c.ReportPending):
            return
        change = self._wanted.get(f"{command.namespace}/{command.name}")
        if change is None or (change.after.kind == "placed") != isinstance(command, c.Bind):
            return
        if change.pod not in self.by_pod and command.uid in scheduler.core.pods:
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
            rejected = self._rejection(change.pod, now, old_node, "new", self._new_places)
            if rejected is not None or new_node is None:
                return rejected or DecisiveRule(change.pod, "other", "", "new", "", change.after.message)
            return self._lead(change.pod, now, old_node, new_node)
        if new_node is not None:
            then = self._explain_nodes(core, old_plan, uid, overlay)
            rejected = self._rejection(change.pod, then, new_node, "old", self._old_places)
            if rejected is not None:
                return rejected
        return DecisiveRule(change.pod, "other", "", "new", "", change.before.message or change.after.message)

    def _inputs(self, core: SchedulerCore, plan: Plan, uid: PodUid) -> EvaluationInputs:
        inputs = core.evaluation_inputs(core.pods[uid], self._now_ns)
        if plan is self._old_plan:
            inputs["samples"] = {**inputs["samples"], **self._old_samples}
        return inputs

    def _explain_nodes(
        self, core: SchedulerCore, plan: Plan, uid: PodUid, overlay: Overlay | None
    ) -> PlacementExplanation:
        pod = core.pods[uid].pod
        return core.evaluator.explain(plan, pod, **self._inputs(core, plan, uid), overlay=overlay)

    def _rejection(
        self,
        pod: str,
        explanation: PlacementExplanation,
        node: str,
        policy: Literal["old", "new"],
        places: Mapping[str, str],
    ) -> DecisiveRule | None:
        if explanation.pod_rejection is not None:
            rule = explanation.pod_rejected_by or ""
            return DecisiveRule(
                pod, "rejection", rule, policy, places.get(rule, ""), explanation.pod_rejection
            )
        for rejection in explanation.rejections.get(node, ()):
            text = f"rejects {node}: {', '.join(rejection.reasons)}"
            return DecisiveRule(
                pod, "rejection", rejection.rule, policy, places.get(rejection.rule, ""), text
            )
        return None

    def _lead(
        self, pod: str, explanation: PlacementExplanation, old_node: str, new_node: str
    ) -> DecisiveRule:
        if not {old_node, new_node} <= explanation.totals.keys():
            return DecisiveRule(
                pod, "other", "", "new", "", f"{new_node} is chosen by preemption or by a gang"
            )
        leads = {
            rule: by_node[new_node].weighted - by_node[old_node].weighted
            for rule, by_node in explanation.scores.items()
        }
        total = explanation.totals[new_node] - explanation.totals[old_node]
        rule = max(leads, key=lambda name: leads[name], default="")
        if not rule or leads[rule] <= 0:
            return DecisiveRule(pod, "other", "", "new", "", f"{new_node} and {old_node} have equal scores")
        parts = ", ".join(f"{name} {lead:+}" for name, lead in sorted(leads.items()) if lead)
        text = f"puts {new_node} ahead of {old_node} by {total} ({parts})"
        return DecisiveRule(pod, "score", rule, "new", self._new_places.get(rule, ""), text)


def _places(program: Program) -> dict[str, str]:
    rules = program.rules
    return {rule.name: place_of(rule.span) for rule in (*rules.filters, *rules.scores)}
