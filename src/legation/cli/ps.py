"""`legation ps`: one screen of what waits for you, works, went wrong or is done. Plain `legation` is the same, where one is up."""

from __future__ import annotations

import os
from collections.abc import AsyncIterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from cyclopts import Parameter
from msgspec.structs import replace

from legation.cli.command import (
    Console,
    Json,
    PlaceFlags,
    Style,
    connect,
    connect_async,
    line,
    say_json,
    tell_outage,
)
from legation.errors import LegationError, NotFound, Unavailable

if TYPE_CHECKING:
    import asyncio

    from legation.client import AsyncLegation, Legation
    from legation.wire.api.inbox import Inbox, InboxItem
    from legation.wire.api.sessions import Recording

AGES: Final = (
    10.0  # seconds until `--watch` writes how old things are anew, where nothing is told: the reader's time
)
REST: Final = 0.2  # seconds between two readings of the list in a flood of changes: the server's time
AWAY: Final = 1.0  # seconds until a server that did not answer is asked again: its time
RECORDED: Final = 20  # of those that `exec` ran by itself, the newest: what still runs is among them
WIDEST: Final = 48  # columns of one cell: of a longer text the beginning
CLEAR: Final = "\x1b[H\x1b[2J"
_HEADS: Final[dict[str, tuple[str, Style]]] = {
    "you": ("waits for you", "yellow"),
    "wrong": ("went wrong", "red"),
    "working": ("works", "cyan"),
    "ready": ("done", "green"),
}


def ps(
    *,
    watch: Annotated[bool, Parameter(negative="", help="Stay, and show it again when it changes.")] = False,
    json: Json = False,
    settings: PlaceFlags | None = None,
) -> None:
    """Show what waits for you, works, went wrong or is done, across all sessions of the server.

    What waits comes first, by what expires next. Answer with `legation approvals approve ID`, or `deny ID`; a question with
    `legation sessions tail ID`, which asks it here. What went wrong or is done goes when it was looked at: in the browser, or
    with `legation sessions tail`. What `legation exec` runs by itself is among what works: it asks in its own terminal.
    """
    if watch:
        import asyncio  # not for `legation sessions`, which asks this module what `exec` ran

        asyncio.run(_watch(settings, InboxScreen(json=json, live=True)))
        return
    with connect(settings) as server:
        InboxScreen(json=json, live=False).show(server.inbox(), recorded(server, RECORDED))


def recorded(server: Legation, limit: int) -> list[Recording]:
    """List what `exec` ran by itself; nothing of a server that does not list it."""
    try:
        return server.recordings(limit)
    except NotFound:
        return []


class InboxScreen:
    """Screen of the list, shown once or again and again. At a terminal each time takes the place of the one before."""

    def __init__(self, *, json: bool, live: bool) -> None:
        self._out = Console()
        self._json = json
        self.repaints = live and self._out.colour and not json
        self._told: object = None

    def show(self, inbox: Inbox, recordings: Sequence[Recording], *, again: bool = False) -> None:
        """Show it unless the same was shown; `again`: in any case, since ages go on."""
        running = [each for each in recordings if each.status == "running"]
        told = (inbox.items, inbox.works, [(each.session_id, each.asks) for each in running])
        if told == self._told and not again:
            return
        self._told = told
        if self.repaints:
            self._out.write(CLEAR)
        if self._json:
            known = msgspec.to_builtins(inbox)
            say_json({**known, "recordings": msgspec.to_builtins(running)})
            return
        for text, style in lines(inbox, running):
            self._out.say(text, style)


async def _watch(settings: PlaceFlags | None, screen: InboxScreen) -> None:
    """Read the list when something is told in its stream, and when the server is back."""
    import asyncio

    look = asyncio.Event()

    def outages(error: LegationError | None) -> None:
        tell_outage(error)
        if error is None:
            look.set()

    async with connect_async(settings, outages) as server:
        inbox, recordings = await server.inbox(), await _recorded(server)
        screen.show(inbox, recordings)
        async with server.follow_inbox(inbox.seq) as changes:
            heard = asyncio.create_task(_hear(changes, look))
            try:
                while not heard.done():
                    told = await _set_within(look, AGES)
                    try:
                        if told:
                            look.clear()
                            inbox = await server.inbox()
                        recordings = await _recorded(server)  # no stream tells of what runs by itself
                    except Unavailable:  # which whoever follows the stream tells of
                        look.set()
                        await asyncio.sleep(AWAY)
                        continue
                    if not told:
                        inbox = replace(inbox, at=inbox.at + round(AGES * 1000))
                    screen.show(inbox, recordings, again=screen.repaints)
                    await asyncio.sleep(REST)
            finally:
                heard.cancel()
                await asyncio.wait({heard})
            heard.result()  # why it ended


async def _recorded(server: AsyncLegation) -> list[Recording]:
    try:
        return await server.recordings(RECORDED)
    except NotFound:
        return []


async def _hear(changes: AsyncIterable[object], look: asyncio.Event) -> None:
    try:
        async for _ in changes:
            look.set()
    finally:
        look.set()


async def _set_within(event: asyncio.Event, seconds: float) -> bool:
    from asyncio import timeout

    try:
        async with timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


def lines(inbox: Inbox, recordings: Sequence[Recording] = ()) -> Iterator[tuple[str, Style | None]]:
    """Write it for a terminal, section by section."""
    empty = True
    # A session whose question stands above waits: it does not work.
    waiting = {each.session_id for each in inbox.items if each.section == "you"} - {None}
    running = [_cells_of(each, inbox.at) for each in recordings]
    for section, (head, style) in _HEADS.items():
        if section == "working":
            items = [each for each in inbox.works if each.session_id not in waiting]
        else:
            items = [each for each in inbox.items if each.section == section]
        rows = [_cells(item, inbox.at) for item in items]
        if section == "working":
            rows += running
        if not rows:
            continue
        if not empty:
            yield "", None
        empty = False
        yield f"{head} ({len(rows)})", style
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            yield "  " + "  ".join(map(str.ljust, row, widths)).rstrip(), None
    if empty:
        yield "nothing waits for you, and nothing works", "dim"
    for count, whom in ((inbox.counts.supervisor, "the supervisor"), (inbox.counts.others, "others")):
        if count:
            yield f"{count} more with {whom}{_named(inbox) if whom == 'others' else ''}", "dim"
    if inbox.more:
        yield "and more that is not shown", "dim"


def _named(inbox: Inbox) -> str:
    return f": {line(', '.join(inbox.others))}" if inbox.others else ""


def _cells(item: InboxItem, now: int) -> tuple[str, ...]:
    """Tell what it is, whose, where, since when, and what is left of its time; the id is the one that its command takes."""
    what = item.object if item.kind == "session" else f"{item.verb} {item.object}"
    if item.kind == "session" and item.why:
        what = f"{what}: {item.why}"
    left = "" if item.expires_at is None else f"{age(item.expires_at - now)} left"
    title = "" if item.kind == "session" else item.session_title or item.session_id or ""
    cells = (item.agent or "-", _folder(item.folder), age(now - item.since), left)
    shown_id = item.session_id if item.kind == "question" else item.id
    return shown_id or item.id, _cut(what), _cut(title), *map(line, cells)


def _cells_of(recording: Recording, now: int) -> tuple[str, ...]:
    """Tell of one that `exec` runs by itself: what it asks is answered in its own terminal."""
    asks = "" if recording.asks is None else f"asks in its own terminal: {recording.asks}"
    cells = (recording.agent or "-", _folder(recording.directory), age(now - recording.created_at), "exec")
    return recording.session_id, _cut(recording.title or "-"), _cut(asks), *map(line, cells)


def _cut(text: str) -> str:
    told = line(text)
    return told if len(told) <= WIDEST else f"{told[: WIDEST - 1]}…"


def _folder(folder: str | None) -> str:
    """Write it as people do, with their home as `~`: of a long one the end."""
    if folder is None:
        return "-"
    home = os.environ.get("HOME")
    if home and Path(folder).is_relative_to(home):
        folder = str(Path("~") / Path(folder).relative_to(home))
    return folder if len(folder) <= WIDEST else f"…{folder[1 - WIDEST :]}"


def age(ms: int) -> str:
    """Write a span of time as short as people say it."""
    seconds = max(0, ms) // 1000
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"
