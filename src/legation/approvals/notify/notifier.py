"""Tells people of approvals, through every channel of the settings.

INV-1  `notify` never waits and never raises: a call at the door is not held up by a mail server.
INV-2  A channel that hangs, fails or is flooded holds up no other.

Of each channel:

INV-Q1  What waits is bounded. Of too many the newest stay: the older ones are nearer to their end or answered already,
        and each has a reminder to come.
INV-Q2  A channel that people read is used at most once in `GATHER` seconds, whatever an agent does: the first notice goes
        at once, those that come within that time go together, as one. One that would expire before goes earlier, but
        never sooner than `LEAST_GAP` after the last.
INV-Q3  A notice is tried at most four times, never after its approval has expired, and what is given up is reported.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Final, ParamSpec, Self, TypeAlias

from legation.approvals.notify.command import CommandChannel, clean_environment, must_be_runnable
from legation.approvals.notify.mail import MailChannel, mail_server, must_be_address
from legation.approvals.notify.notice import ApprovalNotice, NotDelivered, NoticeChannel
from legation.approvals.notify.webhook import WebhookChannel, key_of, webhook_address
from legation.clock import Clock, SystemClock
from legation.errors import ConfigInvalid, LegationError
from legation.proc import Launcher
from legation.settings import Settings

P = ParamSpec("P")
OnFailure: TypeAlias = Callable[[str, str], None]
"""Gets the channel's name and why: words that start with "cannot" and hold no secret."""

log = logging.getLogger(__name__)

MOST_WAITING: Final = 256
# The reader's time between two notices, and where one of those that wait is urgent.
GATHER: Final = 60.0
LEAST_GAP: Final = 10.0
# The receiver's time to come back, before each of the three repetitions.
PAUSES: Final = (1.0, 5.0, 25.0)
# A channel's time for one attempt. Each has a shorter one of its own: this is for those that have none.
ATTEMPT_LIMIT: Final = 60.0
# The server's time at its end, for what is under way.
EXIT_GRACE: Final = 3.0
# A channel's time to obey: a program gets TERM and 2 s, then KILL.
STOP_LIMIT: Final = 10.0


class ChannelQueue:
    """The notices on their way through one channel: a bounded queue and the one task that empties it."""

    def __init__(
        self,
        channel: NoticeChannel,
        clock: Clock,
        on_failure: OnFailure,
        *,
        attempt_limit: float = ATTEMPT_LIMIT,
    ) -> None:
        self._channel = channel
        self._clock = clock
        self._on_failure = on_failure
        self._attempt_limit = attempt_limit
        self._waiting: deque[ApprovalNotice] = deque()
        self._current: ApprovalNotice | None = None
        self._dropped = 0  # since the queue was empty last
        self._folded = 0  # of a channel that gathers: dropped from the queue, but counted in the next notice
        self._sent_at: float | None = None  # of a channel that gathers
        self._due = math.inf  # when half the time is over that the most urgent one had
        self._changed = asyncio.Event()
        self._closing = asyncio.Event()

    @property
    def unsent(self) -> int:
        return len(self._waiting) + (self._current is not None)

    def put(self, notice: ApprovalNotice) -> None:
        if len(self._waiting) >= MOST_WAITING:
            self._waiting.popleft()
            self._folded += self._channel.gathers
            self._dropped += not self._channel.gathers
            if self._dropped == 1:
                self._report(
                    f"more than {MOST_WAITING} notices wait; the oldest are dropped until it keeps up"
                )
        self._waiting.append(notice)
        left = (notice.expires_ms - self._clock.now_ms()) / 1000
        self._due = min(self._due, self._clock.monotonic() + left / 2)
        self._changed.set()

    def close(self) -> None:
        """Have each notice tried once more at most from now on, without a pause."""
        self._closing.set()
        self._changed.set()

    async def run(self) -> None:
        """Send what comes, until closed and empty."""
        while True:
            while self._waiting:
                await self._until_due()
                self._current = self._next()
                await self._deliver(self._current)
                self._current = None
            self._report_dropped()
            if self._closing.is_set():
                return
            self._changed.clear()
            await self._changed.wait()

    async def _until_due(self) -> None:
        """Wait until a channel that gathers may be used again. What comes meanwhile may be urgent."""
        while (left := self._seconds_left()) > 0 and not self._closing.is_set():
            self._changed.clear()
            await self._paused(left, self._changed)

    def _seconds_left(self) -> float:
        if not self._channel.gathers or self._sent_at is None:
            return 0
        due = max(min(self._sent_at + GATHER, self._due), self._sent_at + LEAST_GAP)
        return due - self._clock.monotonic()

    def _next(self) -> ApprovalNotice:
        if not self._channel.gathers:
            return self._waiting.popleft()
        now = self._clock.now_ms()
        waiting = sorted(self._waiting, key=lambda notice: notice.expires_ms)
        still = [notice for notice in waiting if not notice.expired(now)] or waiting[-1:]
        more, self._folded = len(still) - 1 + self._folded, 0
        self._waiting.clear()
        self._due = math.inf
        self._sent_at = self._clock.monotonic()
        return still[0].with_more(more)

    def report_unsent(self) -> None:
        """Report what is left after the end of `run`, however that came."""
        if self.unsent:
            self._report(f"{self.unsent} notices were not sent before the end; look at the approvals")
        self._report_dropped()

    async def _deliver(self, notice: ApprovalNotice) -> None:
        for attempt, pause in enumerate((*PAUSES, None), start=1):
            if notice.expired(self._clock.now_ms()):
                return self._report(
                    f"approval {notice.approval_id} expired before its notice was sent; check the channel"
                )
            failure = await self._attempt(notice)
            if failure is None:
                return None
            if failure.again and pause is not None and await self._paused(pause):
                continue
            others = f" and {notice.more} more" if notice.more else ""
            return self._tell(f"{failure.message} (approval {notice.approval_id}{others}, attempt {attempt})")
        return None

    async def _attempt(self, notice: ApprovalNotice) -> NotDelivered | None:
        name = self._channel.name
        try:
            async with asyncio.timeout(self._attempt_limit):
                await self._channel.send(notice)
        except NotDelivered as failure:
            return failure
        except TimeoutError:
            return NotDelivered(
                f"cannot notify by {name}: it took longer than {self._attempt_limit:g} s; check it"
            )
        except Exception:
            log.exception("cannot notify by %s: this is a defect of the channel", name)
            return NotDelivered(
                f"cannot notify by {name}: the channel is defective; see the log", again=False
            )
        return None

    async def _paused(self, seconds: float, *events: asyncio.Event) -> bool:
        """Pause, or wait for one of the events; tell whether it has passed, and not the end come first."""
        waits = [
            asyncio.ensure_future(self._clock.sleep(seconds)),
            *(asyncio.ensure_future(event.wait()) for event in (self._closing, *events)),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return not self._closing.is_set()

    def _report_dropped(self) -> None:
        if self._dropped:
            dropped, self._dropped = self._dropped, 0
            self._report(
                f"{dropped} notices were dropped because it could not keep up; look at the approvals"
            )

    def _report(self, why: str) -> None:
        self._tell(f"cannot notify by {self._channel.name}: {why}")

    def _tell(self, why: str) -> None:
        try:
            self._on_failure(self._channel.name, why)
        except Exception:  # whoever listens must not stop the queue
            log.exception("cannot report a failure of notifications")


class Notifier:
    """The channels of a server. `async with` it: at exit what waits is tried once more, for `grace` seconds together; the rest is reported."""

    def __init__(
        self,
        channels: Iterable[NoticeChannel],
        clock: Clock,
        on_failure: OnFailure,
        *,
        grace: float = EXIT_GRACE,
    ) -> None:
        self._channels = tuple(channels)
        self._clock = clock
        self._on_failure = on_failure
        self._grace = grace
        self._queues: tuple[ChannelQueue, ...] = ()
        self._tasks: set[asyncio.Task[None]] = set()

    def notify(self, notice: ApprovalNotice) -> None:
        for queue in self._queues:
            queue.put(notice)

    @property
    def unsent(self) -> int:
        """Count the notices that wait or are under way, once for each channel."""
        return sum(queue.unsent for queue in self._queues)

    async def __aenter__(self) -> Self:
        self._queues = tuple(
            ChannelQueue(channel, self._clock, self._on_failure) for channel in self._channels
        )
        self._tasks = {
            asyncio.create_task(queue.run(), name=f"legation-notify-{channel.name}")
            for queue, channel in zip(self._queues, self._channels, strict=True)
        }
        return self

    async def __aexit__(self, *_: object) -> None:
        queues, self._queues = self._queues, ()
        if not queues:  # `asyncio.wait` wants something to wait for
            return
        for queue in queues:
            queue.close()
        try:
            await asyncio.wait(self._tasks, timeout=self._grace)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks, timeout=STOP_LIMIT)
            for queue in queues:
                queue.report_unsent()


def channels_of(
    settings: Settings, clock: Clock | None = None, launcher: Launcher | None = None
) -> list[NoticeChannel]:
    """Make those that are set, ready to send; `ConfigInvalid` with every problem where there is one."""
    if found := problems(settings):
        lines = "".join(f"\n- {problem}" for problem in found)
        raise ConfigInvalid(f"cannot notify anybody; correct this:{lines}", {"problems": found})
    clock = clock or SystemClock()
    channels: list[NoticeChannel] = []
    if settings.notify_webhook is not None and settings.notify_webhook_secret is not None:
        channels.append(WebhookChannel(settings.notify_webhook, settings.notify_webhook_secret, clock))
    if settings.notify_command:
        channels.append(CommandChannel(settings.notify_command, launcher=launcher))
    if settings.notify_smtp is not None and settings.notify_from is not None:
        channels.append(MailChannel(settings.notify_smtp, settings.notify_from, settings.notify_to, clock))
    return channels


def problems(settings: Settings, environ: Mapping[str, str] | None = None) -> list[str]:
    """List all that keeps a channel from working and can be told without using it."""
    return [*_webhook_problems(settings), *_command_problems(settings, environ), *_mail_problems(settings)]


def _webhook_problems(settings: Settings) -> list[str]:
    url, secret = settings.notify_webhook, settings.notify_webhook_secret
    found = []
    if url is not None and secret is None:
        found.append("cannot use notify_webhook without a key to sign with: set notify_webhook_secret")
    if url is None and secret is not None:
        found.append("cannot use notify_webhook_secret without an address: set notify_webhook, or remove it")
    if url is not None:
        found += _complaint(webhook_address, url)
    if secret is not None:
        found += _complaint(key_of, secret)
    return found


def _command_problems(settings: Settings, environ: Mapping[str, str] | None) -> list[str]:
    if not settings.notify_command:
        return []
    environment = clean_environment(os.environ if environ is None else environ)
    return _complaint(must_be_runnable, settings.notify_command, environment)


def _mail_problems(settings: Settings) -> list[str]:
    server, sender, recipients = settings.notify_smtp, settings.notify_from, settings.notify_to
    found = []
    if server is None and recipients:
        found.append("cannot use notify_to without a mail server: set notify_smtp, or remove it")
    if server is not None:
        found += _complaint(mail_server, server)
        if sender is None:
            found.append("cannot use notify_smtp without a sender: set notify_from")
        if not recipients:
            found.append("cannot use notify_smtp without recipients: set notify_to")
    for address in (*([sender] if sender else []), *recipients):
        found += _complaint(must_be_address, address)
    return found


def _complaint(check: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> list[str]:
    try:
        check(*args, **kwargs)
    except LegationError as error:
        return [error.message]
    return []
