"""Messages for failed HTTP requests.

aiohttp reports a refused connection as `Cannot connect to host 10.0.0.7:9090 ssl:default [Connect call failed
('10.0.0.7', 9090)]`, with or without TLS. That suggests a TLS problem and lacks the error of the operating system.
"""

import os
import socket
import ssl

import aiohttp


def describe_http_error(error: BaseException) -> str:
    """`cannot connect to 10.0.0.7:9090: Connection refused`; for other errors their own message. On one line and not cut,
    because callers must remove secrets first."""
    if isinstance(error, aiohttp.ClientConnectorError) and not isinstance(error, aiohttp.ClientSSLError):
        return f"cannot connect to {error.host}:{error.port}: {system_error_message(error.os_error)}"
    return _one_line(str(error)) or type(error).__name__


def system_error_message(error: OSError) -> str:
    """asyncio replaces the message of the system. Name resolution and TLS errors have their own error numbers."""
    if error.errno and error.errno > 0 and not isinstance(error, socket.gaierror | ssl.SSLError):
        return os.strerror(error.errno)
    return _one_line(error.strerror or str(error)) or type(error).__name__


def _one_line(text: str) -> str:
    return " ".join(text.split())
