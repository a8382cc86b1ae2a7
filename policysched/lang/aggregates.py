"""What plan and oracle agree on about sums over many nodes.

A sum of floats depends on their order, and what was added to it cannot be taken out again exactly. So the values of one
aggregate (before and after placing) are rounded to a grid first: whole multiples of a power of two, fine enough that the largest of
them has `GRID_BITS` bits, or `SQUARED_BITS` for a standard deviation, where squares are summed. Then all is exact until
one last rounding.
"""

GRID_BITS = 45
"""For sums and means: one part in 35,000,000,000,000 of the largest value."""

SQUARED_BITS = 30
"""For standard deviations: one part in 1,000,000,000 of the largest value."""

TERMS_MAX = 2**16
"""So many candidates at most: more would not fit in 64 bits."""
