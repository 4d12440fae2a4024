"""Against a real receiver on a real socket."""

import base64
import hashlib
import hmac
import logging
from pathlib import Path

import msgspec
import pytest
from tests.approvals.installation import NOW
from tests.approvals.notify.notices import notice, serving, trusting
from tests.approvals.notify.webhook_server import Received, dead_port, receiving
from tests.certificates import make_certificate

from legation.approvals.notify import ApprovalNotice, NotDelivered
from legation.approvals.notify.webhook import WebhookChannel, verify
from legation.errors import ConfigInvalid, InvalidParams, Unauthenticated
from legation.secret import Secret
from legation.testing.clock import FakeClock

KEY = "a key of at least 16 characters".replace(" ", "-")
NOW_S = NOW / 1000


def webhook(
    url: str, key: str = KEY, *, timeout: float = 10.0, clock: FakeClock | None = None
) -> WebhookChannel:
    secret = Secret(key, "notify_webhook_secret")
    return WebhookChannel(Secret(url, "notify_webhook"), secret, clock or FakeClock(NOW), timeout=timeout)


async def test_a_notice_arrives_signed_and_the_shipped_check_accepts_it() -> None:
    async with receiving(200) as receiver:
        await webhook(receiver.url("/hook?a=b%20c")).send(notice())
    (got,) = receiver.received
    assert got.target == "/hook?a=b%20c"
    assert got.headers["content-type"] == "application/json"
    assert "authorization" not in got.headers
    assert verify(KEY, got.headers, got.body, now=NOW_S) == notice().id
    assert msgspec.json.decode(got.body, type=ApprovalNotice) == notice()


async def test_the_signature_is_the_one_that_standard_webhooks_describes() -> None:
    raw = bytes(range(32))
    async with receiving(204) as receiver:
        await webhook(receiver.url(), f"whsec_{base64.b64encode(raw).decode()}").send(notice())
    (got,) = receiver.received
    signed = f"{got.headers['webhook-id']}.{got.headers['webhook-timestamp']}.{got.body.decode()}"
    digest = hmac.new(raw, signed.encode(), hashlib.sha256).digest()
    assert got.headers["webhook-signature"] == f"v1,{base64.b64encode(digest).decode()}"
    assert got.headers["webhook-timestamp"] == str(NOW // 1000)


def test_the_check_agrees_with_the_published_example() -> None:
    headers = {
        "Webhook-Id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "Webhook-Timestamp": "1614265330",
        "Webhook-Signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }
    body = b'{"test": 2432232314}'
    assert verify("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", headers, body, now=1614265330).startswith("msg_")


async def test_each_attempt_has_the_same_id_and_a_time_and_signature_of_its_own() -> None:
    clock = FakeClock(NOW)
    async with receiving(500, 200, 200) as receiver:
        channel = webhook(receiver.url(), clock=clock)
        with pytest.raises(NotDelivered):
            await channel.send(notice())
        clock.advance(400)  # longer than receivers tolerate
        await channel.send(notice())
        await channel.send(notice("reminder"))
    first, second, reminder = receiver.received
    assert first.headers["webhook-id"] == second.headers["webhook-id"] != reminder.headers["webhook-id"]
    assert first.body == second.body
    assert first.headers["webhook-signature"] != second.headers["webhook-signature"]
    assert verify(KEY, second.headers, second.body, now=NOW_S + 400)


async def signed() -> Received:
    async with receiving(200) as receiver:
        await webhook(receiver.url()).send(notice())
    return receiver.received[0]


async def test_the_check_refuses_what_was_changed_is_old_or_is_not_signed() -> None:
    got = await signed()
    verify(Secret(KEY), got.headers, got.body, now=NOW_S + 300)
    bad: list[tuple[str, dict[str, str], bytes, float]] = [
        (KEY + "x", got.headers, got.body, NOW_S),
        (KEY, got.headers, got.body.replace(b"claude", b"clause"), NOW_S),
        (KEY, got.headers | {"webhook-id": "other"}, got.body, NOW_S),
        (KEY, got.headers | {"webhook-timestamp": str(NOW // 1000 + 1)}, got.body, NOW_S),
        (KEY, got.headers | {"webhook-timestamp": "soon"}, got.body, NOW_S),
        (KEY, got.headers | {"webhook-timestamp": "\u0661"}, got.body, NOW_S),
        (KEY, got.headers | {"webhook-signature": ""}, got.body, NOW_S),
        (KEY, got.headers | {"webhook-signature": "v1,\u00e9"}, got.body, NOW_S),
        (KEY, {k: v for k, v in got.headers.items() if k != "webhook-signature"}, got.body, NOW_S),
        (KEY, got.headers, got.body, NOW_S + 301),
        (KEY, got.headers, got.body, NOW_S - 301),
    ]
    for secret, headers, body, now in bad:
        with pytest.raises(Unauthenticated, match=r"^cannot accept"):
            verify(secret, headers, body, now=now)


async def test_the_check_finds_ours_among_several_signatures() -> None:
    got = await signed()
    several = f"v1a,xyz v1,b3RoZXI= {got.headers['webhook-signature']}"
    assert verify(KEY, got.headers | {"webhook-signature": several}, got.body, now=NOW_S)


@pytest.mark.parametrize(
    ("status", "again"),
    [
        (500, True),
        (503, True),
        (408, True),
        (429, True),
        (400, False),
        (401, False),
        (404, False),
        (410, False),
    ],
)
async def test_only_what_time_may_heal_is_worth_a_repetition(status: int, again: bool) -> None:
    async with receiving(status) as receiver:
        with pytest.raises(
            NotDelivered, match=f"^cannot notify by webhook: it answered {status};"
        ) as failure:
            await webhook(receiver.url()).send(notice())
    assert failure.value.again is again


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed(status: int) -> None:
    async with receiving(200) as elsewhere:
        answer = f"HTTP/1.1 {status} X\r\nLocation: {elsewhere.url()}\r\nContent-Length: 0\r\n\r\n"
        async with receiving(answer) as receiver:
            with pytest.raises(NotDelivered, match="redirect") as failure:
                await webhook(receiver.url()).send(notice())
    assert not failure.value.again
    assert elsewhere.received == []


async def test_a_refused_connection_is_a_failure_that_may_heal() -> None:
    with pytest.raises(NotDelivered, match="the connection failed") as failure:
        await webhook(f"http://127.0.0.1:{dead_port()}/hook").send(notice())
    assert failure.value.again


@pytest.mark.parametrize("answer", ["cut", "no HTTP at all\r\n\r\n"])
async def test_an_answer_that_is_none_is_a_failure_that_may_heal(answer: str) -> None:
    async with receiving(answer) as receiver:
        with pytest.raises(NotDelivered, match="the connection failed") as failure:
            await webhook(receiver.url()).send(notice())
    assert failure.value.again


async def test_a_receiver_that_hangs_is_left_after_the_bound() -> None:
    async with receiving("hang") as receiver:
        with pytest.raises(NotDelivered, match=r"no answer within 0\.1 s") as failure:
            await webhook(receiver.url(), timeout=0.1).send(notice())
        await receiver.gone.wait()
    assert failure.value.again


async def test_an_endless_answer_is_not_read() -> None:
    async with receiving("flood") as receiver:
        await webhook(receiver.url()).send(notice())
        await receiver.gone.wait()


async def test_credentials_of_the_address_are_sent_and_in_no_log_and_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    async with receiving(200, 500, "cut") as receiver:
        url = receiver.url("/hook/PATHCANARY?key=QUERYCANARY", user="bob:PASS%40CANARY@")
        channel = webhook(url)
        await channel.send(notice())
        for _ in range(2):
            with pytest.raises(NotDelivered) as failure:
                await channel.send(notice())
            assert "CANARY" not in repr(failure.value)
    got = receiver.received[0]
    assert got.target == "/hook/PATHCANARY?key=QUERYCANARY"
    assert got.headers["authorization"] == f"Basic {base64.b64encode(b'bob:PASS@CANARY').decode()}"
    assert "httpx2" in {record.name for record in caplog.records}  # the client does log what it is asked for
    assert "CANARY" not in caplog.text
    assert KEY not in caplog.text
    assert "CANARY" not in repr(vars(channel))


async def test_tls_is_verified_name_and_all(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path, "localhost")
    async with receiving(200, tls=serving(certificate, key)) as receiver:
        secret = Secret(KEY)

        def to(host: str, **trust: object) -> WebhookChannel:
            url = Secret(receiver.url(scheme="https", host=host), "notify_webhook")
            return WebhookChannel(url, secret, FakeClock(NOW), **trust)  # type: ignore[arg-type]

        await to("localhost", tls=trusting(certificate)).send(notice())
        for channel in (to("localhost"), to("127.0.0.1", tls=trusting(certificate))):
            with pytest.raises(NotDelivered, match="certificate is not trusted") as failure:
                await channel.send(notice())
            assert not failure.value.again
    assert len(receiver.received) == 1


@pytest.mark.parametrize(
    "url",
    [
        "https://",
        "https://:443/x",
        "https://host:99999/CANARY",
        "https://host:port/CANARY",
        "https://[::1/CANARY",
        "ftp://host/CANARY",
        "http://bob:CANARY@hooks.example/x",
        "https://host/\x7fCANARY",
    ],
)
def test_an_unusable_address_is_refused_without_being_shown(url: str) -> None:
    with pytest.raises(ConfigInvalid, match=r"^cannot use notify_webhook: ") as failure:
        webhook(url)
    assert "CANARY" not in str(failure.value)


def test_a_key_that_says_base64_and_is_not_is_refused() -> None:
    with pytest.raises(
        InvalidParams, match=r"^cannot use notify_webhook_secret: .* is not base64"
    ) as failure:
        webhook("https://host/x", "whsec_not*base64*CANARY")
    assert "CANARY" not in str(failure.value)
