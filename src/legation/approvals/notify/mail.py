"""Notices by mail, as plain text.

INV-1  No name that an agent chose can add a header, a line or a direction of writing: what is not visible is
       replaced, what is long is cut, and the address that is not ours is no link.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import threading
import unicodedata
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from legation.approvals.notify.notice import ApprovalNotice, NotDelivered, NoticeAddress, Why, trusted
from legation.clock import Clock
from legation.errors import ConfigInvalid
from legation.secret import Secret

if TYPE_CHECKING:
    from email.message import EmailMessage


# The mail server's time for one step of the dialogue, and for all of it.
STEP_TIMEOUT: Final = 10.0
TIMEOUT: Final = 30.0
LONGEST_IN_SUBJECT: Final = 48
LONGEST_IN_BODY: Final = 256
_ADDRESS: Final = re.compile(
    r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-][A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]*@[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?",
    re.ASCII,
)
# Letters, marks, numbers, punctuation, symbols, spaces: neither control nor format characters, nor line separators.
_VISIBLE: Final = frozenset("LMNPS")
_WHY: Final[dict[Why, str]] = {
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
        self._at_work = threading.Event()  # cleared by the thread itself, when it is done

    async def send(self, notice: ApprovalNotice) -> None:
        from legation.approvals.notify.smtp import Dialog  # slow; a server without mail does not pay for it

        if self._at_work.is_set():
            # A thread cannot be ended from outside; one is all that a server which never answers can hold up.
            raise NotDelivered(
                "cannot notify by mail: the mail before it is still under way; check the server"
            )
        if self._tls is None:
            self._tls = await asyncio.to_thread(trusted)  # reads some hundred certificates
        letter = letter_of(notice, self._sender, self._recipients, self._clock.now_ms())
        dialog = Dialog(self._server, self._tls, self._step_timeout)
        try:
            async with asyncio.timeout(self._timeout):
                await self._on_thread(lambda: dialog.hand_over(letter, self._sender, self._recipients))
        except TimeoutError:
            raise NotDelivered(
                f"cannot notify by mail: the server took longer than {self._timeout:g} s; look at its log"
            ) from None
        finally:
            if self._at_work.is_set():
                dialog.abort()

    async def _on_thread(self, work: Callable[[], None]) -> None:
        """A thread of our own, that the end of the process does not wait for."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def settle(error: Exception | None) -> None:
            if done.done():  # nobody waits any more
                return
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        def run() -> None:
            error: Exception | None = None
            try:
                work()
            except Exception as failure:  # noqa: BLE001  it is raised where it is awaited
                error = failure
            self._at_work.clear()
            try:
                loop.call_soon_threadsafe(settle, error)
            except RuntimeError:  # the loop has been closed
                return

        self._at_work.set()
        threading.Thread(target=run, name="legation-mail", daemon=True).start()
        await done


def letter_of(notice: ApprovalNotice, sender: str, recipients: tuple[str, ...], now_ms: int) -> EmailMessage:
    from email.message import EmailMessage
    from email.policy import SMTP
    from email.utils import formatdate

    domain = sender.rpartition("@")[2]
    letter = EmailMessage(policy=SMTP)
    letter["From"] = sender
    letter["To"] = ", ".join(recipients)
    letter["Subject"] = _subject(notice)
    letter["Date"] = formatdate(now_ms / 1000)
    letter["Message-ID"] = f"<{notice.id}@{domain}>"
    if notice.kind == "reminder":
        letter["References"] = f"<{notice.asked_id}@{domain}>"
    letter["Auto-Submitted"] = "auto-generated"
    letter.set_content(_body(notice), charset="utf-8", cte="quoted-printable")
    return letter


def shown(name: str, longest: int = LONGEST_IN_BODY) -> str:
    """A name that others chose, on one line, from left to right, and as nothing but a name."""
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
