"""What a change of a policy would do to a cluster: `policysched diff`.

    OLD, NEW ──► policy_changes: the statements that differ
            └──► from_files.simulate, once with each ──► outcomes: the pods that differ
                     └──► causes: simulated again with some of the changes ──► the changes that each pod follows from
                              └──► comparison: the record, with measures of the cluster before and after

Nothing is estimated: every number is from a simulation by the real scheduler.
"""
