"""Metric sources: Prometheus, node annotations, the metrics.k8s.io API, files. Each delivers `SamplesArrived` events in
the base unit of the metric's type.

    registry ─► prometheus_transport ─► prometheus ─► prometheus_response, series_join, pod_pairs
       │                                    │
       ├──────► annotations, metrics_api ───┴─► polling
       └──────► file

    router: sends each metric to its source

A source reports the samples that it has. What a missing sample means is decided by the policy.
"""
