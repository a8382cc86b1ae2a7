"""Gangs: `gang_attempt` places all members on one state of the cluster, `gang_domains` finds topology domains for
them, and `gang_preemption` searches with victims (one search: `evicting_search`). Membership is in `scheduler.queue.gang_registry`.
"""
