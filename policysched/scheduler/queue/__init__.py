"""The scheduling queue: active, backing off, unschedulable and gated entries."""
