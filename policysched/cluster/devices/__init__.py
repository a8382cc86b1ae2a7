"""Devices (dynamic resource allocation) as last seen: slices, claims, allocation, and reservations for pods."""
