"""A Kubernetes scheduler whose rules are a policy that people can read."""

__version__ = "0.1.0"
