"""Nodes as NumPy columns, refreshed row by row and shared by all policies."""
