"""The variants of a plan: those used last, and those whose rules are lowered between attempts."""

from collections import OrderedDict
from collections.abc import Generator, Iterator

from policysched.evaluate.plan.lowering import LoweringOptions, Variant, lower_in_steps
from policysched.lang.ir.program import Program

VARIANT_BYTES_MAX = 16 * 2**20
_VARIANTS_MIN = 4
BEGUN_MAX = 16
"""Namespaces for which a set of layers is begun; each can take as much memory as a variant."""
_RULES_PER_SLICE = 4
"""Each takes about a millisecond."""

Layers = tuple[int, ...]
"""Indexes of the layers that apply."""


class KeptVariants:
    """By the layers that apply. The one without layers stays: a plan is in preparation as long as there is none."""

    def __init__(self, program: Program, lowering: LoweringOptions) -> None:
        self._program, self._lowering = program, lowering
        self._variants: OrderedDict[Layers, Variant] = OrderedDict()
        self._bytes = 0
        self._begun: dict[str, tuple[Layers, Generator[None, None, Variant]]] = {}

    def __contains__(self, active: Layers) -> bool:
        return active in self._variants

    def __getitem__(self, active: Layers) -> Variant:
        if active not in self._variants:
            for _ in self.lower_in_steps(active):
                pass
        self._variants.move_to_end(active)
        return self._variants[active]

    def lower_in_steps(self, active: Layers) -> Iterator[None]:
        """In steps of one rule."""
        if active in self._variants:
            self._variants.move_to_end(active)
            return
        self._keep(active, (yield from lower_in_steps(self._program, active, self._lowering)))

    def lower_some(self, active: Layers, namespace: str) -> bool:
        """Lower a few more rules, for a pod of the namespace, and return whether all are. Of a namespace, what it began for other
        layers is dropped. If too many have begun, the one that waits longest is dropped, and this one is left to the caller."""
        layers, lowering = self._begun.pop(namespace, ((), None))
        if active in self._variants:
            return True
        if lowering is None and len(self._begun) >= BEGUN_MAX:
            del self._begun[next(iter(self._begun))]
            return True
        if lowering is None or layers != active:
            lowering = lower_in_steps(self._program, active, self._lowering)
        try:
            for _ in range(_RULES_PER_SLICE):
                next(lowering)
        except StopIteration as lowered:
            self._keep(active, lowered.value)
            return True
        self._begun[namespace] = active, lowering
        return False

    def _keep(self, active: Layers, lowered: Variant) -> None:
        """Drops all but those used last."""
        if active in self._variants:  # another caller lowered it between the steps
            return
        self._variants[active] = lowered
        self._bytes += lowered.size_bytes
        while self._bytes > VARIANT_BYTES_MAX and len(self._variants) > _VARIANTS_MIN:
            oldest = next(layers for layers in self._variants if layers)
            self._bytes -= self._variants.pop(oldest).size_bytes
