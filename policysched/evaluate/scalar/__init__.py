"""Expressions compiled to Python functions of one pod and, where needed, one node."""
