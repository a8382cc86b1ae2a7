"""The cluster in memory: API objects as last observed, and what is assumed on top of them.

`ClusterCache` applies one change at a time, returns the cluster events that it causes, and records
which nodes changed. Where the resources of a pod are counted:

    resource                              owner
    requests, host ports, pod count       Ledger -> NodeUsage (one per node)
    namespace share of cpu and memory     Ledger -> NamespaceShares
    reserved for a nominated pod          Nominations
    volumes of a pod that is not bound    volumes.VolumeCache -> VolumeReservations
    devices of claims                     devices.DeviceCache -> DeviceUsage, DeviceReservation

This package does no I/O and reads no clock. `kube.decode` turns JSON into these values and
validates them there.
"""
