"""JSON of Kubernetes objects read into typed values."""
