"""Quotas: what the pods of a policy use of them, who may use more, and who waits."""
