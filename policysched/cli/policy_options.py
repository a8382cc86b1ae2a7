"""Options that several commands share: `--name`, `--param` and `--output-format`."""

import click

name_option = click.option("--name", metavar="NAME", help="The policy to use, if the file has several.")
param_option = click.option(
    "--param",
    "params",
    multiple=True,
    metavar="NAME=VALUE",
    help="A value for a parameter of the policy; a list is separated by commas. Can be repeated.",
)
output_format_option = click.option(
    "--output-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="The format of the output.",
)
