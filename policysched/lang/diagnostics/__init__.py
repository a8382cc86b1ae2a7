"""The catalogue of diagnostics: every code with its severity, prose and examples, and the comments that silence one."""
