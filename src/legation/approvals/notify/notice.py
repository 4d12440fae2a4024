"""Notices of approvals: what a person is told, the channels that carry it, and the addresses that these need.

INV-1  A notice holds nothing that anybody said: no arguments, results, reasons. It leaves the machine.

Names of agents and tools are the agent's own choice: whoever shows one makes it harmless first.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
import ssl
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Protocol
from urllib.parse import quote, unquote, urlsplit

import msgspec

from legation.approvals.approval import Approval, NoticeKind, NoticeReason
from legation.errors import ConfigInvalid, Unavailable
from legation.secret import Secret
from legation.wire.api.approvals import go_duration, rfc3339

_SIMPLE_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,128}", re.ASCII)


class ApprovalNotice(msgspec.Struct, frozen=True, kw_only=True):
    """A notice of an approval. One for each that reaches a person, and one more before it expires; where many are gathered, the one that
    expires first, with their number."""

    kind: NoticeKind
    approval_id: str
    workspace: str
    agent: str
    tool: str
    action_kind: str
    policy_rule: str
    why: NoticeReason
    argument_names: str  # separated by commas; `?` stands for those that are not simple
    argument_bytes: int
    injection_risk: bool
    created_at: str
    expires_at: str
    remaining: str  # when the notice was made, as Go writes durations: 4m30s
    url: str
    reviewers: tuple[str, ...] = ()
    more: int = 0  # others that it stands for, where notices are gathered: asked since the one before

    @classmethod
    def of(
        cls,
        approval: Approval,
        kind: NoticeKind,
        why: NoticeReason,
        public_url: str,
        now_ms: int,
        reviewers: Iterable[str] = (),
    ) -> ApprovalNotice:
        return cls(
            kind=kind,
            approval_id=_encodable(approval.id),
            workspace=_encodable(approval.workspace_id),
            agent=_encodable(approval.agent),
            tool=_encodable(approval.tool),
            action_kind=_encodable(approval.kind),
            policy_rule=_encodable(approval.policy_rule),
            why=why,
            argument_names=_encodable(approval.argument_names),
            argument_bytes=approval.argument_bytes,
            injection_risk=approval.injection_risk,
            created_at=rfc3339(approval.created_at),
            expires_at=rfc3339(approval.expires_at),
            remaining=go_duration(approval.expires_at - now_ms),
            url=f"{public_url.rstrip('/')}/ui/inbox/{quote(_encodable(approval.id), safe='')}",
            reviewers=tuple(_encodable(name) for name in reviewers),
        )

    @property
    def id(self) -> str:
        """The same however often it is sent, by whichever server, so that receivers can tell a repetition."""
        # Letters, digits, `_` and `-` only: it stands in headers, and a dot ends it where it is signed.
        return f"{self._simple_approval_id}-{self.kind}"

    @property
    def asked_id(self) -> str:
        """The id of the first notice on the same approval."""
        return f"{self._simple_approval_id}-asked"

    @property
    def _simple_approval_id(self) -> str:
        if _SIMPLE_ID.fullmatch(self.approval_id):
            return self.approval_id
        return f"sha256-{hashlib.sha256(self.approval_id.encode()).hexdigest()}"

    @property
    def expires_ms(self) -> float:
        return datetime.fromisoformat(self.expires_at).timestamp() * 1000

    def expired(self, now_ms: int) -> bool:
        return self.expires_ms <= now_ms

    def with_more(self, others: int) -> ApprovalNotice:
        return msgspec.structs.replace(self, more=self.more + others)

    def encode(self) -> bytes:
        """Write it as one line of JSON, without its ending."""
        return msgspec.json.encode(self)


def _encodable(text: str) -> str:
    # YAML can write half a surrogate pair; no wire can.
    return text.encode("utf-8", "replace").decode()


class NotDelivered(Unavailable):
    """The notice did not get through. `again`: trying once more may help. Its words hold no secret."""

    def __init__(self, message: str, *, again: bool = True) -> None:
        super().__init__(message)
        self.again = again


class NoticeChannel(Protocol):
    """A way to reach a person."""

    @property
    def name(self) -> str: ...

    @property
    def gathers(self) -> bool:
        """Tell whether people read it: what comes in a burst is then told together."""

    async def send(self, notice: ApprovalNotice) -> None:
        """Send once, within a bound of its own; raises NotDelivered. A repetition is recognisable as one."""


@dataclass(frozen=True, slots=True)
class NoticeAddress:
    """An address of the owner's settings, whose credentials and path may be secret."""

    scheme: str
    host: str
    port: int | None
    target: str = field(repr=False)  # path and query: those of a webhook often are its key
    user: str | None = field(repr=False)
    password: Secret | None

    @classmethod
    def parse(cls, url: Secret) -> NoticeAddress:
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
    """Make the context that verifies certificates and names, against the same authorities for every channel."""
    import httpx2  # slow; only who sends pays for it

    return httpx2.create_ssl_context()


def is_untrusted(error: BaseException | None) -> bool:
    """Tell whether a certificate was refused, however deep it is said."""
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
