"""A simulated cluster: an API server in memory, nodes, a kubelet, controllers, and injected faults.

The server is a state machine (`apiserver`): a request and a time in, a response out. Clients reach it
in memory (`transport`), where `faults` injects faults by seed, or over HTTP on the loopback interface
(`http_server`), where kubectl can use it. `sandbox` combines the latter with nodes, a simulated
kubelet and the controllers of workloads and volumes.

Nothing in this package schedules a pod or contacts a real cluster.
"""
