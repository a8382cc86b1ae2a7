"""`policysched version`: the versions of the program, of its language and of the Kubernetes releases that it covers."""

import platform

import click

from policysched import __version__
from policysched.builtins.registry import KUBE_DEFAULT_VERSION, KUBE_SCHEDULER_RELEASES


@click.command()
@click.option(
    "--output-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="The format of the output.",
)
def version(output_format: str) -> None:
    """Print the versions of policysched, its language, and the kube-scheduler releases that it covers.

    \b
      policysched version
      policysched version --output-format json
    """
    releases = sorted(KUBE_SCHEDULER_RELEASES, key=lambda release: [int(part) for part in release.split(".")])
    if output_format == "json":
        import orjson

        record = {
            "version": __version__,
            "language": 1,
            "kube_default": KUBE_DEFAULT_VERSION,
            "kube_scheduler_releases": releases,
            "python": platform.python_version(),
        }
        click.echo(orjson.dumps(record, option=orjson.OPT_INDENT_2))
        return
    click.echo(f"policysched     {__version__}")
    click.echo("language        version 1")
    click.echo(f"kube-scheduler  {', '.join(releases)}   (include kube_default is {KUBE_DEFAULT_VERSION})")
    click.echo(f"Python          {platform.python_version()}")
