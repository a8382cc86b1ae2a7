"""The scheduler driven without an API server, from files: for `explain`, `simulate` and policy tests."""
