"""How a session is shown while it runs: as text for people, or as JSON lines for programs."""

from __future__ import annotations

import asyncio
import sys
from typing import Protocol

from legation.cli.render import Renderer
from legation.cli.terminal import Terminal
from legation.store import codec
from legation.store.subscription import Subscription
from legation.wire.ask import Approver, Ask, Decision
from legation.wire.codec import decode
from legation.wire.events import Event
from legation.wire.lifecycle import PermissionAsked


class View(Protocol):
    def show(self, event: Event) -> None: ...
    def pause(self) -> None: ...
    def end(self) -> None: ...


class JsonLines:
    """Every event as it is stored, one line each."""

    def show(self, event: Event) -> None:
        sys.stdout.buffer.write(codec.encode([event]))
        sys.stdout.buffer.flush()

    def pause(self) -> None: ...

    def end(self) -> None: ...


def view_of(*, json: bool) -> View:
    return JsonLines() if json else Renderer(Terminal())


class Screen:
    """Shows a stream's events, and lets questions wait until everything before them has been shown."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._shown: dict[str, asyncio.Event] = {}

    async def follow(self, events: Subscription) -> None:
        async for event in events:
            self._view.show(event)
            if event.type == PermissionAsked.event_type():
                asked = decode(event)
                if isinstance(asked, PermissionAsked):
                    self._mark(asked.id).set()

    async def caught_up(self, ask: Ask) -> None:
        await self._mark(ask.id).wait()

    def pause(self) -> None:
        self._view.pause()

    def end(self) -> None:
        self._view.end()

    def _mark(self, ask_id: str) -> asyncio.Event:
        return self._shown.setdefault(ask_id, asyncio.Event())


class AskedInOrder:
    """Asks another approver, once the screen has shown what led to the question."""

    def __init__(self, approver: Approver, screen: Screen) -> None:
        self._approver = approver
        self._screen = screen

    async def decide(self, ask: Ask) -> Decision:
        await self._screen.caught_up(ask)
        self._screen.pause()
        return await self._approver.decide(ask)
