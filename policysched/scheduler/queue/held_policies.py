"""`HeldPolicies`: the policies whose pods are not attempted for now, whatever the reason."""

from collections.abc import Collection, Iterator


class HeldPolicies(Collection[str]):
    """The union of sets, each kept by the part that holds policies."""

    def __init__(self, *sets: Collection[str]) -> None:
        self._sets = sets

    def __contains__(self, policy: object) -> bool:
        return any(policy in held for held in self._sets)

    def __iter__(self) -> Iterator[str]:
        return iter(set().union(*self._sets))

    def __len__(self) -> int:
        return len(set().union(*self._sets))
