"""Volumes, claims and classes as last seen, and which of them are reserved for pods that are not bound yet."""
