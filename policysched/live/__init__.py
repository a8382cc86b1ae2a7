"""Asks a running scheduler, with the credentials of the user's kubeconfig. Reads only."""
