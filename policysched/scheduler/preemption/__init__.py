"""Preemption: candidates, victims, and nodes nominated to pods."""
