"""Copies with some fields changed: equal to those of `dataclasses.replace`."""

from dataclasses import dataclass, field, fields, replace

import pytest

from policysched.model.copies import changed_copy
from policysched.model.pod_status import ObservedPod
from policysched.model.pods import Pod
from tests.builders import pending, pod


@pytest.mark.parametrize("value", [pod("web", cpu="1", labels={"a": "b"}), pending(pod("web"))])
def test_a_copy_has_the_changed_fields_and_shares_the_others(value: Pod | ObservedPod) -> None:
    for changed in fields(value):
        copied = changed_copy(value, **{changed.name: "new"})

        expected = replace(value, **{changed.name: "new"})  # type: ignore[arg-type]
        assert type(copied) is type(value)
        for other in fields(value):
            assert getattr(copied, other.name) is getattr(expected, other.name)
            assert changed.name == other.name or getattr(value, other.name) != "new"


def test_a_field_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(KeyError, match="nod"):
        changed_copy(pod("web"), nod="a")


def test_a_class_that_computes_fields_is_refused() -> None:
    @dataclass(frozen=True, slots=True)
    class Computed:
        total: int = field(init=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "total", 1)

    with pytest.raises(AssertionError, match="computes"):
        changed_copy(Computed())
