"""A Kubernetes scheduler whose filters and scores are policies in a small typed language."""

__version__ = "0.1.0"
