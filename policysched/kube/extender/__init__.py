"""kube-scheduler's extender protocol: a client for external extenders, and the wire format of our own server."""
