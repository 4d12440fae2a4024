"""One mail handed to a mail server: blocking, for a thread of its own. Importing it is slow.

INV-1  Nothing but the greeting goes over a network unencrypted: without TLS, and without the certificate that the
       server's name asks for, neither a password nor a mail is sent. Loopback is no network.
INV-2  What the server has taken counts as delivered, whatever happens on the way out.
"""

from __future__ import annotations

import smtplib
import socket
import ssl
from contextlib import suppress
from email.message import EmailMessage
from typing import Final

from legation.approvals.notify.notice import NotDelivered, NoticeAddress, is_untrusted

SMTPS_PORT: Final = 465
SUBMISSION_PORT: Final = 587
LOOPBACK_PORT: Final = 25
# Only ever said to a server: the name of this machine is nobody's business, and finding it out can take long.
_OUR_NAME: Final = "[127.0.0.1]"
_OK: Final = 220


class Dialog:
    """`timeout` bounds each wait for the server; `abort`, from another thread, ends them all."""

    def __init__(self, server: NoticeAddress, tls: ssl.SSLContext, timeout: float) -> None:
        self._server = server
        self._tls = tls
        self._smtp: smtplib.SMTP
        if server.scheme == "smtps":
            self._smtp = smtplib.SMTP_SSL(local_hostname=_OUR_NAME, timeout=timeout, context=tls)
        else:
            self._smtp = smtplib.SMTP(local_hostname=_OUR_NAME, timeout=timeout)
        # The constructor would set it, but also connect, and then nobody could abort the wait for the greeting.
        self._smtp._host = server.host  # type: ignore[attr-defined]

    def hand_over(self, message: EmailMessage, sender: str, recipients: tuple[str, ...]) -> None:
        try:
            self._open()
            refused = self._smtp.sendmail(sender, list(recipients), message.as_bytes())
            self._take_leave()
        except (smtplib.SMTPException, OSError, ValueError) as error:
            raise _failure(error) from None
        finally:
            self._smtp.close()
        if refused:  # the others have it: a repetition would reach them twice
            raise NotDelivered(
                f"cannot notify {len(refused)} of {len(recipients)} by mail: the server refused their addresses;"
                " correct notify_to",
                again=False,
            )

    def abort(self) -> None:
        sock = self._smtp.sock
        if sock is not None:
            with suppress(OSError):  # it is closed already
                # Below TLS, whose own shutdown would pull the session away under the other thread.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def _open(self) -> None:
        code, said = self._smtp.connect(self._server.host, self._server.port or self._default_port)
        if code != _OK:
            raise smtplib.SMTPConnectError(code, said)
        if self._server.scheme != "smtps" and not self._server.is_loopback:
            self._smtp.starttls(context=self._tls)
        self._smtp.ehlo_or_helo_if_needed()
        if self._server.user is not None and self._server.password is not None:
            self._smtp.login(self._server.user, self._server.password.reveal())

    def _take_leave(self) -> None:
        with suppress(smtplib.SMTPException, OSError):
            self._smtp.quit()

    @property
    def _default_port(self) -> int:
        if self._server.scheme == "smtps":
            return SMTPS_PORT
        return LOOPBACK_PORT if self._server.is_loopback else SUBMISSION_PORT


def _failure(error: Exception) -> NotDelivered:
    """Codes and kinds only: what a server says may quote what it was told."""
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        codes = sorted({code for code, _ in error.recipients.values()})
        shown = ", ".join(map(str, codes))
        return NotDelivered(
            f"cannot notify by mail: the server refused every recipient ({shown}); check notify_to",
            again=any(code < 500 for code in codes),
        )
    if isinstance(error, smtplib.SMTPAuthenticationError):
        return NotDelivered(
            f"cannot notify by mail: the server refused user and password ({error.smtp_code}); check notify_smtp",
            again=error.smtp_code < 500,
        )
    if isinstance(error, smtplib.SMTPResponseException):
        return NotDelivered(
            f"cannot notify by mail: the server refused it ({error.smtp_code}); look at its log, check notify_from",
            again=error.smtp_code < 500,
        )
    if isinstance(error, smtplib.SMTPNotSupportedError):
        return NotDelivered(
            "cannot notify by mail: the server offers no STARTTLS or no way to sign in, and nothing is sent without;"
            " write smtps:// in notify_smtp, or correct the server",
            again=False,
        )
    if is_untrusted(error):
        return NotDelivered(
            "cannot notify by mail: the server's certificate is not trusted; correct it, write the name that it is"
            " for in notify_smtp, or add its authority to this machine",
            again=False,
        )
    return NotDelivered(
        f"cannot notify by mail: the connection failed ({type(error).__name__}); check that the server of notify_smtp"
        " runs and can be reached from here"
    )
