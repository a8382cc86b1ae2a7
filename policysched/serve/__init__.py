"""What we answer over HTTP: health, metrics, what runs and what was decided.

Answered by a thread of its own, so that neither a long decision nor a slow reader is felt on the other side.
"""
