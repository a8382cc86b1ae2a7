"""`policysched run`: the scheduler composed from its parts, leadership, and telemetry."""
