"""`policysched extender`: answers kube-scheduler through the extender protocol."""
