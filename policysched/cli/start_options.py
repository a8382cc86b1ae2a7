"""What `run` and `extender` have in common: flags, these in the form of the settings file, and words for what keeps them from starting."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from policysched.cli import CommandError

kubeconfig_option = click.option(
    "--kubeconfig",
    type=click.Path(dir_okay=False),
    help="The kubeconfig file. Default in a pod: its service account.",
)
context_option = click.option(
    "--context", metavar="NAME", help="A context of the kubeconfig other than the current one."
)
policies_option = click.option(
    "--policies", metavar="NAMESPACE/CONFIGMAP", help="The ConfigMap whose keys *.policy are the policies."
)
last_good_option = click.option(
    "--last-good",
    metavar="NAMESPACE/CONFIGMAP",
    help="Where the last known good texts are kept (default: the policies' name with -last-good).",
)
config_option = click.option("--config", type=click.Path(dir_okay=False), help="A settings file (YAML).")
metrics_option = click.option(
    "--metrics", type=click.Path(dir_okay=False), help="A file with samples of metrics."
)
log_format_option = click.option("--log-format", type=click.Choice(["text", "json"]), help="The log format.")
log_level_option = click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]))


def drop_none(**values: Any) -> dict[str, Any]:
    """Without what was not given."""
    return {name: value for name, value in values.items() if value not in (None, {}, [])}


@contextmanager
def report_start_errors() -> Iterator[None]:
    """What is wrong with the settings, and with what they name, ends the command with a line each."""
    # Here, for `--help` and a misspelt flag need none of it.
    from policysched.config.layers import BadSettings
    from policysched.kube.client.session import BadKubeconfig
    from policysched.kube.extender.client import BadExtenderSettings
    from policysched.metric_sources.file import BadSamplesFile
    from policysched.policy_files.source_set import UnusableFile
    from policysched.serve.server import ListenFailed
    from policysched.serve.tls import BadCertificate

    try:
        yield
    except (BadSettings, BadSamplesFile) as error:
        raise CommandError(*error.problems) from error
    except (
        BadKubeconfig,
        BadExtenderSettings,
        BadCertificate,
        ListenFailed,
        UnusableFile,
    ) as error:
        raise CommandError(str(error)) from error
