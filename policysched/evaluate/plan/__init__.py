"""From a checked `Program` to a `Plan`: lowering, read sets, queue order, gang terms, preemption clauses."""
