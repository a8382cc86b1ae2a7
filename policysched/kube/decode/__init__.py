"""Decodes the JSON of Kubernetes objects into typed values; a malformed field becomes `MalformedObject`."""
