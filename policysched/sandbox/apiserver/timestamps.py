"""Timestamps of the API."""

from datetime import UTC, datetime


def timestamp(now_s: float) -> str:
    """`metav1.Time`: whole seconds, UTC. `now_s` is seconds since 1970."""
    return datetime.fromtimestamp(int(now_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_timestamp_s(text: str) -> float:
    """Parse a `metav1.Time` or `MicroTime`. Raises ValueError."""
    return datetime.fromisoformat(text).timestamp()


def age_text(created: str | None, now_s: float) -> str:
    """An age as in kubectl's tables: `12s`, `5m`, `3h`, `2d`; `<unknown>` without a time."""
    if not created:
        return "<unknown>"
    return duration_text(now_s - parse_timestamp_s(created))


def duration_text(span_s: float) -> str:
    """A duration in kubectl's short format."""
    seconds = max(0, int(span_s))
    if seconds < 120:
        return f"{seconds}s"
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if minutes < 10:
        return f"{minutes}m{seconds % 60}s" if seconds % 60 else f"{minutes}m"
    if hours < 3:
        return f"{minutes}m"
    if hours < 8:
        return f"{hours}h{minutes % 60}m" if minutes % 60 else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return f"{days}d{hours % 24}h" if hours % 24 else f"{days}d"
    return f"{days}d"
