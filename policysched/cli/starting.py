"""What `run` and `extender` have in common: flags in the form of the settings file, and words for what keeps them from starting."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from policysched.cli import Problem


def given(**values: Any) -> dict[str, Any]:
    """Without what was not given."""
    return {name: value for name, value in values.items() if value not in (None, {}, [])}


@contextmanager
def start_problems() -> Iterator[None]:
    """What is wrong with the settings, and with what they name, ends the command with a line each."""
    # Here, for `--help` and a misspelt flag need none of it.
    from policysched.app.policy_files import UnusableFile
    from policysched.app.setting_layers import BadSettings
    from policysched.kube.extender_client import BadPeer
    from policysched.kube.session import BadConfiguration
    from policysched.samples.file import BadSamples
    from policysched.serve.server import CannotListen
    from policysched.serve.tls import BadCertificate

    try:
        yield
    except (BadSettings, BadSamples) as error:
        raise Problem(*error.problems) from error
    except (
        BadConfiguration,
        BadPeer,
        BadCertificate,
        CannotListen,
        UnusableFile,
    ) as error:
        raise Problem(str(error)) from error
