"""The address of the server: where it listens and what it is called.

The port is kept: whatever found the server once, a runner or a bookmark, finds it again after a restart.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import socket
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from legation.errors import ConfigInvalid, Conflict, Forbidden, LegationError, StorageFailed
from legation.secret import Secret
from legation.settings import Settings
from legation.store.datafolder import PORT
from legation.store.files import write_atomically
from legation.store.secrets.sealer import derive, key_bytes

BACKLOG: Final = 2048
STALLED_LIMIT: Final = 300.0  # seconds: a client's time to take anything of what it was sent
LOOPBACK_NAMES: Final = ("127.0.0.1", "localhost", "::1")
# A browser sends a cookie to every port of a host. What an agent serves on 127.0.0.1:3000 must not get ours, so
# people sign in under a name of its own; browsers take every name under localhost for this machine.
# The name is this installation's own and cannot be guessed: else a page of an agent would lead the browser to the
# same name at its own port, and be sent the cookie there.
BROWSER_DOMAIN: Final = "localhost"
_CERTIFICATE: Final = re.compile(r"-----BEGIN CERTIFICATE-----[^-]+-----END CERTIFICATE-----")
_EVERY_ADDRESS: Final = ("0.0.0.0", "::")  # noqa: S104 - compared, not bound


def listen(host: str, port: int) -> socket.socket:
    """Bind a socket and listen at once: two could bind the same port, and only one listen on it. Port 0: any."""
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


class ServerAddress(msgspec.Struct, frozen=True):
    listener: socket.socket
    port: int
    public_url: str
    local_url: str  # for the commands of this machine
    browser_url: str  # for links that people open
    advertise_url: str  # for other servers of the same database
    hosts: frozenset[str] | None  # names that a request may be addressed to; None: any


def browser_name(cookie_key: Secret) -> str:
    return f"legation-{derive(key_bytes(cookie_key), 'browser-name', 10).hex()}.{BROWSER_DOMAIN}"


def take_address(settings: Settings, own_name: str) -> ServerAddress:
    """Bind, and remember the port. Everything that can be wrong with an address is told here."""
    kept = _kept_port(settings.data_dir / PORT)
    listener = _listen_first(settings, kept)
    port = int(listener.getsockname()[1])
    if port != kept:
        _keep_port(settings.data_dir / PORT, port)
    return ServerAddress(
        listener,
        port,
        public_url(settings, port),
        local_url(settings, port),
        browser_url(settings, port, own_name),
        advertise_url(settings, port),
        hosts(settings, own_name),
    )


def is_loopback(host: str) -> bool:
    if host in LOOPBACK_NAMES:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def public_url(settings: Settings, port: int) -> str:
    return settings.public_url.rstrip("/") if settings.public_url else local_url(settings, port)


def local_url(settings: Settings, port: int) -> str:
    name = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)  # noqa: S104 - not bound here
    scheme = "https" if settings.tls_cert else "http"
    return f"{scheme}://{f'[{name}]' if ':' in name else name}:{port}"


def browser_url(settings: Settings, port: int, own_name: str) -> str:
    if settings.public_url or settings.tls_cert or not is_loopback(settings.host):
        return public_url(settings, port)
    return f"http://{own_name}:{port}"


def advertise_url(settings: Settings, port: int) -> str:
    if settings.advertise_url:
        return settings.advertise_url.rstrip("/")
    if settings.host not in _EVERY_ADDRESS:
        return local_url(settings, port)
    # Loopback would be another machine for the others. `public_url` may be a load balancer's: as good as any server's.
    return f"{'https' if settings.tls_cert else 'http'}://{socket.gethostname()}:{port}"


def own_certificate(settings: Settings) -> str | None:
    """Read the server's certificate, in PEM, for those who are to trust it and no other."""
    if settings.tls_cert is None:
        return None
    text = settings.tls_cert.read_text("latin-1")  # there may be words around it, in any language
    # The first is the server's own. Whoever trusted an authority of the chain would trust all that it signs for others,
    # and the file may hold the key as well.
    found = _CERTIFICATE.search(text)
    return found[0] if found is not None else None


def hosts(settings: Settings, own_name: str) -> frozenset[str] | None:
    """List the names that a request may be addressed to; None: any."""
    # A page of another site can make its own name point here; it must then not be taken for ours.
    named = {*settings.allowed_hosts}
    if settings.public_url:
        named.add(urlsplit(settings.public_url).hostname or "")
    if is_loopback(settings.host):
        named |= {*LOOPBACK_NAMES, own_name, settings.host}
    elif not named:
        return None  # on every address of the machine, whose names we cannot know
    elif settings.host not in _EVERY_ADDRESS:
        named.add(settings.host)
    if settings.database_url is not None:  # other servers call it so
        named.add(urlsplit(advertise_url(settings, settings.port)).hostname or "")
    return frozenset(name.lower() for name in named)


def _listen_first(settings: Settings, kept: int | None) -> socket.socket:
    chosen = not settings.source("port").startswith("default")
    if chosen:
        return listen(settings.host, settings.port)
    if kept is not None:
        return listen(settings.host, kept)
    try:
        return listen(settings.host, settings.port)
    except Conflict:  # nobody knows the port yet: any will do, and that one is kept
        return listen(settings.host, 0)


def _kept_port(path: Path) -> int | None:
    try:
        text = path.read_text("ascii").strip()
    except (OSError, ValueError):
        return None
    return int(text) if text.isdigit() and 0 < int(text) < 65536 else None


def _keep_port(path: Path, port: int) -> None:
    try:
        write_atomically(path, b"%d\n" % port)
    except OSError as error:
        raise StorageFailed(
            f"cannot write {path}: {error.strerror}; free some space or choose --data-dir"
        ) from error
