"""The cluster in memory: typed values that hold only what scheduling reads, and the two classes that change.

`Ledger` knows what each node has left, `ClusterCache` applies one change at a time and remembers which nodes changed. No I/O,
no clock; JSON becomes these values in `kube.decode.core_objects`, and inside nothing is checked twice.
"""
