"""An HTTP proxy on loopback that opens tunnels (CONNECT), as many networks have in front of their
API server.

It resolves every requested name to 127.0.0.1: servers behind a proxy often have names that only the
proxy can resolve.
"""

import contextlib
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class ConnectProxy(socketserver.ThreadingTCPServer):
    """`requests` are the `HOST:PORT` of its tunnels, in order."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Tunnel)
        self.requests: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Tunnel(socketserver.StreamRequestHandler):
    server: ConnectProxy

    def handle(self) -> None:
        method, target, _ = self.rfile.readline().decode().split()
        while self.rfile.readline().strip():
            pass  # headers
        if method != "CONNECT":
            self.wfile.write(b"HTTP/1.1 405 Method Not Allowed\r\n\r\n")
            return
        self.server.requests.append(target)
        with socket.create_connection(("127.0.0.1", int(target.rpartition(":")[2]))) as server:
            self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            back = threading.Thread(target=_carry, args=(server, self.connection), daemon=True)
            back.start()
            _carry(self.connection, server)
            back.join(timeout=5)


def _carry(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):  # either side may close at any time
        while piece := source.recv(65536):
            target.sendall(piece)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


@contextmanager
def connect_proxy() -> Iterator[ConnectProxy]:
    with ConnectProxy() as proxy:
        thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield proxy
        finally:
            proxy.shutdown()
            thread.join(timeout=5)
