"""PersistentVolumes, claims and classes as observed, and reservations for pods that are not bound
yet."""
