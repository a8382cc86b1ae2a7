"""Writes to the API server: bind, prebind, evict, events and conditions."""
