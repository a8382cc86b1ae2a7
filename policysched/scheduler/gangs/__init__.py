"""Gangs: membership, placement of all members on one state of the cluster, and attempts."""
