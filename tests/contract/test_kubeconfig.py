"""The kubeconfig of a sandbox, which may have a token."""

import stat
from pathlib import Path

from policysched.sandbox.kubeconfig import Credentials, write_kubeconfig


def test_only_its_owner_reads_the_token_also_in_a_file_that_was_there(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text("")
    path.chmod(0o644)

    write_kubeconfig(path, "https://127.0.0.1:1", Credentials("secret", b"certificate"))

    assert "secret" in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
