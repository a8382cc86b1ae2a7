"""Scalar evaluation: expressions as Python functions of one pod and, where needed, one node."""
