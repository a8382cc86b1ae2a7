"""Errors of decoding: a malformed object, and the field at fault."""

import logging

log = logging.getLogger(__name__)


class MalformedObject(Exception):
    """`field` is the path inside the object, such as `spec.containers[0].resources.requests.cpu`."""

    def __init__(self, kind: str, name: str, field: str, reason: str) -> None:
        super().__init__(f"{kind} {name}: {field}: {reason}")
        self.kind = kind
        self.name = name
        self.field = field
        self.reason = reason


def log_malformed(malformed: MalformedObject) -> None:
    log.warning(
        "skipped a malformed object",
        extra={
            "object": f"{malformed.kind} {malformed.name}",
            "field": malformed.field,
            "error": malformed.reason,
        },
    )


class InvalidField(ValueError):
    """Raised inside a decoder. `field` is the path inside the object."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(reason)
        self.field = field


class OverLimit(InvalidField):
    """The field matches its schema but is larger than anybody needs: checking all of it takes longer than decoding it."""
