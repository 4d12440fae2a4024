"""Notices by mail, as plain text, handed to a mail server (extra `mail`).

INV-1  No name that an agent chose can add a header, a line or a direction of writing: what is not visible is
       replaced, what is long is cut, and the address that is not ours is no link.
INV-2  Nothing but the greeting goes over a network unencrypted: without TLS, and without the certificate that the
       server's name asks for, neither a password nor a mail is sent. Loopback is no network.
INV-3  What the server has taken counts as delivered, whatever happens on the way out.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import unicodedata
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from legation.approvals.approval import NoticeReason
from legation.approvals.notify.notice import (
    ApprovalNotice,
    NotDelivered,
    NoticeAddress,
    is_untrusted,
    trusted,
)
from legation.clock import Clock
from legation.errors import ConfigInvalid
from legation.secret import Secret

if TYPE_CHECKING:
    from email.message import EmailMessage

    from aiosmtplib import SMTP

# The mail server's time for one step of the dialogue, and for all of it.
STEP_TIMEOUT: Final = 10.0
TIMEOUT: Final = 30.0
SMTPS_PORT: Final = 465
SUBMISSION_PORT: Final = 587
LOOPBACK_PORT: Final = 25
# Only ever said to a server: the name of this machine is nobody's business, and finding it out can take long.
_OUR_NAME: Final = "[127.0.0.1]"
LONGEST_IN_SUBJECT: Final = 48
LONGEST_IN_BODY: Final = 256
_ADDRESS: Final = re.compile(
    r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-][A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]*@[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?",
    re.ASCII,
)
# Letters, marks, numbers, punctuation, symbols, spaces: neither control nor format characters, nor line separators.
_VISIBLE: Final = frozenset("LMNPS")
_WHY: Final[dict[NoticeReason, str]] = {
    "policy": "the policy wants a person to decide",
    "escalated": "the supervisor passed it on to a person",
    "no-supervisor": "no supervisor is there to decide",
    "undecided": "the supervisor did not decide in time",
}


class MailChannel:
    name = "mail"
    gathers = True

    def __init__(
        self,
        server: Secret,
        sender: str,
        recipients: tuple[str, ...],
        clock: Clock,
        *,
        step_timeout: float = STEP_TIMEOUT,
        timeout: float = TIMEOUT,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._server = mail_server(server)
        for address in (sender, *recipients):
            must_be_address(address)
        self._sender = sender
        self._recipients = recipients
        self._clock = clock
        self._step_timeout = step_timeout
        self._timeout = timeout
        self._tls = tls

    async def send(self, notice: ApprovalNotice) -> None:
        await self.deliver(letter_of(notice, self._sender, self._recipients, self._clock.now_ms()))

    async def deliver(self, message: EmailMessage) -> None:
        """Hand a letter to the mail server, for all recipients."""
        from aiosmtplib import SMTPException  # slow; a server without mail does not pay for it

        if self._tls is None:
            self._tls = await asyncio.to_thread(trusted)  # reads some hundred certificates
        letter = message.as_bytes()
        smtp = self._client(self._tls)
        try:
            async with asyncio.timeout(self._timeout):
                await smtp.connect()
                refused, _ = await smtp.sendmail(self._sender, list(self._recipients), letter)
            with suppress(SMTPException, OSError):
                await smtp.quit()
        except (
            SMTPException,
            OSError,
            ValueError,
        ) as error:  # a step's time that is over is an SMTPException too
            raise self._failure(error) from None
        finally:
            if smtp.transport is not None:
                smtp.transport.abort()  # type: ignore[attr-defined]  # `close` would wait for a server that hangs
        if refused:  # the others have it: a repetition would reach them twice
            raise NotDelivered(
                f"cannot notify {len(refused)} of {len(self._recipients)} by mail: the server refused their addresses;"
                " correct notify_to",
                again=False,
            )

    def _client(self, tls: ssl.SSLContext) -> SMTP:
        from aiosmtplib import SMTP

        server, is_smtps = self._server, self._server.scheme == "smtps"
        port = SMTPS_PORT if is_smtps else LOOPBACK_PORT if server.is_loopback else SUBMISSION_PORT
        return SMTP(
            hostname=server.host,
            port=server.port or port,
            username=server.user,
            password=server.password.reveal() if server.password else None,
            local_hostname=_OUR_NAME,
            timeout=self._step_timeout,
            use_tls=is_smtps,
            start_tls=not is_smtps and not server.is_loopback,
            tls_context=tls,
        )

    def _failure(self, error: Exception) -> NotDelivered:
        """Say why by codes and kinds only: what a server says may quote what it was told."""
        import aiosmtplib

        why, again = "", True
        match error:
            case aiosmtplib.SMTPRecipientsRefused(recipients=refused):
                codes = sorted({each.code for each in refused})
                why = f"the server refused every recipient ({', '.join(map(str, codes))}); check notify_to"
                again = any(code < 500 for code in codes)
            case aiosmtplib.SMTPAuthenticationError(code=code):
                why, again = f"the server refused user and password ({code}); check notify_smtp", code < 500
            case aiosmtplib.SMTPResponseException(code=code):
                why, again = f"the server refused it ({code}); look at its log, check notify_from", code < 500
            case _ if type(error) is aiosmtplib.SMTPException:  # only raised for what a server does not offer
                why = (
                    "the server offers no STARTTLS or no way to sign in, and nothing is sent without; write smtps:// in"
                    " notify_smtp, or correct the server"
                )
                again = False
            case _ if is_untrusted(error):
                why = (
                    "the server's certificate is not trusted; correct it, write the name that it is for in notify_smtp,"
                    " or add its authority to this machine"
                )
                again = False
            case _ if type(error) is TimeoutError:
                why = f"the server took longer than {self._timeout:g} s; look at its log"
            case _:
                why = (
                    f"the connection failed ({type(error).__name__}); check that the server of notify_smtp runs and can be"
                    " reached from here"
                )
        return NotDelivered(f"cannot notify by mail: {why}", again=again)


def letter_of(notice: ApprovalNotice, sender: str, recipients: tuple[str, ...], now_ms: int) -> EmailMessage:
    letter = new_letter(notice.id, sender, recipients, _subject(notice), _body(notice), now_ms)
    if notice.kind == "reminder":
        letter["References"] = f"<{notice.asked_id}@{sender.rpartition('@')[2]}>"
    return letter


def sign_in_letter(name: str, url: str, sender: str, recipient: str, now_ms: int) -> EmailMessage:
    """Write a letter with a sign-in link; `name` is unique, and tells nothing."""
    body = "\n".join(
        (
            "Somebody, you it is to be hoped, asked for a link that signs you in to Legation.",
            "It works once, for ten minutes:",
            "",
            url,
            "",
            "If it was not you: nothing happened, and nothing is to be done.",
            "",
        )
    )
    return new_letter(name, sender, (recipient,), "[Legation] Your sign-in link", body, now_ms)


def new_letter(
    name: str, sender: str, recipients: tuple[str, ...], subject: str, body: str, now_ms: int
) -> EmailMessage:
    from email.message import EmailMessage
    from email.policy import SMTP
    from email.utils import formatdate

    letter = EmailMessage(policy=SMTP)
    letter["From"] = sender
    letter["To"] = ", ".join(recipients)
    letter["Subject"] = subject
    letter["Date"] = formatdate(now_ms / 1000)
    letter["Message-ID"] = f"<{name}@{sender.rpartition('@')[2]}>"
    letter["Auto-Submitted"] = "auto-generated"
    letter.set_content(body, charset="utf-8", cte="quoted-printable")
    return letter


def shown(name: str, longest: int = LONGEST_IN_BODY) -> str:
    """Show a name that others chose on one line, from left to right, and as nothing but a name."""
    visible = "".join(" " if unicodedata.category(char) == "Zs" else _visible(char) for char in name)
    # Mail programs make links of addresses; they, and Python's own header code, decode what looks like an encoded word.
    harmless = visible.replace("://", ": //").replace("=?", "= ?")
    return harmless if len(harmless) <= longest else f"{harmless[: longest - 3]}..."


def _visible(char: str) -> str:
    return char if unicodedata.category(char)[0] in _VISIBLE else "\N{REPLACEMENT CHARACTER}"


def _subject(notice: ApprovalNotice) -> str:
    tool, agent = shown(notice.tool, LONGEST_IN_SUBJECT), shown(notice.agent, LONGEST_IN_SUBJECT)
    start = "Reminder: approval" if notice.kind == "reminder" else "Approval"
    if notice.more:
        return f"[Legation] {notice.more + 1} approvals needed: {tool} by {agent} and {notice.more} more"
    return f"[Legation] {start} needed: {tool} by {agent}, {notice.remaining} left"


def _body(notice: ApprovalNotice) -> str:
    names = notice.argument_names.replace(",", ", ") or "none"
    facts = {
        "Agent": notice.agent,
        "Tool": f"{notice.tool} ({notice.action_kind})",
        "Arguments": f"{names} ({notice.argument_bytes} bytes; they are not in this mail)",
        "Rule": notice.policy_rule,
        "Why you": _WHY[notice.why],
        "Workspace": notice.workspace,
        "Asked at": notice.created_at,
        "Expires at": f"{notice.expires_at} ({notice.remaining} left when this was written)",
    }
    if notice.reviewers:
        facts["Reviewers"] = ", ".join(notice.reviewers)
    if notice.injection_risk:
        facts["Careful"] = "the arguments look as if they were written to mislead whoever decides"
    lines = [f"{what + ':':<12}{shown(said)}" for what, said in facts.items()]
    return "\n".join(
        [
            "An agent waits for a person's approval. Without an answer it is refused.",
            *_others(notice.more),
            "",
            *lines,
            "",
            "Look at it and answer:",
            notice.url,
            "",
        ]
    )


def _others(more: int) -> list[str]:
    if not more:
        return []
    return [
        f"{more} more were asked since the mail before, or remind of themselves. This one expires first;",
        "`legation approvals` lists all that wait.",
    ]


def mail_server(url: Secret) -> NoticeAddress:
    server = NoticeAddress.parse(url)
    if find_spec("aiosmtplib") is None:
        raise ConfigInvalid('cannot use notify_smtp: aiosmtplib is not installed; install "legation[mail]"')
    if server.scheme not in ("smtp", "smtps") or server.target != "/":
        raise ConfigInvalid(
            "cannot use notify_smtp: write smtps://user:password@host:port and nothing after it"
        )
    if (server.user is None) != (server.password is None):
        raise ConfigInvalid("cannot use notify_smtp: it has one of user and password; write both or none")
    return server


def must_be_address(address: str) -> None:
    if not _ADDRESS.fullmatch(address):
        raise ConfigInvalid(
            f"cannot use {shown(address)!r} in notify_from or notify_to: write a plain address like ops@example.com, in ASCII"
        )
