"""Cache of recent evaluations, by what their pods have in common.

Equal pods share an evaluation: a thousand replicas cost one evaluation and a thousand refreshed
rows.
"""

import pickle
from collections import Counter, OrderedDict
from collections.abc import Collection, Hashable, Iterator
from dataclasses import dataclass, replace

import orjson

from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.overlay import Overlay
from policysched.evaluate.columns.snapshot import Snapshot
from policysched.evaluate.decision_cost import row_items
from policysched.evaluate.evaluation import Evaluation
from policysched.evaluate.kernel import ClusterContext
from policysched.evaluate.plan.lowering import Variant
from policysched.evaluate.plan.plan import Plan
from policysched.evaluate.plan.specialize import (
    SpecializedRules,
    specialize,
    specialize_claim_rules,
)
from policysched.evaluate.scalar.eval_context import EvalContext, EvalValue
from policysched.evaluate.snapshots import SnapshotBuilder
from policysched.model.pods import Pod

EvaluationKey = tuple[Plan, Hashable]
"""The plan, and everything that it reads of the pod."""

_CACHE_BYTES_MAX = 64 * 2**20
_OVERLAY_VARIANT_BYTES_MAX = 16 * 2**20
_EVALUATIONS_MIN = 4
_OUTDATED_AT_ONCE = 128
_OUTDATED_BY_NEW = 4
_BYTES_PER_EVALUATION = 12 * 1024  # whatever the number of nodes: specialized rules, and the pod
_BYTES_PER_ROW = 120  # of an evaluation: masks, totals and a few scores
_BYTES_PER_SCORE = 16  # more for each score beyond a few
_SCORES_INCLUDED = 8
_BYTES_PER_ITEM = 20  # more for each term or constraint of the pod (`row_items`) beyond a few
_ITEMS_INCLUDED = 8
_BYTES_PER_JSON = 8
"""About how many bytes of memory a pod takes for each byte of its JSON."""
_JSON_INCLUDED = 2048
_ROWS_TO_LEAVE_MAX = 16


class OverlayEvaluation(Evaluation):
    """An evaluation of an overlay, which can move on to another overlay of the same cluster."""

    _facts_when_copied: Hashable

    @classmethod
    def copy_of(cls, evaluation: Evaluation) -> "OverlayEvaluation":
        copy = object.__new__(cls)
        copy.__dict__.update(evaluation.copy().__dict__)
        copy._facts_when_copied = copy._cluster_facts
        return copy

    def leave(self, overlay: Overlay) -> bool:
        """Forget the pods of this overlay. Returns false if a copy of the cluster's evaluation takes less, if rules read metrics, or
        if the overlay changed a fact about the whole cluster: fingerprints of two overlays are not comparable."""
        rows = frozenset(overlay.log[: self._overlay_position])
        if len(rows) > _ROWS_TO_LEAVE_MAX or self._metrics or self._cluster_facts != self._facts_when_copied:
            return False
        self._rows_left, self._overlay_position = self._rows_left | rows, 0
        return True

    @property
    def _cluster_facts(self) -> Hashable:
        scores = [self._fingerprints[index] for index in self._by_dependency.cluster_scores]
        return tuple(scores), tuple(self._filter_fingerprints.items())


OverlayEvaluations = tuple[Overlay, dict[EvaluationKey, OverlayEvaluation]]


class EvaluationCache:
    """Least recently used evaluations are evicted beyond 64 MB. For overlays only the evaluations
    of the last two overlays are kept.
    """

    def __init__(self, snapshots: SnapshotBuilder) -> None:
        self._snapshots = snapshots
        self._evaluations: OrderedDict[EvaluationKey, Evaluation] = OrderedDict()
        self._sizes: dict[EvaluationKey, _Size] = {}
        self._row_bytes_total = 0
        self._variants = Counter[Variant]()
        """The number of evaluations that keep each variant, which the plan may have dropped."""
        self._outdated: list[EvaluationKey] = []
        self._variant_bytes_total = 0
        self._pod_bytes_total = 0
        self._last_read: tuple[EvaluationKey, Evaluation] | None = None  # whose last pod is not counted yet
        self._overlay_evaluations: OverlayEvaluations | None = None
        self._overlay_left: OverlayEvaluations | None = None
        """The evaluations of the previous overlay, as long as this one is the last."""

    def retain_only(self, plans: Collection[Plan]) -> None:
        """Drop the evaluations of other plans: `_OUTDATED_AT_ONCE` now, and `_OUTDATED_BY_NEW` with each new evaluation."""
        self._overlay_evaluations = self._overlay_left = self._last_read = None
        self._outdated = [key for key in self._evaluations if key[0] not in plans]
        self._drop_outdated(_OUTDATED_AT_ONCE)

    def _drop_outdated(self, count: int) -> None:
        dropped, self._outdated[-count:] = self._outdated[-count:], []
        for key in dropped:
            if key in self._evaluations:  # not evicted meanwhile
                self._drop(key)

    def forget(self, plan: Plan) -> None:
        """Drop the evaluations of a plan, one of which may be half updated."""
        self._overlay_evaluations = self._overlay_left = self._last_read = None
        for key in [key for key in self._evaluations if key[0] is plan]:
            self._drop(key)

    def get(
        self,
        plan: Plan,
        variant: Variant,
        context: EvalContext,
        overlay: Overlay | None,
        beside: Overlay | None = None,
    ) -> tuple[Evaluation, Snapshot]:
        """The up-to-date evaluation for the pod. Claims differ by pod: rules about them are evaluated on top of the shared
        evaluation, for this answer only. `beside`: another overlay, with pods whose terms may select by further labels."""
        shared, snapshot = self.get_without_claims(plan, variant, context, overlay, beside)
        if not context.pod.claims or not plan.read_set(variant.active).reads_claims:
            return shared, snapshot
        rules, positions = specialize_claim_rules(
            shared.rules, self._snapshots.cluster_context(plan, variant, context.pod)
        )
        return shared.with_claims(rules, positions, snapshot), snapshot

    def get_without_claims(
        self,
        plan: Plan,
        variant: Variant,
        context: EvalContext,
        overlay: Overlay | None,
        beside: Overlay | None = None,
    ) -> tuple[Evaluation, Snapshot]:
        """The evaluation shared by pods that differ in their claims alone, as if they had none."""
        leaves = variant.machine.leaf_values(context)
        if plan.read_set(variant.active).reads_selected_labels:
            for added in filter(None, (overlay, beside)):
                added.pods.apply_pending_changes()  # the terms of its pods may select by further labels
        cluster_context = self._snapshots.cluster_context(plan, variant, context.pod)
        key = self._key(plan, variant, context, leaves, cluster_context)
        if overlay is None:
            return self._get_of_cluster(key, plan, variant, context, leaves, cluster_context)
        if self._overlay_evaluations is None or self._overlay_evaluations[0] is not overlay:
            self._overlay_left = self._overlay_evaluations
            self._overlay_evaluations = (overlay, {})
        evaluation = self._overlay_evaluations[1].get(key) or self._from_overlay_left(key)
        if evaluation is None:
            base, _ = self._get_of_cluster(key, plan, variant, context, leaves, cluster_context)
            evaluation = OverlayEvaluation.copy_of(base)
            self._make_room(self._overlay_evaluations[1])
        else:  # as for equal members of a gang: the evaluation of the cluster is not needed
            evaluation.rules.activation.context, evaluation.rules.activation.leaves = context, leaves
        self._overlay_evaluations[1][key] = evaluation
        snapshot = self._snapshots.build(plan, variant, context, overlay)
        evaluation.catch_up(snapshot)
        return evaluation, snapshot

    def _make_room(self, evaluations: dict[EvaluationKey, OverlayEvaluation]) -> None:
        """Drop them if they take too much: members of a gang may have hundreds of sets of layers. They are copied again on use."""
        variants = {evaluation.rules.variant for evaluation in evaluations.values()}
        if sum(variant.size_bytes for variant in variants) > _OVERLAY_VARIANT_BYTES_MAX:
            evaluations.clear()

    def _from_overlay_left(self, key: EvaluationKey) -> OverlayEvaluation | None:
        """The evaluation of the previous overlay, so that equal small gangs need no copy each."""
        if self._overlay_left is None:
            return None
        overlay, evaluations = self._overlay_left
        evaluation = evaluations.pop(key, None)
        return evaluation if evaluation is not None and evaluation.leave(overlay) else None

    def _get_of_cluster(
        self,
        key: EvaluationKey,
        plan: Plan,
        variant: Variant,
        context: EvalContext,
        leaves: list[EvalValue],
        cluster_context: ClusterContext,
    ) -> tuple[Evaluation, Snapshot]:
        snapshot = self._snapshots.build(plan, variant, context, None)
        evaluation = self._evaluations.get(key)
        if evaluation is None:
            rules = self._specialize(variant, context, leaves, cluster_context)
            evaluation = Evaluation(rules, plan.program.outage, snapshot)
            self._keep(key, evaluation, context.pod)
        else:
            self._evaluations.move_to_end(key)
            evaluation.rules.activation.context, evaluation.rules.activation.leaves = context, leaves
            evaluation.catch_up(snapshot)
        self._read(key, evaluation)
        return evaluation, snapshot

    def _specialize(
        self,
        variant: Variant,
        context: EvalContext,
        leaves: list[EvalValue],
        cluster_context: ClusterContext,
    ) -> SpecializedRules:
        bare = replace(context, pod=replace(context.pod, claims=())) if context.pod.claims else context
        rules = specialize(variant, bare, leaves, cluster_context)
        rules.activation.context = context
        return rules

    def warm_up(self, plan: Plan, variant: Variant, context: EvalContext) -> Iterator[None]:
        """Build the evaluation of the pod in steps, so that `get` finds it. The cluster does not change meanwhile."""
        leaves = variant.machine.leaf_values(context)
        cluster_context = self._snapshots.cluster_context(plan, variant, context.pod)
        key = self._key(plan, variant, context, leaves, cluster_context)
        if key not in self._evaluations:
            snapshot = self._snapshots.build(plan, variant, context, None)
            rules = self._specialize(variant, context, leaves, cluster_context)
            yield
            evaluation = yield from Evaluation.build_in_steps(rules, plan.program.outage, snapshot)
            self._keep(key, evaluation, context.pod)
            self._read(key, evaluation)
            yield

    def evaluate_uncached(
        self, plan: Plan, context: EvalContext, overlay: Overlay | None, *, row_mask: Array | None
    ) -> tuple[Evaluation, Snapshot]:
        """An evaluation that is not cached. `context` gets the samples of the overlay, for messages
        that show values.
        """
        rules, snapshot = self.rules_and_snapshot(plan, context, overlay)
        return Evaluation(rules, plan.program.outage, snapshot, row_mask=row_mask), snapshot

    def rules_and_snapshot(
        self, plan: Plan, context: EvalContext, overlay: Overlay | None
    ) -> tuple[SpecializedRules, Snapshot]:
        """What `Evaluation` is made of. `context` as in `evaluate_uncached`."""
        variant = plan.variant(plan.active_layers(context))
        snapshot = self._snapshots.build(plan, variant, context, overlay)
        if overlay is not None and plan.assume.metrics:
            context.samples = self._snapshots.overlay_load(overlay, plan, context.samples).samples
        rules = specialize(
            variant,
            context,
            variant.machine.leaf_values(context),
            self._snapshots.cluster_context(plan, variant, context.pod),
        )
        return rules, snapshot

    def _key(
        self,
        plan: Plan,
        variant: Variant,
        context: EvalContext,
        leaves: list[EvalValue],
        cluster_context: ClusterContext,
    ) -> EvaluationKey:
        reads = plan.read_set(variant.active)
        clock = tuple(
            [value for leaf, value in zip(variant.machine.leaves, leaves, strict=True) if leaf.in_cache_key]
        )
        timed = variant.clock_reads.has_other_reads or bool(variant.clock_reads.comparisons)
        facts = context.queue_facts if reads.reads_queue_facts or timed else None
        now_ns = context.now_ns if variant.clock_reads.in_messages else None
        labels = (
            self._snapshots.columns.placed_pods.selected_label_values(context.pod)
            if reads.reads_selected_labels
            else ()
        )
        share = (
            context.shares.state_of(context.namespace.name)
            if variant.clock_reads.shares_in_messages
            else None
        )
        counts = tuple([count(context) for count in variant.clock_reads.counts_in_messages])
        # A shared claim for devices may be reserved for one of its pods.
        reserved_for = context.pod.uid if context.pod.device_claims else None
        return plan, (
            variant,
            reads.key_without_claims(context),
            reserved_for,
            labels,
            cluster_context,
            clock,
            facts,
            now_ns,
            share,
            counts,
        )

    def _keep(self, key: EvaluationKey, evaluation: Evaluation, pod: Pod) -> None:
        """Add an evaluation and evict old ones. Pods with hundreds of terms must not fill the memory."""
        self._evaluations[key] = evaluation
        row_bytes = (
            _BYTES_PER_ROW
            + _BYTES_PER_SCORE * max(0, len(evaluation.rules.scores) - _SCORES_INCLUDED)
            + _BYTES_PER_ITEM * max(0, row_items(pod) - _ITEMS_INCLUDED)
        )
        self._sizes[key] = size = _Size(row_bytes, pod, _pod_bytes(pod))
        self._row_bytes_total += row_bytes
        self._pod_bytes_total += size.first_pod_bytes
        variant = evaluation.rules.variant
        if variant not in self._variants:
            self._variant_bytes_total += variant.size_bytes
        self._variants[variant] += 1
        self._evict()

    def _read(self, key: EvaluationKey, evaluation: Evaluation) -> None:
        """Count the memory of the last pod that an evaluation was read for. It keeps this pod besides the one it was made for,
        and its key does not have all of it. Counted when another evaluation is read: mostly many equal pods come in a row."""
        before, self._last_read = self._last_read, (key, evaluation)
        if before is None or before[1] is evaluation or self._evaluations.get(before[0]) is not before[1]:
            return
        size, pod = self._sizes[before[0]], before[1].rules.activation.context.pod
        last_pod_bytes = 0 if pod is size.first_pod else _pod_bytes(pod)
        self._pod_bytes_total += last_pod_bytes - size.last_pod_bytes
        size.last_pod_bytes = last_pod_bytes
        self._evict()

    def _evict(self) -> None:
        if self._outdated:
            self._drop_outdated(_OUTDATED_BY_NEW)
        while self._bytes > _CACHE_BYTES_MAX and len(self._evaluations) > _EVALUATIONS_MIN:
            self._drop(next(iter(self._evaluations)))

    @property
    def _bytes(self) -> int:
        row_bytes = self._row_bytes_total * self._snapshots.columns.capacity
        kept_bytes = self._pod_bytes_total + self._variant_bytes_total
        return row_bytes + kept_bytes + _BYTES_PER_EVALUATION * len(self._evaluations)

    def _drop(self, key: EvaluationKey) -> None:
        variant = self._evaluations.pop(key).rules.variant
        self._variants[variant] -= 1
        if not self._variants[variant]:
            del self._variants[variant]
            self._variant_bytes_total -= variant.size_bytes
        size = self._sizes.pop(key)
        self._row_bytes_total -= size.row_bytes
        self._pod_bytes_total -= size.first_pod_bytes + size.last_pod_bytes


@dataclass(slots=True)
class _Size:
    """Of an evaluation: for each row, for the pod that it was made for, and for the last one that it was read for."""

    row_bytes: int
    first_pod: Pod
    first_pod_bytes: int
    last_pod_bytes: int = 0


def _pod_bytes(pod: Pod) -> int:
    """The memory beyond that of a usual pod: only the API server limits the length of an annotation or the number of labels."""
    try:
        size = len(orjson.dumps(pod, default=list, option=orjson.OPT_NON_STR_KEYS))
    except orjson.JSONEncodeError:  # such as amounts beyond 64 bits
        size = len(pickle.dumps(pod))
    return _BYTES_PER_JSON * max(0, size - _JSON_INCLUDED)
