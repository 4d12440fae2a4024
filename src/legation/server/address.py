"""Where the server listens and what it is called.

The port is kept: whatever found the server once, a runner or a bookmark, finds it again after a restart.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from legation.errors import ConfigInvalid, Conflict, Forbidden, StorageFailed
from legation.settings import Settings

BACKLOG: Final = 1024
LOOPBACK_NAMES: Final = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class Address:
    listener: socket.socket
    port: int
    public_url: str
    hosts: frozenset[str] | None  # names that a request may be addressed to; None: any


def listen(settings: Settings) -> Address:
    """Bind, and remember the port. Everything that can be wrong with an address is told here."""
    kept = _Kept(settings.data_dir / "port")
    listener = _bind_first(settings, kept.read())
    port = int(listener.getsockname()[1])
    kept.write(port)
    return Address(listener, port, public_url(settings, port), hosts(settings))


def is_loopback(host: str) -> bool:
    if host in LOOPBACK_NAMES:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def public_url(settings: Settings, port: int) -> str:
    if settings.public_url:
        return settings.public_url.rstrip("/")
    name = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)  # noqa: S104 - not bound here
    scheme = "https" if settings.tls_cert else "http"
    return f"{scheme}://{f'[{name}]' if ':' in name else name}:{port}"


def hosts(settings: Settings) -> frozenset[str] | None:
    """A page of another site can make its own name point here; it must then not be taken for ours."""
    named = {*settings.allowed_hosts}
    if settings.public_url:
        named.add(urlsplit(settings.public_url).hostname or "")
    if is_loopback(settings.host):
        named |= {*LOOPBACK_NAMES, settings.host}
    elif not named:
        return None  # on every address of the machine, whose names we cannot know
    elif settings.host not in ("0.0.0.0", "::"):  # noqa: S104 - compared, not bound
        named.add(settings.host)
    return frozenset(name.lower() for name in named)


def _bind_first(settings: Settings, kept: int | None) -> socket.socket:
    chosen = not settings.source("port").startswith("default")
    if chosen:
        return _bind(settings.host, settings.port)
    if kept is not None:
        return _bind(settings.host, kept)
    try:
        return _bind(settings.host, settings.port)
    except Conflict:  # nobody knows the port yet: any will do, and that one is kept
        return _bind(settings.host, 0)


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise ConfigInvalid(f"cannot listen on {host}: {error.strerror}; correct --host") from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise _refusal(host, port, error) from None
    return listener


def _refusal(host: str, port: int, error: OSError) -> Exception:
    where = f"cannot listen on {host}:{port}"
    if error.errno == errno.EADDRINUSE:
        return Conflict(f"{where}: another program does; stop that one, or choose another with --port")
    if error.errno in (errno.EACCES, errno.EPERM):
        return Forbidden(f"{where}: the system does not allow it; choose a port from 1024 up with --port")
    return ConfigInvalid(f"{where}: {os.strerror(error.errno or 0)}; correct --host")


class _Kept:
    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> int | None:
        try:
            text = self._path.read_text("ascii").strip()
        except (OSError, ValueError):
            return None
        return int(text) if text.isdigit() and 0 < int(text) < 65536 else None

    def write(self, port: int) -> None:
        if self.read() == port:
            return
        try:
            self._path.write_text(f"{port}\n", "ascii")
        except OSError as error:
            raise StorageFailed(
                f"cannot write {self._path}: {error.strerror}; free some space or choose --data-dir"
            ) from error
