"""Extenders: calls to them, and a server that answers kube-scheduler through the extender protocol."""
