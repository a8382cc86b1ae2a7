"""Why nobody answered a request over HTTP, in words for people.

aiohttp shows a refused connection as `Cannot connect to host 10.0.0.7:9090 ssl:default [Connect call failed ('10.0.0.7', 9090)]`, with TLS or
without. Who is woken at night by that looks for a fault in TLS, and what the system said is not there.
"""

import os
import socket
import ssl

import aiohttp


def describe_http_error(error: BaseException) -> str:
    """`cannot connect to 10.0.0.7:9090: Connection refused`; of what else went wrong what it says itself. On one line, and as long as it is: secrets are
    to be taken out before it is cut."""
    if isinstance(error, aiohttp.ClientConnectorError) and not isinstance(error, aiohttp.ClientSSLError):
        return f"cannot connect to {error.host}:{error.port}: {_system_error_message(error.os_error)}"
    return _one_line(str(error)) or type(error).__name__


def _system_error_message(error: OSError) -> str:
    """asyncio puts words of its own in the place of the system's. A name that cannot be found has numbers of its own."""
    if error.errno and error.errno > 0 and not isinstance(error, socket.gaierror | ssl.SSLError):
        return os.strerror(error.errno)
    return _one_line(error.strerror or str(error)) or type(error).__name__


def _one_line(words: str) -> str:
    return " ".join(words.split())
