"""The HTTP client of the API server: transport, authentication, verbs, errors, backoff."""
