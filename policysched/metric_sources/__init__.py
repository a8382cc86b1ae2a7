"""Where metrics' samples come from: Prometheus, nodes' annotations, the metrics.k8s.io API, files. Each becomes
`SamplesArrived`, in the held unit.

    sources ─► polled ─► prometheus ─► prometheus_server (HTTP), prometheus_answer, joining
       │          ├────► annotations
       │          └────► metrics_api
       └────► file

A source says what it has; it never decides what a missing sample means. That is the policy's business.
"""
