"""`policysched page`: the page of a running scheduler, in the user's browser."""

from pathlib import Path

import click

from policysched.cli import CommandError
from policysched.cli.live_options import live_options


@click.command()
@click.option(
    "--port",
    default=0,
    type=click.IntRange(0, 65535),
    help="The port on 127.0.0.1 (default: a free port).",
)
@live_options
def page(
    port: int, kubeconfig: str | None, context: str | None, scheduler_namespace: str, url: str | None
) -> None:
    """Serve the page of a running scheduler on this machine, until Ctrl-C.

    The page changes nothing in the cluster. It uses the credentials of your kubeconfig, and hides the pods of namespaces
    in which you may not list pods. The printed URL contains a key, without which other users of this
    machine cannot use the port.

    Examples:

    \b
      policysched page
      kubectl policysched page --context production --port 8080

    Exit codes: 0 stopped by Ctrl-C; 2 could not run.
    """
    from policysched.live.connection import LiveChannel, LiveFailed, LiveTarget
    from policysched.live.page_proxy import PageProxy

    path = None if kubeconfig is None else Path(kubeconfig)
    target = LiveTarget(url, path, context, scheduler_namespace)
    channel, long_channel = LiveChannel(target), LiveChannel(target)
    try:
        answer = channel.ask("/page/overview", {})
        if answer.status != 200:
            text = " ".join(answer.body.decode(errors="replace").split())[:500]
            raise CommandError(f"the scheduler answered {answer.status}: {text}")
        with PageProxy(port, channel.ask, long_channel.ask) as proxy:
            click.echo(f"The page: {proxy.url}\nStop it with Ctrl-C.")
            proxy.serve_forever()
    except LiveFailed as error:
        raise CommandError(str(error)) from error
    except OSError as error:
        raise CommandError(f"127.0.0.1:{port}: {error.strerror or error}") from error
    except KeyboardInterrupt:
        return
    finally:
        channel.close()
        long_channel.close()
