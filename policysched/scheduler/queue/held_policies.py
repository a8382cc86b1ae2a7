"""`HeldPolicies`: the policies whose pods are not attempted for now, whatever the reason."""


class HeldPolicies:
    """A policy is held as long as it is in the set of any reason. `names`: all of them, looked up several times for each
    attempt."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.reasons: list[HeldForReason] = []

    def for_reason(self) -> "HeldForReason":
        """A new set of policies that are held."""
        self.reasons.append(HeldForReason(self))
        return self.reasons[-1]


class HeldForReason(set[str]):
    """Changed by `add` and `discard` alone."""

    def __init__(self, held: HeldPolicies) -> None:
        super().__init__()
        self._held = held

    def add(self, policy: str) -> None:
        super().add(policy)
        self._held.names.add(policy)

    def discard(self, policy: object) -> None:
        super().discard(policy)
        if not any(policy in reason for reason in self._held.reasons):
            self._held.names.difference_update((policy,))
