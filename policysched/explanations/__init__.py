"""Explanations for people: why a pod is placed where it is, or nowhere, and what would make it fit.

Above the scheduler, which does not need them. Reads the cluster and never changes it.
"""
