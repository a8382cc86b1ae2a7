"""Active policies: reload, first samples, metric outages, recovery and policy state."""
