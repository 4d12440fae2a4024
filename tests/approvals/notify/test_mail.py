"""Against a real mail server on a real socket."""

import logging
import socket
import ssl
import sys
import threading
import unicodedata
from email import message_from_bytes, policy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.approvals.installation import NOW
from tests.approvals.notify.mail_server import sinking
from tests.approvals.notify.notices import notice, serving, trusting
from tests.approvals.notify.webhook_server import dead_port
from tests.certificates import make_certificate

from legation.approvals.notify import NotDelivered
from legation.approvals.notify.mail import MailChannel, letter_of, shown
from legation.errors import ConfigInvalid
from legation.secret import Secret
from legation.testing.clock import FakeClock

pytestmark = pytest.mark.heavy

NAME = "mail.example"
UNTRUSTING = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
HEADERS = {
    "From",
    "To",
    "Subject",
    "Date",
    "Message-ID",
    "Auto-Submitted",
    "MIME-Version",
    "Content-Type",
    "Content-Transfer-Encoding",
}
RTL = "\u202egnp.exe"


def mail(url: str, to: tuple[str, ...] = ("ops@example.com",), **options: Any) -> MailChannel:
    options = {"tls": UNTRUSTING} | options
    return MailChannel(Secret(url, "notify_smtp"), "legation@example.com", to, FakeClock(NOW), **options)


@pytest.fixture
def certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Of a host that is not loopback by its name, and that this test finds here all the same."""
    look_up = socket.getaddrinfo

    def found_here(host: str, *args: Any, **kwargs: Any) -> Any:
        return look_up("127.0.0.1" if host == NAME else host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", found_here)
    return make_certificate(tmp_path, NAME)


async def test_a_notice_arrives_as_plain_text_with_a_link() -> None:
    async with sinking() as sink:
        await mail(sink.url(), ("ops@example.com", "alice@example.com")).send(
            notice(reviewers=["ops"], injection_risk=True, why="no-supervisor")
        )
    (letter,) = sink.letters
    message = letter.message
    assert letter.sender == message["From"] == "legation@example.com"
    assert letter.recipients == ["ops@example.com", "alice@example.com"]
    assert set(message.keys()) == HEADERS
    assert message["Auto-Submitted"] == "auto-generated"
    assert message["Subject"].strip() == (
        "[Legation] Approval needed: filesystem.write_file by claude, 5m0s left"
    )
    assert message["Date"] == "Tue, 14 Nov 2023 22:13:20 -0000"
    assert message.get_content_type() == "text/plain"
    lines = message.get_content().splitlines()
    assert "Tool:       filesystem.write_file (edit)" in lines
    assert "Arguments:  content, path (42 bytes; they are not in this mail)" in lines
    assert "Why you:    no supervisor is there to decide" in lines
    assert "Reviewers:  ops" in lines
    assert any(line.startswith("Careful:") for line in lines)
    assert lines[-1] == "https://legation.example/ui/inbox/apr_01hf7yat00abcdefghjkmnpqrs"


async def test_a_repetition_has_the_same_id_and_a_reminder_refers_to_the_first() -> None:
    async with sinking() as sink:
        channel = mail(sink.url())
        for each in (notice(), notice(), notice("reminder")):
            await channel.send(each)
    first, again, reminder = (letter.message for letter in sink.letters)
    assert first["Message-ID"] == again["Message-ID"] == reminder["References"] != reminder["Message-ID"]
    assert reminder["Subject"].startswith("[Legation] Reminder: ")


HOSTILE = [
    "a\r\nBcc: evil@example.com",
    "a\n\nbody",
    "a\r.\r\n",
    "a\x00b",
    "x" * 256,
    "é" * 256,
    RTL,
    "\u2066\u200f\u2028Bcc: x\u2029\u0085",
    "=?utf-8?q?=0ABcc:_x?=",
    '"><script>, <evil@example.com>',
    "\U0001f600" * 100,
    "\ud800",
    "https://evil.example/approve",
    "",
]


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
async def test_names_that_agents_chose_change_nothing_but_themselves(name: str) -> None:
    async with sinking() as sink:
        await mail(sink.url()).send(notice(agent=name, tool=name))
    (letter,) = sink.letters
    assert letter.recipients == ["ops@example.com"]
    assert letter.raw.isascii()
    assert max(map(len, letter.raw.splitlines())) <= 998
    message = letter.message
    assert set(message.keys()) == HEADERS
    assert message.defects == []
    usual = letter_of(notice(), "legation@example.com", ("ops@example.com",), NOW).get_content()
    assert len(message.get_content().splitlines()) == len(usual.splitlines())
    for text in (message["Subject"], message.get_content().replace("\r\n", "\n")):
        assert not any(char in text for char in "\u202e\u2066\u200f\u2028\u2029\u0085\x00\r")
        assert "https://evil" not in text


PIECES = [
    "=?",
    "?=",
    "=?utf-8?q?",
    "=?utf-8?b?",
    "=0A",
    "=0D=0A",
    "Cg==",
    "\r",
    "\n",
    "\r\n",
    " ",
    "\t",
    "Bcc: x",
    ".",
    ":",
    "x" * 60,
    "é",
]
NAMES = st.text(max_size=300) | st.lists(st.sampled_from(PIECES), max_size=20).map("".join)


@given(NAMES, NAMES)
def test_no_name_at_all_adds_a_header_or_a_line(agent: str, tool: str) -> None:
    letter = letter_of(notice(agent=agent, tool=tool), "legation@example.com", ("ops@example.com",), NOW)
    raw = letter.as_bytes()
    assert raw.isascii()
    head, _, body = raw.partition(b"\r\n\r\n")
    fields = [line.split(b":")[0].decode() for line in head.split(b"\r\n") if line[:1] not in (b" ", b"\t")]
    assert sorted(fields) == sorted(HEADERS)
    assert b"\r\n.\r\n" not in body
    read = message_from_bytes(raw, policy=policy.default)  # decodes encoded words, as mail programs do
    assert not any(unicodedata.category(char).startswith(("C", "Zl", "Zp")) for char in read["Subject"])
    assert len(letter.get_content().splitlines()) == 13


def test_a_shown_name_is_cut_and_stays_readable() -> None:
    assert shown("café\u00a0server.tool") == "café server.tool"
    assert shown("x" * 50, 48) == "x" * 45 + "..."


async def test_starttls_comes_before_password_and_mail(certificate: tuple[Path, Path]) -> None:
    async with sinking(starttls=serving(*certificate), signs_in=True) as sink:
        await mail(sink.url(NAME, user="bob:pass%40word@"), tls=trusting(certificate[0])).send(notice())
    assert sink.verbs[:4] == ["EHLO", "STARTTLS", "EHLO", "AUTH"]
    assert sink.passwords == [("bob:pass@word", True)]
    assert [letter.encrypted for letter in sink.letters] == [True]


@pytest.mark.parametrize("user", ["", "bob:CANARY@"])
async def test_without_starttls_nothing_is_sent_over_a_network(
    certificate: tuple[Path, Path], user: str
) -> None:
    async with sinking(signs_in=True) as sink:
        with pytest.raises(NotDelivered, match="no STARTTLS") as failure:
            await mail(sink.url(NAME, user=user), tls=trusting(certificate[0])).send(notice())
    assert not failure.value.again
    assert (sink.passwords, sink.letters) == ([], [])
    assert set(sink.verbs) <= {"EHLO", "QUIT"}


async def test_a_refused_starttls_is_not_taken_for_one(certificate: tuple[Path, Path]) -> None:
    async with sinking({"STARTTLS": "454 not now"}, starttls=serving(*certificate), signs_in=True) as sink:
        with pytest.raises(NotDelivered, match=r"\(454\)") as failure:
            await mail(sink.url(NAME, user="bob:CANARY@"), tls=trusting(certificate[0])).send(notice())
    assert failure.value.again
    assert (sink.passwords, sink.letters) == ([], [])


@pytest.mark.parametrize("scheme", ["smtp", "smtps"])
async def test_a_certificate_that_is_not_trusted_gets_neither_password_nor_mail(
    certificate: tuple[Path, Path], tmp_path: Path, scheme: str
) -> None:
    context = serving(*certificate)
    wrong_name = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    wrong_name.load_verify_locations(certificate[0])
    tls, starttls = (context, None) if scheme == "smtps" else (None, context)
    async with sinking(tls=tls, starttls=starttls, signs_in=True) as sink:
        for host, trust in ((NAME, UNTRUSTING), ("localhost" if scheme == "smtps" else NAME, UNTRUSTING)):
            with pytest.raises(NotDelivered, match="certificate is not trusted") as failure:
                await mail(sink.url(host, scheme, "bob:CANARY@"), tls=trust).send(notice())
            assert not failure.value.again
        if scheme == "smtps":  # trusted, but for another name
            with pytest.raises(NotDelivered, match="certificate is not trusted"):
                await mail(sink.url("localhost", scheme), tls=wrong_name).send(notice())
    assert (sink.passwords, sink.letters) == ([], [])


async def test_smtps_is_encrypted_from_the_first_byte(certificate: tuple[Path, Path]) -> None:
    async with sinking(tls=serving(*certificate), signs_in=True) as sink:
        await mail(sink.url(NAME, "smtps", "bob:word@"), tls=trusting(certificate[0])).send(notice())
    assert sink.passwords == [("bob:word", True)]
    assert [letter.encrypted for letter in sink.letters] == [True]


@pytest.mark.parametrize(
    ("says", "again", "words"),
    [
        ({"greeting": "554 go away"}, False, r"refused it \(554\)"),
        ({"greeting": "421 later"}, True, r"refused it \(421\)"),
        ({"AUTH": "535 CANARY"}, False, r"refused user and password \(535\)"),
        ({"MAIL": "550 CANARY"}, False, r"refused it \(550\)"),
        ({"RCPT": "550 CANARY"}, False, r"refused every recipient \(550\)"),
        ({"RCPT": "450 greylisted"}, True, r"refused every recipient \(450\)"),
        ({"DATA": "554 CANARY"}, False, r"refused it \(554\)"),
        ({".": "452 full"}, True, r"refused it \(452\)"),
        ({".": "554 spam"}, False, r"refused it \(554\)"),
        ({"MAIL": "no SMTP"}, True, "connection failed|refused it"),
    ],
)
async def test_a_refusal_is_told_by_its_code_and_repeated_only_if_it_may_pass(
    says: dict[str, str], again: bool, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with sinking(says, signs_in=True) as sink:
        with pytest.raises(NotDelivered, match=words) as failure:
            await mail(sink.url(user="bob:CANARY@")).send(notice())
    assert failure.value.again is again
    assert "CANARY" not in str(failure.value)
    assert "CANARY" not in caplog.text
    assert sink.letters == []


async def test_if_some_recipients_are_refused_the_others_do_not_get_it_twice() -> None:
    async with sinking({"RCPT gone@example.com": "550 no"}) as sink:
        with pytest.raises(NotDelivered, match="cannot notify 1 of 2 by mail") as failure:
            await mail(sink.url(), ("gone@example.com", "ops@example.com")).send(notice())
    assert not failure.value.again
    assert [letter.recipients for letter in sink.letters] == [["ops@example.com"]]


@pytest.mark.parametrize("farewell", ["500 what", "hang"])
async def test_what_the_server_has_taken_is_delivered_whatever_follows(farewell: str) -> None:
    async with sinking({"QUIT": farewell}) as sink:
        await mail(sink.url(), step_timeout=0.2).send(notice())
    assert len(sink.letters) == 1


async def test_a_refused_connection_may_heal() -> None:
    with pytest.raises(NotDelivered, match="the connection failed") as failure:
        await mail(f"smtp://127.0.0.1:{dead_port()}").send(notice())
    assert failure.value.again


async def test_a_server_that_hangs_is_left_after_a_step() -> None:
    async with sinking({"greeting": "hang"}) as sink:
        with pytest.raises(NotDelivered, match="the connection failed") as failure:
            await mail(sink.url(), step_timeout=0.1).send(notice())
        await sink.gone.wait()
    assert failure.value.again


@pytest.mark.parametrize("verb", ["greeting", "MAIL"])
@pytest.mark.parametrize("encrypted", [True, False])
async def test_a_server_that_dribbles_is_left_after_the_bound_and_its_thread_ends(
    certificate: tuple[Path, Path], encrypted: bool, verb: str
) -> None:
    tls = serving(*certificate) if encrypted else None
    async with sinking({verb: "drip"}, tls=tls) as sink:
        url = sink.url(NAME, "smtps") if encrypted else sink.url()
        channel = mail(url, timeout=0.3, tls=trusting(certificate[0]))
        with pytest.raises(NotDelivered, match=r"took longer than 0\.3 s") as failure:
            await channel.send(notice())
        assert failure.value.again
        await sink.gone.wait()
    for thread in threading.enumerate():
        if thread.name == "legation-mail":
            thread.join(5)
            assert not thread.is_alive()


@pytest.mark.parametrize(
    "url",
    [
        "smtp://",
        "smtp://host:0",
        "smtp://host:CANARY",
        "smtp://host/CANARY",
        "smtp://host?CANARY",
        "smtp://CANARY@host",
        "imap://host",
    ],
)
def test_an_unusable_server_is_refused_without_being_shown(url: str) -> None:
    with pytest.raises(ConfigInvalid, match=r"^cannot use notify_smtp: ") as failure:
        mail(url)
    assert "CANARY" not in str(failure.value)


@pytest.mark.parametrize(
    "address", ["a<b>@c.de", "Ops <ops@c.de>", "ö@c.de", "a@b\r\nBcc: c@d", "@c.de", "a@", "a@-"]
)
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ConfigInvalid, match=r"^cannot use .* in notify_from or notify_to"):
        mail("smtp://127.0.0.1", (address,))


def test_without_the_extra_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiosmtplib", None)
    with pytest.raises(ConfigInvalid, match=r"^cannot use notify_smtp: .*legation\[mail\]"):
        mail("smtp://127.0.0.1")


def test_a_mail_for_many_says_how_many_and_which_expires_first() -> None:
    letter = letter_of(notice().with_more(16), "legation@example.com", ("ops@example.com",), NOW)
    assert letter["Subject"].startswith("[Legation] 17 approvals needed: filesystem.write_file by claude")
    assert "16 more were asked since the mail before" in letter.get_content()
