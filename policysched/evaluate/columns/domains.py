"""Sums over topology domains, the nodes with the same value of a label.

Domains are codes (`column_kinds.DomainColumn`); code 0 is no domain.
"""

import numpy as np

from policysched.evaluate.columns.column_kinds import DomainColumn
from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.view import View


def domain_codes(view: View, key: str) -> Array:
    """The domain of every row of the columns, in view or not."""
    return view.all_rows().column(DomainColumn(key))


def sum_by_domain(codes: Array, amounts: Array) -> Array:
    """float64 by code; 0 for no domain."""
    sums = np.bincount(codes, weights=amounts)
    sums[:1] = 0
    return sums
