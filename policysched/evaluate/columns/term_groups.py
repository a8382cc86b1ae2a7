"""`TermGroup`: placed pods with equal affinity terms."""

from policysched.evaluate.columns.row_counts import RowCounts
from policysched.model.affinity import TermSet


class TermGroup:
    """The placed pods that have the terms, counted by `row_counts`. `number`: the index in the table, which changes when
    groups are dropped. `dropped`: no placed pod has the terms any more."""

    __slots__ = ("dropped", "number", "row_counts", "terms", "topology_key", "use")

    def __init__(self, terms: TermSet, number: int) -> None:
        self.terms = terms
        self.number = number
        self.dropped = False
        self.use = terms.use
        self.topology_key = terms.topology_key
        self.row_counts = RowCounts()
