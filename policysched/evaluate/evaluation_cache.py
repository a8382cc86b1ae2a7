"""The states of recent evaluations, by what their pods have in common.

A state is shared by all that ask the same: a thousand replicas cost one evaluation and a thousand refreshed rows.
"""

from collections import OrderedDict
from collections.abc import Collection, Hashable
from dataclasses import replace

from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.overlay import Overlay
from policysched.evaluate.columns.snapshot import Snapshot
from policysched.evaluate.compile.lower import Variant
from policysched.evaluate.compile.plan import Plan
from policysched.evaluate.compile.specialize import specialize, specialize_claim_filters
from policysched.evaluate.evaluation import Evaluation
from policysched.evaluate.kernel import ClusterContext
from policysched.evaluate.scalar.eval_context import EvalContext, EvalValue
from policysched.evaluate.snapshots import SnapshotBuilder

EvaluationKey = tuple[Plan, Hashable]
"""What pods have in common that share a state: the plan, and what it reads of them."""

_CACHE_BYTES_MAX = 64 * 2**20
_EVALUATIONS_MIN = 4
_BYTES_PER_ROW = 120  # of a state: masks, totals and a few scores


class EvaluationCache:
    """Least recently used states go first, past 64 MB of them. Of overlays the states of the last one alone are kept."""

    def __init__(self, worlds: SnapshotBuilder) -> None:
        self._snapshots = worlds
        self._evaluations: OrderedDict[EvaluationKey, Evaluation] = OrderedDict()
        self._overlay_evaluations: tuple[Overlay, dict[EvaluationKey, Evaluation]] | None = None

    def retain_only(self, plans: Collection[Plan]) -> None:
        """Give back the states of other plans."""
        self._overlay_evaluations = None
        for key in [one for one in self._evaluations if one[0] not in plans]:
            del self._evaluations[key]

    def get(
        self, plan: Plan, variant: Variant, seen: EvalContext, overlay: Overlay | None
    ) -> tuple[Evaluation, Snapshot]:
        """The state of all that ask the same, brought up to date. Of their claims pods have each their own: rules about these
        are asked on top of what all others say, for this one answer."""
        shared, world = self.get_without_claims(plan, variant, seen, overlay)
        if not seen.pod.claims or not plan.read_set(variant.active).reads_claims:
            return shared, world
        bound, places = specialize_claim_filters(
            shared.rules, self._snapshots.cluster_context(plan, variant, seen.pod)
        )
        return shared.with_claims(bound, places, world), world

    def get_without_claims(
        self, plan: Plan, variant: Variant, seen: EvalContext, overlay: Overlay | None
    ) -> tuple[Evaluation, Snapshot]:
        """What pods say that agree on everything but their claims, as if they had none."""
        leaves = variant.machine.leaf_values(seen)
        if overlay is not None and plan.read_set(variant.active).reads_selected_labels:
            overlay.pods.apply_pending_changes()  # their terms may ask about yet other labels
        around = self._snapshots.cluster_context(plan, variant, seen.pod)
        key = self._key(plan, variant, seen, leaves, around)
        base_world = self._snapshots.build(plan, variant, seen, None)
        state = self._evaluations.get(key)
        if state is None:
            bare = replace(seen, pod=replace(seen.pod, claims=())) if seen.pod.claims else seen
            bound = specialize(variant, bare, leaves, around)
            bound.activation.context = seen
            state = self._evaluations[key] = Evaluation(bound, plan.program.outage, base_world)
            self._evict_old()
        else:
            self._evaluations.move_to_end(key)
            state.rules.activation.context, state.rules.activation.leaves = seen, leaves
            state.catch_up(base_world)
        if overlay is None:
            return state, base_world
        world = self._snapshots.build(plan, variant, seen, overlay)
        if self._overlay_evaluations is None or self._overlay_evaluations[0] is not overlay:
            self._overlay_evaluations = (overlay, {})
        laid = self._overlay_evaluations[1].get(key)
        if laid is None:
            laid = self._overlay_evaluations[1][key] = state.copy()
        laid.catch_up(world)
        return laid, world

    def evaluate_uncached(
        self, plan: Plan, seen: EvalContext, overlay: Overlay | None, *, row_mask: Array | None
    ) -> tuple[Evaluation, Snapshot]:
        """One that is not kept. `seen` gets the samples as the overlay has them, for texts that show values."""
        variant = plan.variant(plan.active_layers(seen))
        world = self._snapshots.build(plan, variant, seen, overlay)
        if overlay is not None and plan.assume.metrics:
            seen.samples = self._snapshots.overlay_load(overlay, plan, seen.samples).samples
        bound = specialize(
            variant,
            seen,
            variant.machine.leaf_values(seen),
            self._snapshots.cluster_context(plan, variant, seen.pod),
        )
        return Evaluation(bound, plan.program.outage, world, row_mask=row_mask), world

    def _key(
        self, plan: Plan, variant: Variant, seen: EvalContext, leaves: list[EvalValue], around: ClusterContext
    ) -> EvaluationKey:
        reads = plan.read_set(variant.active)
        clock = tuple(
            [value for leaf, value in zip(variant.machine.leaves, leaves, strict=True) if leaf.in_cache_key]
        )
        timed = variant.clock_reads.has_other_reads or bool(variant.clock_reads.comparisons)
        facts = seen.queue_facts if reads.reads_queue_facts or timed else None
        now_ns = seen.now_ns if variant.clock_reads.in_messages else None
        labels = (
            self._snapshots.columns.placed_pods.selected_label_values(seen.pod)
            if reads.reads_selected_labels
            else ()
        )
        share = seen.shares.share_of(seen.namespace.name) if variant.clock_reads.shares_in_messages else None
        counts = tuple([count(seen) for count in variant.clock_reads.counts_in_messages])
        # A claim for devices that pods share may be reserved for one of them.
        reserved_for = seen.pod.uid if seen.pod.device_claims else None
        return plan, (
            variant.active,
            reads.key_without_claims(seen),
            reserved_for,
            labels,
            around,
            clock,
            facts,
            now_ns,
            share,
            counts,
        )

    def _evict_old(self) -> None:
        most = max(_EVALUATIONS_MIN, _CACHE_BYTES_MAX // (_BYTES_PER_ROW * self._snapshots.columns.capacity))
        while len(self._evaluations) > most:
            self._evaluations.popitem(last=False)
