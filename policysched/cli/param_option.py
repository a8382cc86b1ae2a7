"""`--param NAME=VALUE`, which several commands share."""

import click

param_option = click.option(
    "--param",
    "params",
    multiple=True,
    metavar="NAME=VALUE",
    help="A value for a parameter of the policy; may be given several times. A list is written with commas.",
)
