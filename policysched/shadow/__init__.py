"""`policysched shadow`: decides beside another scheduler, and compares. It writes nothing.

reflectors ─► inbox, one second behind ─► Observer ─► state of the cluster (a Scheduler that never decides)
                                            └─► before a bind of the other is applied: the policy's own choice ─► Comparison
"""
