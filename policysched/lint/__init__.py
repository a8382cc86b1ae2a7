"""`policysched lint`: diagnostics of policy files, with the operator's settings at hand."""
