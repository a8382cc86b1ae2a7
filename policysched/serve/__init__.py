"""The HTTP server: health, metrics, the active policies, recent decisions, and the extender protocol.

It runs in its own thread, so that long decisions and slow clients do not delay each other.
"""
