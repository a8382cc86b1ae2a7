"""The process inside a host's network namespace: it brings up the loopback device and sends itself
datagrams.

    python host.py RATE_FILE LIFETIME_S

RATE_FILE contains the number of bytes per second; it is read ten times a second. The process exits
after LIFETIME_S. It uses the standard library only, because it runs without installed packages.
"""

import fcntl
import socket
import struct
import sys
import time
from pathlib import Path

SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 0x1
DATAGRAM_BYTES = 8_000
TICK_S = 0.1
RATE_MAX = 50_000_000


def bring_up(device: bytes) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        answer = fcntl.ioctl(control, SIOCGIFFLAGS, struct.pack("16sh", device, 0).ljust(40, b"\0"))
        (flags,) = struct.unpack_from("h", answer, 16)
        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sh", device, flags | IFF_UP).ljust(40, b"\0"))


def main(rate_file: Path, lifetime_s: float) -> None:
    bring_up(b"lo")
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiver.bind(("127.0.0.1", 0))
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    began_s = seen_s = time.monotonic()
    datagram, owed = bytes(DATAGRAM_BYTES), 0.0
    while seen_s < began_s + lifetime_s:
        before_s, seen_s = seen_s, time.monotonic()
        # By the clock, so that long ticks on a busy machine do not change the rate.
        owed += min(RATE_MAX, int(rate_file.read_text())) * (seen_s - before_s)
        while owed >= DATAGRAM_BYTES:
            # Nothing reads the socket: what exceeds the receive buffer is dropped after the device
            # has counted it.
            sender.sendto(datagram, receiver.getsockname())
            owed -= DATAGRAM_BYTES
        time.sleep(TICK_S)


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
