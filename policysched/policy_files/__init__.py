"""Policy texts from files, folders and ConfigMap manifests, with values for their parameters."""
