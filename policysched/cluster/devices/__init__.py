"""Dynamic resource allocation: slices, claims and classes as observed, the search for devices, and
reservations for pods."""
