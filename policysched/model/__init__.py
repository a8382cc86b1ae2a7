"""Kubernetes objects as typed values, quantities, cluster events and kube-scheduler's messages.

Only what scheduling reads is here. Nothing in this package depends on the language or on a cluster's state.
"""
