"""`policysched lint`: diagnostics of policy files, optionally checked against the operator's settings."""
