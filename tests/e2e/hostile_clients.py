"""Clients of a port that mean harm: connections without a request, slow, huge and forged requests.

Each runs on a thread of its own, from an address of its own, until the block ends, and counts what it got through.
"""

import contextlib
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.controlplane.cluster import HOST

TIMEOUT_S = 10.0
PAUSE_S = 0.3
"""After each round of what costs the attacker much processor time, too."""
HELD = 150
"""Connections of each attack that holds them. Two such attacks hold more than the server has (256)."""
PIECE = b"[" * 65_536
NESTED_BYTES = 57 << 20


@dataclass
class HostileClients:
    """`token`: of a ServiceAccount without permissions. `path`: where bodies are posted. `hits` counts by attack."""

    port: int
    token: str
    path: str
    hits: Counter[str] = field(default_factory=Counter)
    ended: threading.Event = field(default_factory=threading.Event)
    lasted_s: float = 0.0
    _here: threading.local = field(default_factory=threading.local)

    @contextlib.contextmanager
    def attacking(self) -> Iterator[None]:
        attacks = (
            self.half_open,
            self.slow_headers,
            self.forged_tokens,
            self.token_without_permission,
            self.plain_http,
            self.two_lengths,
            self.huge_body,
            self.busy_connections,
            self.long_headers,
        )
        threads = [
            threading.Thread(target=self._repeat, args=(attack, f"127.0.0.{number}"))
            for number, attack in enumerate(attacks, start=2)
        ]
        began_s = time.monotonic()
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.ended.set()
            for thread in threads:
                thread.join()
            self.lasted_s = time.monotonic() - began_s
        assert set(self.hits) == {attack.__name__ for attack in attacks}, "an attack hit nothing"

    @property
    def each_has_hit(self) -> bool:
        return len(self.hits) == 9

    def _repeat(self, attack: Callable[[], None], address: str) -> None:
        self._here.address = address
        while not self.ended.is_set():
            with contextlib.suppress(OSError):  # the server closes a connection whenever it likes
                attack()
            self.hits[attack.__name__] += 1
            if attack not in (self.plain_http, self.forged_tokens):  # these come as fast as they can
                self.ended.wait(PAUSE_S)

    # Each returns after a while

    def half_open(self) -> None:
        """Two hundred connections that begin a TLS handshake and send nothing more."""
        with contextlib.ExitStack() as stack:
            for _ in range(200):
                client = stack.enter_context(self._connected())
                client.sendall(b"\x16\x03\x01\x02\x00\x01\x00")
            self.ended.wait(1.0)

    def slow_headers(self) -> None:
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(self._secure()) for _ in range(20)]
            for client in clients:
                client.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nX: ")
            for _ in range(20):
                for client in clients:
                    client.sendall(b"x")
                self.ended.wait(0.05)

    def forged_tokens(self) -> None:
        for number in range(20):
            self._ask(f"forged-{time.monotonic_ns()}-{number}", b"GET /decisions HTTP/1.1\r\n")

    def token_without_permission(self) -> None:
        for path in (b"/decisions", b"/metrics", b"/policy", b"/page/pending"):
            self._ask(self.token, b"GET " + path + b" HTTP/1.1\r\n")

    def plain_http(self) -> None:
        with self._connected() as client:
            client.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" + b"\x00" * 1000)
            client.recv(100)

    def two_lengths(self) -> None:
        """What two parsers read differently, and a header of a megabyte."""
        self._ask(
            self.token, b"POST /metrics HTTP/1.1\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n"
        )
        self._ask("x" * (1 << 20), b"GET /metrics HTTP/1.1\r\n")

    def huge_body(self) -> None:
        """Nested lists that never end, to the path with the token."""
        head = f"POST {self.path} HTTP/1.1\r\nContent-Length: {NESTED_BYTES}\r\nContent-Type: application/json\r\n"
        self._ask(self.token, head.encode(), body_bytes=NESTED_BYTES)

    def busy_connections(self) -> None:
        """A request in each of many connections, so that none is idle."""
        with contextlib.ExitStack() as stack:
            for _ in range(HELD):
                with contextlib.suppress(OSError):
                    client = stack.enter_context(self._secure())
                    client.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            self.ended.wait(1.0)

    def long_headers(self) -> None:
        """A megabyte in sixty fields, without an end, in each of many connections."""
        fields = b"".join(b"X%d: " % number + b"x" * 16_000 + b"\r\n" for number in range(60))
        with contextlib.ExitStack() as stack:
            for _ in range(HELD):
                with contextlib.suppress(OSError):
                    client = stack.enter_context(self._secure())
                    client.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n" + fields)
            self.ended.wait(1.0)

    # Connections

    def _connected(self) -> socket.socket:
        return socket.create_connection((HOST, self.port), TIMEOUT_S, source_address=(self._here.address, 0))

    def _secure(self) -> ssl.SSLSocket:
        return ssl._create_unverified_context().wrap_socket(self._connected())

    def _ask(self, token: str, head: bytes, *, body_bytes: int = 0) -> None:
        with self._secure() as client:
            client.sendall(head + f"Host: x\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
            for _ in range(body_bytes // len(PIECE)):
                client.sendall(PIECE)
            client.recv(100)


def peak_mib(pid: int) -> int:
    """The most memory that the process has had."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) >> 10 for line in status.splitlines() if line.startswith("VmHWM"))
