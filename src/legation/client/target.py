"""Where a client talks to and as whom. The token is never part of the address, and never in a repr."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode, urlsplit

from legation.client.failure import Failure
from legation.errors import InvalidParams, LegationError, Unauthenticated
from legation.secret import Secret

if TYPE_CHECKING:
    from httpx2 import Request


@dataclass(frozen=True, slots=True)
class Target:
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
    """Where the server is now. `again` looks for it: after a restart it has another token, and maybe another address.

    INV-C9  What may have reached a server is not sent to the next one by this: only what met no server at all, or one
    that did not know the token. A token that is refused by the server it is for stays refused."""

    now: Target
    again: Callable[[], Target] | None = None  # None: it is where it was said to be

    def after(self, failure: Failure, tried: Target) -> Failure | None:
        """What remains of a failure of a try at `tried`; None: that did not take it, and there is another to ask."""
        refused = isinstance(failure.error, Unauthenticated)
        if self.again is None or not (failure.passing or failure.unsent or refused):
            return failure
        try:
            self.now = self.again()
        except LegationError as away:  # it stops, or starts: its file says nothing yet
            return Failure(away, passing=True, unsent=True) if refused else failure
        untaken = failure.unsent or refused
        return None if untaken and self.now != tried else failure


def target(
    url: str, token: str | Secret, workspace: str | None = None, certificate: str | None = None
) -> Target:
    secret = token if isinstance(token, Secret) else Secret(token, "token")
    if not _fits_a_header(secret.reveal()):
        raise InvalidParams("cannot use the token: it holds spaces or characters beyond ASCII; copy it again")
    if workspace is not None and not _fits_a_header(workspace):
        raise InvalidParams("cannot use the workspace: give its id, as `legation workspaces` shows it")
    base, host = _base(url)
    return Target(base, base.startswith("http:"), _is_local(host), secret, workspace, certificate)


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
