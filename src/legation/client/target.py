"""The server that a client talks to: its address, its file on this machine, the options of one's own, the times it is given."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from legation import settings
from legation.client.request import RequestFailure
from legation.errors import InvalidParams, LegationError, StorageFailed, Unauthenticated, Unavailable
from legation.secret import Secret
from legation.wire.api.server import OWNER_LOCK, SERVER_FILE, ServerFile

if TYPE_CHECKING:
    from httpx2 import Request


# Where a client talks to and as whom. The token is never part of the address, and never in a repr.


@dataclass(frozen=True, slots=True)
class ServerTarget:
    base: str  # scheme, host, port and path prefix, without a slash at the end
    is_plain: bool  # HTTP without TLS
    is_local: bool  # on this machine: no proxy has any business between us and it
    token: Secret
    workspace: str | None = None
    certificate: str | None = None  # the only one to trust, in PEM; None: those that the system trusts

    def url(self, path: str, query: tuple[tuple[str, str], ...] = ()) -> str:
        return f"{self.base}{path}{'?' if query else ''}{urlencode(query)}"

    def sign(self, request: Request) -> Request:
        """The token is put on when the request leaves, and stands nowhere before."""
        request.headers["Authorization"] = f"Bearer {self.token.reveal()}"
        return request


@dataclass(slots=True)
class Located:
    """The server as it is now. `again` looks for it: after a restart it has another token, and maybe another address.

    INV-C9  What may have reached a server is not sent to the next one by this: only what met no server at all, or one
    that did not know the token. A token that is refused by the server it is for stays refused."""

    now: ServerTarget
    again: Callable[[], ServerTarget] | None = None  # None: it is where it was said to be

    def after(self, failure: RequestFailure, tried: ServerTarget) -> RequestFailure | None:
        """Say what remains of a failure of a try at `tried`; None: that did not take it, and there is another to ask."""
        refused = isinstance(failure.error, Unauthenticated)
        if self.again is None or not (failure.passing or failure.unsent or refused):
            return failure
        try:
            self.now = self.again()
        except LegationError as away:  # it stops, or starts: its file says nothing yet
            return RequestFailure(away, passing=True, unsent=True) if refused else failure
        untaken = failure.unsent or refused
        return None if untaken and self.now != tried else failure


def target(
    url: str, token: str | Secret, workspace: str | None = None, certificate: str | None = None
) -> ServerTarget:
    secret = token if isinstance(token, Secret) else Secret(token, "token")
    if not _fits_a_header(secret.reveal()):
        raise InvalidParams("cannot use the token: it holds spaces or characters beyond ASCII; copy it again")
    if workspace is not None and not _fits_a_header(workspace):
        raise InvalidParams("cannot use the workspace: give its id, as `legation workspaces` shows it")
    base, host = _base(url)
    return ServerTarget(base, base.startswith("http:"), _is_local(host), secret, workspace, certificate)


def segment(value: str) -> str:
    """One id or name as a part of a path, whatever it holds."""
    if value in ("", ".", ".."):
        raise InvalidParams(
            "cannot make an address of an empty or dotted id: give the id as the server shows it"
        )
    try:
        return quote(value, safe="")
    except UnicodeEncodeError:
        raise InvalidParams(
            "cannot make an address of an id that is not valid Unicode: give it as the server shows it"
        ) from None


def _base(url: str) -> tuple[str, str]:
    """And its host."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        usable = parts.scheme in ("http", "https") and host != "" and parts.port != 0
    except ValueError:
        usable = False
    if not usable or any(not " " < char < "\x7f" for char in url):
        raise InvalidParams("cannot use the server's address: write it like http://127.0.0.1:4517")
    if parts.username is not None or parts.query or parts.fragment:  # may hold a secret: not repeated here
        raise InvalidParams(
            "cannot use the server's address: leave out user, password, query and fragment; give the token apart"
        )
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}", host


def _is_local(host: str) -> bool:
    from ipaddress import ip_address

    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _fits_a_header(value: str) -> bool:
    return value != "" and all("!" <= char <= "~" for char in value)


# How long the client waits, in seconds.

# The server's time to copy its database before the first byte of a backup comes.
BACKUP_READ: Final = 300.0
# A person's time to answer an approval, an hour at most unless the owner says otherwise, and the tool's after it.
TOOL_READ: Final = 3600.0 + 300.0
# The server's time to read and verify whole chains, or to decide every recorded call once more.
LONG_READ: Final = 300.0
# The registry's time to give an agent that is not here yet, and the agent's to start.
INSTALL_READ: Final = 900.0
# An agent's time to start and to say what it offers.
ASK_AGENT_READ: Final = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Spawn:
    """A server for this program alone; it ends with it."""

    host: str = "127.0.0.1"
    port: int | None = None  # None: a free one
    token: str | Secret | None = field(default=None, repr=False)  # None: a new one of 24 random bytes
    binary: str | Sequence[str] | None = None  # None: $LEGATION_BIN, else this Python's own legation
    data_dir: Path | None = None  # None: a private folder, removed afterwards
    log: Literal["inherit", "silent"] | Path = (
        "inherit"  # where its messages go: to our stderr, nowhere, a file
    )
    wait: float = 15.0  # seconds for it to become healthy
    env: Mapping[str, str] = field(default_factory=dict, repr=False)  # may hold keys


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    connect: float = 5.0  # the network's time to open a connection
    read: float = 30.0  # the server's time between two parts of an answer
    stream: float = 45.0  # silence on a stream: three keep-alives missed


DEFAULT_TIMEOUTS: Final = Timeouts()


# The server of this machine, by the file that `legation up` leaves in its data folder.


def data_folder(data_dir: Path | None = None) -> Path:
    """The one that is named, else that of the settings; absolute, for whoever looks there again later."""
    if data_dir is None:
        data_dir = settings.load({}, os.environ).data_dir
    return data_dir.expanduser().absolute()


def find(folder: Path) -> ServerFile:
    """The server that runs on a data folder now. Each has a token of its own: after a restart, look again."""
    path = folder / SERVER_FILE
    try:
        found = msgspec.json.decode(path.read_bytes(), type=ServerFile)
    except FileNotFoundError:
        raise Unavailable(
            f"cannot find a running Legation in {folder}: start one with `legation up`"
        ) from None
    except OSError as error:
        raise StorageFailed(
            f"cannot read {path}: {error.strerror}; run as the user who started it"
        ) from error
    except ValueError:  # not chained: the decoder's words may hold a piece of the token
        raise Unavailable(f"cannot read {path}: it is damaged; restart with `legation up`") from None
    owner = _owner(folder)
    if owner is None:
        raise Unavailable(
            f"cannot reach the Legation of {folder}: its process {found.pid} is gone; start it with `legation up`"
        )
    if owner not in ("", str(found.pid)):  # what is written there is of one that was killed
        raise Unavailable(f"cannot reach the Legation of {folder} yet: process {owner} starts; try again")
    return found


def _owner(folder: Path) -> str | None:
    """The pid of the server there, empty where that could not be written; None: none runs.

    A pid may have been given to somebody else; the lock that a server holds ends with it."""
    import fcntl

    try:
        fd = os.open(folder / OWNER_LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.read(fd, 32).decode(errors="replace").strip()
    finally:
        os.close(fd)
    return None
