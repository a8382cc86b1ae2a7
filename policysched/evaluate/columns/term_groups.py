"""`TermGroup`: placed pods with equal affinity terms."""

from policysched.evaluate.columns.row_counts import RowCounts
from policysched.model.affinity import TermSet


class TermGroup:
    """The placed pods that have the terms, counted by `row_counts`. `number`: the index in the table, which changes when
    groups are dropped. `class_count`: the classes of pods that have the terms."""

    __slots__ = ("class_count", "number", "row_counts", "terms", "topology_key", "use")

    def __init__(self, terms: TermSet, number: int) -> None:
        self.terms = terms
        self.number = number
        self.class_count = 0
        self.use = terms.use
        self.topology_key = terms.topology_key
        self.row_counts = RowCounts()

    @property
    def dropped(self) -> bool:
        """Whether no class of placed pods has the terms any more."""
        return not self.class_count
