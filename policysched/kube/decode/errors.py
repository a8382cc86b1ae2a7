"""An object from outside that cannot be understood, and where the fault lies."""


class Malformed(Exception):
    """`field` is the path inside the object, such as `spec.containers[0].resources.requests.cpu`."""

    def __init__(self, kind: str, name: str, field: str, why: str) -> None:
        super().__init__(f"{kind} {name}: {field}: {why}")
        self.kind = kind
        self.name = name
        self.field = field
        self.why = why
