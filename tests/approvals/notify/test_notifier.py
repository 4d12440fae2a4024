"""Queues, pauses and the end, with channels of the test's own and with real receivers."""

import asyncio
import gc
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.approvals.installation import MINUTE, NOW
from tests.approvals.notify.notices import LIMIT, notice
from tests.approvals.notify.webhook_server import dead_port, receiving

from legation.approvals.notify import ApprovalNotice, NotDelivered, Notifier, channels_of, problems
from legation.approvals.notify.command import CommandChannel
from legation.approvals.notify.mail import MailChannel
from legation.approvals.notify.notifier import GATHER, MOST_WAITING, PAUSES
from legation.approvals.notify.webhook import WebhookChannel
from legation.errors import ConfigInvalid
from legation.secret import Secret
from legation.settings import Settings, load
from legation.testing.clock import FakeClock

KEY = Secret("sixteen-letters-", "notify_webhook_secret")


@dataclass
class Recorder:
    """Fails as told, then delivers."""

    failures: list[Exception] = field(default_factory=list)
    name: str = "recorder"
    gathers: bool = False
    attempts: list[ApprovalNotice] = field(default_factory=list)
    delivered: asyncio.Queue[ApprovalNotice] = field(default_factory=asyncio.Queue)

    async def send(self, notice: ApprovalNotice) -> None:
        self.attempts.append(notice)
        if self.failures:
            raise self.failures.pop(0)
        self.delivered.put_nowait(notice)


@dataclass
class Hanging:
    name: str = "hanging"
    gathers: bool = False
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: bool = False

    async def send(self, notice: ApprovalNotice) -> None:  # noqa: ARG002
        self.begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise


@dataclass
class Failures:
    told: list[tuple[str, str]] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def __call__(self, channel: str, why: str) -> None:
        self.told.append((channel, why))
        self.changed.set()

    async def until(self, count: int) -> None:
        async with asyncio.timeout(LIMIT):
            while len(self.told) < count:
                self.changed.clear()
                await self.changed.wait()


async def delivered(channel: Recorder) -> ApprovalNotice:
    return await asyncio.wait_for(channel.delivered.get(), LIMIT)


def passing(words: str = "cannot notify by recorder: busy; wait") -> NotDelivered:
    return NotDelivered(words)


def webhook_to(url: str, clock: FakeClock) -> WebhookChannel:
    return WebhookChannel(Secret(url, "notify_webhook"), KEY, clock, timeout=5)


async def test_every_channel_gets_every_notice_in_order() -> None:
    first, second, failures = Recorder(), Recorder(), Failures()
    sent = [notice(id=f"apr_{n}") for n in range(5)]
    async with Notifier([first, second], FakeClock(NOW), failures) as notifier:
        for each in sent:
            notifier.notify(each)
        for channel in (first, second):
            assert [await delivered(channel) for _ in sent] == sent
    assert failures.told == []


async def test_it_tries_again_three_times_after_growing_pauses_and_then_says_so() -> None:
    clock, failures = FakeClock(NOW), Failures()
    channel = Recorder([passing() for _ in range(4)])
    async with Notifier([channel], clock, failures) as notifier:
        notifier.notify(notice())
        for tries, pause in enumerate(PAUSES, start=1):
            await clock.until_sleeping()
            assert len(channel.attempts) == tries
            clock.advance(pause - 0.001)
            await asyncio.sleep(0)
            assert len(channel.attempts) == tries
            clock.advance(0.001)
        await failures.until(1)
    assert channel.attempts == [notice()] * 4
    assert failures.told == [
        (
            "recorder",
            "cannot notify by recorder: busy; wait (approval apr_01hf7yat00abcdefghjkmnpqrs, attempt 4)",
        )
    ]


async def test_a_real_receiver_that_fails_once_gets_it_at_the_second_attempt() -> None:
    clock, failures = FakeClock(NOW), Failures()
    async with (
        receiving(500, 200) as receiver,
        Notifier([webhook_to(receiver.url(), clock)], clock, failures) as notifier,
    ):
        notifier.notify(notice())
        await clock.until_sleeping()
        clock.advance(PAUSES[0])
        async with asyncio.timeout(LIMIT):
            first, second = await receiver.arrived.get(), await receiver.arrived.get()
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert failures.told == []


async def test_what_cannot_heal_is_not_tried_again_and_the_next_one_goes_on() -> None:
    failures = Failures()
    channel = Recorder([NotDelivered("cannot notify by recorder: no", again=False), RuntimeError("a defect")])
    async with Notifier([channel], FakeClock(NOW), failures) as notifier:
        for n in range(3):
            notifier.notify(notice(id=f"apr_{n}"))
        assert (await delivered(channel)).approval_id == "apr_2"
    assert [why.partition(";")[0] for _, why in failures.told] == [
        "cannot notify by recorder: no (approval apr_0, attempt 1)",
        "cannot notify by recorder: the channel is defective",
    ]


async def test_a_channel_that_hangs_holds_up_no_other_and_not_the_end() -> None:
    hanging, healthy, failures = Hanging(), Recorder(), Failures()
    async with Notifier([hanging, healthy], FakeClock(NOW), failures, grace=0.05) as notifier:
        for n in range(3):
            notifier.notify(notice(id=f"apr_{n}"))
        for n in range(3):
            assert (await delivered(healthy)).approval_id == f"apr_{n}"
        await hanging.begun.wait()
        assert notifier.unsent == 3
    assert hanging.cancelled
    assert failures.told == [
        ("hanging", "cannot notify by hanging: 3 notices were not sent before the end; look at the approvals")
    ]


async def test_nobody_is_told_of_an_approval_that_has_expired() -> None:
    clock, failures = FakeClock(NOW), Failures()
    channel = Recorder([passing()])
    async with Notifier([channel], clock, failures) as notifier:
        notifier.notify(notice(expires_at=NOW + 500))
        await clock.until_sleeping()
        clock.advance(PAUSES[0])
        await failures.until(1)
        notifier.notify(notice(id="apr_next"))
        assert (await delivered(channel)).approval_id == "apr_next"
    assert len(channel.attempts) == 2
    assert "expired before its notice was sent" in failures.told[0][1]


async def test_the_end_waits_for_what_is_under_way_and_gives_what_waits_one_attempt() -> None:
    clock, failures, go = FakeClock(NOW), Failures(), asyncio.Event()

    class Slow(Recorder):
        async def send(self, notice: ApprovalNotice) -> None:
            await go.wait()
            await super().send(notice)

    channel = Slow()
    async with Notifier([channel], clock, failures, grace=LIMIT) as notifier:
        for n in range(3):
            notifier.notify(notice(id=f"apr_{n}"))
        asyncio.get_running_loop().call_soon(go.set)
    assert channel.delivered.qsize() == 3
    assert failures.told == []


async def test_the_end_does_not_wait_for_a_pause() -> None:
    clock, failures = FakeClock(NOW), Failures()
    channel = Recorder([passing()])
    async with Notifier([channel], clock, failures, grace=LIMIT) as notifier:
        notifier.notify(notice())
        await clock.until_sleeping()
    assert len(channel.attempts) == 1
    assert len(failures.told) == 1


async def test_before_and_after_it_runs_a_notice_is_no_error() -> None:
    channel = Recorder()
    notifier = Notifier([channel], FakeClock(NOW), Failures())
    notifier.notify(notice())
    async with notifier:
        pass
    notifier.notify(notice())
    assert channel.attempts == []


async def test_without_channels_it_does_nothing() -> None:
    async with Notifier([], FakeClock(NOW), Failures()) as notifier:
        notifier.notify(notice())
        assert notifier.unsent == 0


async def test_whoever_listens_to_failures_cannot_stop_the_lane(caplog: pytest.LogCaptureFixture) -> None:
    def defective(_channel: str, _why: str) -> None:
        raise RuntimeError("listener")

    channel = Recorder([NotDelivered("cannot", again=False)])
    async with Notifier([channel], FakeClock(NOW), defective) as notifier:
        notifier.notify(notice(id="apr_1"))
        notifier.notify(notice(id="apr_2"))
        assert (await delivered(channel)).approval_id == "apr_2"
    assert "cannot report a failure of notifications" in caplog.text


@pytest.mark.heavy
async def test_a_flood_with_a_dead_receiver_keeps_memory_bounded_and_the_newest() -> None:
    clock, failures = FakeClock(NOW), Failures()
    flood = 10_000
    channel = webhook_to(f"http://127.0.0.1:{dead_port()}/", clock)
    async with Notifier([channel], clock, failures, grace=0.0) as notifier:
        notifier.notify(notice(id="apr_first"))
        await clock.until_sleeping()  # it was refused and will be tried again
        gc.collect()
        tracemalloc.start()
        try:
            for n in range(flood):
                notifier.notify(notice(id=f"apr_{n}", expires_at=NOW + 5 * MINUTE))
                if n % 1000 == 0:
                    await asyncio.sleep(0)
            gc.collect()
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert notifier.unsent == MOST_WAITING + 1
        assert held < 2_000_000
        assert len(failures.told) == 1
        assert "the oldest are dropped" in failures.told[0][1]
    assert f"{flood - MOST_WAITING} notices were dropped" in failures.told[-1][1]


async def test_of_too_many_the_newest_are_sent() -> None:
    hold, failures = asyncio.Event(), Failures()

    class Slow(Recorder):
        async def send(self, notice: ApprovalNotice) -> None:
            await hold.wait()
            await super().send(notice)

    channel = Slow()
    async with Notifier([channel], FakeClock(NOW), failures) as notifier:
        notifier.notify(notice(id="apr_under_way"))
        await asyncio.sleep(0)
        for n in range(MOST_WAITING + 3):
            notifier.notify(notice(id=f"apr_{n}"))
        hold.set()
        got = [(await delivered(channel)).approval_id for _ in range(MOST_WAITING + 1)]
    assert got == ["apr_under_way", *(f"apr_{n}" for n in range(3, MOST_WAITING + 3))]
    assert "3 notices were dropped" in failures.told[-1][1]


@pytest.fixture
def settings(tmp_path: Path) -> Callable[..., Settings]:
    def make(**values: str) -> Settings:
        return load(
            {}, {"HOME": str(tmp_path), **{f"LEGATION_NOTIFY_{k.upper()}": v for k, v in values.items()}}
        )

    return make


def test_the_settings_name_the_channels(settings: Callable[..., Settings]) -> None:
    assert channels_of(settings()) == []
    all_of_them = settings(
        webhook="https://hooks.example/x",
        webhook_secret="sixteen-letters-",
        command="sh -c 'cat >&2'",
        smtp="smtps://bob:word@mail.example",
        to="ops@example.com,alice@example.com",
        **{"from": "legation@example.com"},
    )
    assert [channel.name for channel in channels_of(all_of_them)] == ["webhook", "command", "mail"]


def test_all_problems_are_listed_at_once_and_show_no_secret(settings: Callable[..., Settings]) -> None:
    wrong = settings(
        webhook="http://bob:CANARY@hooks.example/x",
        command="./notify",
        smtp="smtp://CANARY@mail.example",
        to="Ops<ops@example.com>",
    )
    found = problems(wrong)
    assert [each.partition(":")[0] for each in found] == [
        "cannot use notify_webhook without a key to sign with",
        "cannot use notify_webhook",
        "cannot use notify_command",
        "cannot use notify_smtp",
        "cannot use notify_smtp without a sender",
        "cannot use 'Ops<ops@example.com>' in notify_from or notify_to",
    ]
    assert not any("CANARY" in each for each in found)
    with pytest.raises(ConfigInvalid) as failure:
        channels_of(wrong)
    assert failure.value.data == {"problems": found}


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"webhook_secret": "sixteen-letters-"}, "cannot use notify_webhook_secret without an address"),
        (
            {"webhook": "https://h/", "webhook_secret": "whsec_----------"},
            "cannot use notify_webhook_secret: ",
        ),
        ({"to": "a@b.de"}, "cannot use notify_to without a mail server"),
        ({"smtp": "smtp://h", "from": "a@b.de"}, "cannot use notify_smtp without recipients"),
        ({"smtp": "smtp://h", "to": "a@b.de"}, "cannot use notify_smtp without a sender"),
        ({"command": "no-such-program-here"}, "cannot use notify_command: there is no program"),
    ],
)
def test_half_a_channel_is_a_problem(
    settings: Callable[..., Settings], values: dict[str, str], problem: str
) -> None:
    (found,) = problems(settings(**values))
    assert found.startswith(problem)


# Many at once, for people.


def asked(number: int, left_ms: int = 5 * MINUTE) -> ApprovalNotice:
    return notice(id=f"apr_{number:04d}", expires_at=NOW + left_ms)


async def test_a_burst_is_one_notice_at_once_and_one_a_minute_later() -> None:
    clock, channel = FakeClock(NOW), Recorder(gathers=True)
    async with Notifier([channel], clock, Failures()) as notifier:
        notifier.notify(asked(0))
        first = await delivered(channel)
        assert (first.approval_id, first.more) == ("apr_0000", 0)
        for number in range(1, 401):
            notifier.notify(asked(number, (4 if number == 400 else 5) * MINUTE))
        await clock.until_sleeping()
        clock.advance(GATHER - 1)
        assert len(channel.attempts) == 1
        clock.advance(1)
        digest = await delivered(channel)
        assert (digest.approval_id, digest.more) == ("apr_0400", 399)
        notifier.notify(asked(500))
        await clock.until_sleeping()
        clock.advance(GATHER)
        assert (await delivered(channel)).more == 0
    assert len(channel.attempts) == 3


async def test_one_that_expires_before_goes_earlier() -> None:
    clock, channel = FakeClock(NOW), Recorder(gathers=True)
    async with Notifier([channel], clock, Failures()) as notifier:
        notifier.notify(asked(0))
        await delivered(channel)
        notifier.notify(asked(1))
        await clock.until_sleeping()
        notifier.notify(asked(2, 40_000))
        for _ in range(100):
            await asyncio.sleep(0)  # until it sleeps for less: nothing but turns of the loop is between
        clock.advance(20)
        digest = await delivered(channel)
        assert (digest.approval_id, digest.more) == ("apr_0002", 1)


async def test_at_the_end_what_was_gathered_goes_at_once() -> None:
    clock, channel = FakeClock(NOW), Recorder(gathers=True)
    async with Notifier([channel], clock, Failures()) as notifier:
        for number in range(3):
            notifier.notify(asked(number))
    assert sum(1 + each.more for each in channel.attempts) == 3
    assert len(channel.attempts) <= 2


async def test_a_programs_channel_hears_of_each() -> None:
    clock, channel = FakeClock(NOW), Recorder()
    async with Notifier([channel], clock, Failures()) as notifier:
        for number in range(20):
            notifier.notify(asked(number))
        assert [(await delivered(channel)).more for _ in range(20)] == [0] * 20


def test_mails_and_commands_are_gathered_and_webhooks_are_not() -> None:
    assert (MailChannel.gathers, CommandChannel.gathers, WebhookChannel.gathers) == (True, True, False)
