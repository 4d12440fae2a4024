"""A socket to listen on, and in words what can be wrong with its address."""

from __future__ import annotations

import errno
import os
import socket
from typing import Final

from legation.errors import ConfigInvalid, Conflict, Forbidden, LegationError

BACKLOG: Final = 2048
STALLED_LIMIT: Final = 300.0  # seconds: a client's time to take anything of what it was sent


def listen(host: str, port: int) -> socket.socket:
    """It listens at once: two could bind the same port, and only one listen on it. Port 0: any."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise ConfigInvalid(f"cannot listen on {host}: {error.strerror}; correct --host") from None
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Accepted connections inherit it: a client that vanished, or never reads, is dropped by the kernel.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(STALLED_LIMIT * 1000))
        sock.bind(address)
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise _refusal(host, port, error) from None
    return sock


def _refusal(host: str, port: int, error: OSError) -> LegationError:
    where = f"cannot listen on {host}:{port}"
    if error.errno == errno.EADDRINUSE:
        return Conflict(f"{where}: another program does; stop that one, or choose another with --port")
    if error.errno in (errno.EACCES, errno.EPERM):
        return Forbidden(f"{where}: the system does not allow it; choose a port from 1024 up with --port")
    return ConfigInvalid(f"{where}: {os.strerror(error.errno or 0)}; correct --host")
