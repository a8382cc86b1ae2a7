"""Vector evaluation: expressions evaluated for all nodes at once, over columns."""
