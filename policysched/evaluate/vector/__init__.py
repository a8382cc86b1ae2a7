"""Expressions evaluated for all nodes at once, over columns."""
