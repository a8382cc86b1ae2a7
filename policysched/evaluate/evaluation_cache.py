"""The states of recent evaluations, by what their pods have in common.

A state is shared by all that ask the same: a thousand replicas cost one evaluation and a thousand refreshed rows.
"""

from collections import OrderedDict
from collections.abc import Collection, Hashable
from dataclasses import replace

from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.overlay import Overlay
from policysched.evaluate.columns.snapshot import World
from policysched.evaluate.compile.lower import Variant
from policysched.evaluate.compile.plan import Plan
from policysched.evaluate.compile.specialize import bind, bind_claims
from policysched.evaluate.evaluation import State
from policysched.evaluate.kernel import Around
from policysched.evaluate.scalar.eval_context import Seen, Value
from policysched.evaluate.snapshots import Worlds

StateKey = tuple[Plan, Hashable]
"""What pods have in common that share a state: the plan, and what it reads of them."""

_STATES_BYTES_MAX = 64 * 2**20
_STATES_MIN = 4
_BYTES_A_ROW = 120  # of a state: masks, totals and a few scores


class KeptStates:
    """Least recently used states go first, past 64 MB of them. Of overlays the states of the last one alone are kept."""

    def __init__(self, worlds: Worlds) -> None:
        self._worlds = worlds
        self._states: OrderedDict[StateKey, State] = OrderedDict()
        self._on_overlay: tuple[Overlay, dict[StateKey, State]] | None = None

    def keep_only(self, plans: Collection[Plan]) -> None:
        """Give back the states of other plans."""
        self._on_overlay = None
        for key in [one for one in self._states if one[0] not in plans]:
            del self._states[key]

    def of(self, plan: Plan, variant: Variant, seen: Seen, overlay: Overlay | None) -> tuple[State, World]:
        """The state of all that ask the same, brought up to date. Of their claims pods have each their own: rules about these
        are asked on top of what all others say, for this one answer."""
        shared, world = self.shared(plan, variant, seen, overlay)
        if not seen.pod.claims or not plan.read_set(variant.active).claims:
            return shared, world
        bound, places = bind_claims(shared.bound, self._worlds.around(plan, variant, seen.pod))
        return shared.with_claims(bound, places, world), world

    def shared(
        self, plan: Plan, variant: Variant, seen: Seen, overlay: Overlay | None
    ) -> tuple[State, World]:
        """What pods say that agree on everything but their claims, as if they had none."""
        leaves = variant.machine.leaf_values(seen)
        if overlay is not None and plan.read_set(variant.active).selected_labels:
            overlay.pods.take_moves()  # their terms may ask about yet other labels
        around = self._worlds.around(plan, variant, seen.pod)
        key = self._key(plan, variant, seen, leaves, around)
        base_world = self._worlds.of(plan, variant, seen, None)
        state = self._states.get(key)
        if state is None:
            bare = replace(seen, pod=replace(seen.pod, claims=())) if seen.pod.claims else seen
            bound = bind(variant, bare, leaves, around)
            bound.moment.seen = seen
            state = self._states[key] = State(bound, plan.program.outage, base_world)
            self._forget_old_states()
        else:
            self._states.move_to_end(key)
            state.bound.moment.seen, state.bound.moment.leaves = seen, leaves
            state.catch_up(base_world)
        if overlay is None:
            return state, base_world
        world = self._worlds.of(plan, variant, seen, overlay)
        if self._on_overlay is None or self._on_overlay[0] is not overlay:
            self._on_overlay = (overlay, {})
        laid = self._on_overlay[1].get(key)
        if laid is None:
            laid = self._on_overlay[1][key] = state.copied()
        laid.catch_up(world)
        return laid, world

    def fresh(
        self, plan: Plan, seen: Seen, overlay: Overlay | None, *, among: Array | None
    ) -> tuple[State, World]:
        """One that is not kept. `seen` gets the samples as the overlay has them, for texts that show values."""
        variant = plan.variant(plan.active_layers(seen))
        world = self._worlds.of(plan, variant, seen, overlay)
        if overlay is not None and plan.assume.metrics:
            seen.samples = self._worlds.laid_on(overlay, plan, seen.samples).samples
        bound = bind(
            variant, seen, variant.machine.leaf_values(seen), self._worlds.around(plan, variant, seen.pod)
        )
        return State(bound, plan.program.outage, world, among=among), world

    def _key(self, plan: Plan, variant: Variant, seen: Seen, leaves: list[Value], around: Around) -> StateKey:
        reads = plan.read_set(variant.active)
        clock = tuple(
            [value for leaf, value in zip(variant.machine.leaves, leaves, strict=True) if leaf.in_key]
        )
        timed = variant.clock.vague or bool(variant.clock.compares)
        facts = seen.facts if reads.facts or timed else None
        now_ns = seen.now_ns if variant.clock.in_words else None
        labels = self._worlds.columns.placed.asked_labels(seen.pod) if reads.selected_labels else ()
        share = seen.shares.of(seen.namespace.name) if variant.clock.shares_in_words else None
        counts = tuple([count(seen) for count in variant.clock.counts_in_words])
        # A claim for devices that pods share may be reserved for one of them.
        reserved_for = seen.pod.uid if seen.pod.device_claims else None
        return plan, (
            variant.active,
            reads.key_but_claims(seen),
            reserved_for,
            labels,
            around,
            clock,
            facts,
            now_ns,
            share,
            counts,
        )

    def _forget_old_states(self) -> None:
        most = max(_STATES_MIN, _STATES_BYTES_MAX // (_BYTES_A_ROW * self._worlds.columns.capacity))
        while len(self._states) > most:
            self._states.popitem(last=False)
