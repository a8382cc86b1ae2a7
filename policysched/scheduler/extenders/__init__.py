"""Calls to extenders, and answers to kube-scheduler through the extender protocol."""
