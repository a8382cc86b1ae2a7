"""Tests without a program that they need."""

import pytest

from tests.missing_programs import leave_out


def test_a_missing_program_skips_a_test_unless_it_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLICYSCHED_REQUIRE", "control-plane")
    with pytest.raises(pytest.skip.Exception, match="it is not here"):
        leave_out("prometheus", "it is not here")

    monkeypatch.setenv("POLICYSCHED_REQUIRE", "control-plane,prometheus")
    with pytest.raises(pytest.fail.Exception, match="asks for it: it is not here"):
        leave_out("prometheus", "it is not here")
