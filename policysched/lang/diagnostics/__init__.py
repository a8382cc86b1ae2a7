"""The catalogue of diagnostics, with documentation for every code, and ignore comments."""
