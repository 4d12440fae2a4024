"""Tells people of approvals, through every channel of the settings.

INV-1  `notify` never waits and never raises: a call at the door is not held up by a mail server.
INV-2  A channel that hangs, fails or is flooded holds up no other.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Final, Self

from legation.approvals.notify.channel import Channel, NotDelivered
from legation.approvals.notify.command import Program, clean_environment, must_be_runnable
from legation.approvals.notify.lane import Lane, OnFailure
from legation.approvals.notify.mail import Mail, mail_server, must_be_address
from legation.approvals.notify.notice import Notice
from legation.approvals.notify.webhook import Webhook, key_of, webhook_address
from legation.clock import Clock, SystemClock
from legation.errors import ConfigInvalid, LegationError
from legation.proc import Launcher
from legation.settings import Settings

__all__ = ["Channel", "NotDelivered", "Notifier", "OnFailure", "channels_of", "problems"]

# The server's time at its end, for what is under way.
EXIT_GRACE: Final = 3.0
# A channel's time to obey: a program gets TERM and 2 s, then KILL.
STOP_LIMIT: Final = 10.0


class Notifier:
    """Use it as `async with`. At exit what waits is tried once more, for `grace` seconds together; the rest is reported."""

    def __init__(
        self, channels: Iterable[Channel], clock: Clock, on_failure: OnFailure, *, grace: float = EXIT_GRACE
    ) -> None:
        self._channels = tuple(channels)
        self._clock = clock
        self._on_failure = on_failure
        self._grace = grace
        self._lanes: tuple[Lane, ...] = ()
        self._tasks: set[asyncio.Task[None]] = set()

    def notify(self, notice: Notice) -> None:
        for lane in self._lanes:
            lane.put(notice)

    @property
    def unsent(self) -> int:
        """Notices that wait or are under way, counted once for each channel."""
        return sum(lane.unsent for lane in self._lanes)

    async def __aenter__(self) -> Self:
        self._lanes = tuple(Lane(channel, self._clock, self._on_failure) for channel in self._channels)
        self._tasks = {
            asyncio.create_task(lane.run(), name=f"legation-notify-{channel.name}")
            for lane, channel in zip(self._lanes, self._channels, strict=True)
        }
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        lanes, self._lanes = self._lanes, ()
        for lane in lanes:
            lane.close()
        try:
            await _wait(self._tasks, self._grace)
        finally:
            for task in self._tasks:
                task.cancel()
            await _wait(self._tasks, STOP_LIMIT)
            for lane in lanes:
                lane.report_unsent()


async def _wait(tasks: set[asyncio.Task[None]], seconds: float) -> None:
    if tasks:
        await asyncio.wait(tasks, timeout=seconds)


def channels_of(
    settings: Settings, clock: Clock | None = None, launcher: Launcher | None = None
) -> list[Channel]:
    """Those that are set, ready to send; `ConfigInvalid` with every problem where there is one."""
    if found := problems(settings):
        lines = "".join(f"\n- {problem}" for problem in found)
        raise ConfigInvalid(f"cannot notify anybody; correct this:{lines}", {"problems": found})
    clock = clock or SystemClock()
    channels: list[Channel] = []
    if settings.notify_webhook is not None and settings.notify_webhook_secret is not None:
        channels.append(Webhook(settings.notify_webhook, settings.notify_webhook_secret, clock))
    if settings.notify_command:
        channels.append(Program(settings.notify_command, launcher=launcher))
    if settings.notify_smtp is not None and settings.notify_from is not None:
        channels.append(Mail(settings.notify_smtp, settings.notify_from, settings.notify_to, clock))
    return channels


def problems(settings: Settings, environ: Mapping[str, str] | None = None) -> list[str]:
    """All that keeps a channel from working and can be told without using it."""
    return [*_webhook_problems(settings), *_command_problems(settings, environ), *_mail_problems(settings)]


def _webhook_problems(settings: Settings) -> list[str]:
    url, secret = settings.notify_webhook, settings.notify_webhook_secret
    found = []
    if url is not None and secret is None:
        found.append("cannot use notify_webhook without a key to sign with: set notify_webhook_secret")
    if url is None and secret is not None:
        found.append("cannot use notify_webhook_secret without an address: set notify_webhook, or remove it")
    if url is not None:
        found += _complaint(lambda: webhook_address(url))
    if secret is not None:
        found += _complaint(lambda: key_of(secret))
    return found


def _command_problems(settings: Settings, environ: Mapping[str, str] | None) -> list[str]:
    if not settings.notify_command:
        return []
    environment = clean_environment(os.environ if environ is None else environ)
    return _complaint(lambda: must_be_runnable(settings.notify_command, environment))


def _mail_problems(settings: Settings) -> list[str]:
    server, sender, recipients = settings.notify_smtp, settings.notify_from, settings.notify_to
    found = []
    if server is None and recipients:
        found.append("cannot use notify_to without a mail server: set notify_smtp, or remove it")
    if server is not None:
        found += _complaint(lambda: mail_server(server))
        if sender is None:
            found.append("cannot use notify_smtp without a sender: set notify_from")
        if not recipients:
            found.append("cannot use notify_smtp without recipients: set notify_to")
    for address in (*([sender] if sender else []), *recipients):
        found += _complaint(lambda address=address: must_be_address(address))  # type: ignore[misc]
    return found


def _complaint(check: Callable[[], object]) -> list[str]:
    try:
        check()
    except LegationError as error:
        return [error.message]
    return []
