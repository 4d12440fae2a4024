"""Where notices go: an address of the owner's settings, whose credentials and path may be secret."""

from __future__ import annotations

import ipaddress
import ssl
from dataclasses import dataclass, field
from urllib.parse import quote, unquote, urlsplit

from legation.errors import ConfigInvalid
from legation.secret import Secret


@dataclass(frozen=True, slots=True)
class Address:
    scheme: str
    host: str
    port: int | None
    target: str = field(repr=False)  # path and query: those of a webhook often are its key
    user: str | None = field(repr=False)
    password: Secret | None

    @classmethod
    def parse(cls, url: Secret) -> Address:
        try:
            parts = urlsplit(url.reveal())
            host, port = parts.hostname or "", parts.port
        except ValueError:  # its text quotes the value
            raise _unusable(url) from None
        if not host or port == 0 or any(char <= " " or char == "\x7f" for char in url.reveal()):
            raise _unusable(url)
        query = f"?{quote(parts.query, safe=_KEPT)}" if parts.query else ""
        return cls(
            scheme=parts.scheme.lower(),
            host=host,
            port=port,
            target=f"{quote(parts.path, safe=_KEPT) or '/'}{query}",
            user=unquote(parts.username) if parts.username else None,
            password=Secret(unquote(parts.password), url.name) if parts.password else None,
        )

    @property
    def origin(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}" if self.port is None else f"{self.scheme}://{host}:{self.port}"

    @property
    def has_credentials(self) -> bool:
        return self.user is not None or self.password is not None

    @property
    def is_loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


# What may stand in a path or a query as it is; the rest, such as letters beyond ASCII, is percent-encoded.
_KEPT = "/:@!$&'()*+,;=-._~%?[]"


def trusted() -> ssl.SSLContext:
    """Verifies certificates and names, against the same authorities for every channel."""
    import httpx2  # slow; only who sends pays for it

    return httpx2.create_ssl_context()


def is_untrusted(error: BaseException | None) -> bool:
    """Whether a certificate was refused, however deep it is said."""
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _unusable(url: Secret) -> ConfigInvalid:
    return ConfigInvalid(
        f"cannot use {url.name}: it is no address; write scheme://host or scheme://user:password@host:port, "
        "with special characters percent-encoded"
    )
