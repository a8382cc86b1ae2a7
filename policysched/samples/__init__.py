"""Where metrics' samples come from: files here, Prometheus later. Each becomes `SamplesArrived`, in the held unit.

A source says what it has; it never decides what a missing sample means. That is the policy's business.
"""
