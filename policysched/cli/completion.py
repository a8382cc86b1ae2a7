"""`policysched completion`: a script that completes commands, options and files in a shell."""

import click
from click.shell_completion import get_completion_class

from policysched.cli import main

_SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(_SHELLS))
def completion(shell: str) -> None:
    """Print a script for the completion of commands, options and files.

    \b
      source <(policysched completion bash)                                       # this shell
      policysched completion fish > ~/.config/fish/completions/policysched.fish   # from now on
    """
    script = get_completion_class(shell)
    assert script is not None, shell
    click.echo(script(main, {}, "policysched", "_POLICYSCHED_COMPLETE").source())
