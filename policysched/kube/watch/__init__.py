"""Reflectors: list and watch resources, and turn each change into an event."""
