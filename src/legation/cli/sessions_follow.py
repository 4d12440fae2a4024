"""A session of the server followed at the terminal, as `legation exec` shows its own: from the same log, by the same
renderer, over as many connections as it takes."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

from legation.cli.approver import open_tty
from legation.cli.connection import connect_async, tell_outage
from legation.cli.flags import PlaceFlags
from legation.cli.sessions_ask import Asker, head
from legation.cli.terminal import Terminal, line
from legation.cli.view import View, view_of
from legation.errors import STATUS, Code, LegationError
from legation.ids import new_id
from legation.wire import codec
from legation.wire.lifecycle import PromptFinished, PromptStarted, SessionStatus

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from legation.client import AsyncLegation
    from legation.client.async_http import AsyncCaller
    from legation.client.sessions import Session

_GONE = ("closed", "deleted")
# How the host ends what it says of a session that cannot be taken up.
CONTINUED = "in a new session that continues this one"


def follow_turn(flags: PlaceFlags | None, session: str, text: str, *, json: bool) -> int:
    """The exit code: 0 only when the agent ended its turn by itself."""
    finished = asyncio.run(_turn(flags, session, text, view_of(json=json)))
    if not json:
        Terminal().say(f"to go on: {_ways_on(line(session), finished)}", "dim")
    return exit_code(finished)


def _ways_on(session: str, finished: PromptFinished | None) -> str:
    """One that was terminated, or that its agent has lost, goes on in another."""
    again, anew = f"legation sessions send {session} ...", f"legation sessions continue {session} ..."
    if finished is None:
        return anew
    lost = finished.error is not None and finished.error.message.endswith(CONTINUED)
    return f"{again}, or {anew}" if lost else again


def follow_session(flags: PlaceFlags | None, session: str, after: int, *, json: bool) -> int:
    asyncio.run(_tail(flags, session, after, view_of(json=json)))
    return 0


def exit_code(finished: PromptFinished | None) -> int:
    if finished is None or finished.error:
        return STATUS[Code.AGENT_ERROR].exit
    if finished.stop_reason == "cancelled":
        return STATUS[Code.CANCELLED].exit
    return 0 if finished.stop_reason == "end_turn" else STATUS[Code.AGENT_ERROR].exit


async def _turn(flags: PlaceFlags | None, id_: str, text: str, view: View) -> PromptFinished | None:
    """None: the session was terminated before."""
    outages = Outages()
    async with connect_async(flags, outages) as server:
        session = await server.sessions.get(id_)
        after = await head(server, id_)
        async with _asking(server, session, view, outages) as asker:
            with _interrupts(asker):
                message = new_id("msg")
                await session.send(text, message_id=message)
                return await _until_finished(server, id_, after, message, view, asker)


async def _tail(flags: PlaceFlags | None, id_: str, after: int, view: View) -> None:
    outages = Outages()
    async with connect_async(flags, outages) as server:
        session = await server.sessions.get(id_)
        async with (
            _asking(server, session, view, outages) as asker,
            server.streams.follow(id_, after) as events,
        ):
            async for event in events:
                view.show(event)
                payload = codec.decode(event)
                asker.saw(payload, event.seq)
                if isinstance(payload, SessionStatus) and payload.status in _GONE:
                    return


async def _until_finished(
    server: AsyncLegation, id_: str, after: int, message: str, view: View, asker: Asker
) -> PromptFinished | None:
    """Messages wait for each other: other turns may come before that of ours."""
    turn: str | None = None
    async with server.streams.follow(id_, after) as events:
        async for event in events:
            view.show(event)
            payload = codec.decode(event)
            asker.saw(payload, event.seq)
            if isinstance(payload, PromptStarted) and payload.message == message:
                turn = payload.turn
            elif isinstance(payload, PromptFinished) and payload.turn == turn:
                return payload
            elif isinstance(payload, SessionStatus) and payload.status in _GONE:
                return None
    return None


class Outages:
    """Told on standard error; a question at the terminal is taken back first."""

    asker: Asker | None = None

    def __call__(self, error: LegationError | None) -> None:
        if self.asker is not None and error is not None:
            self.asker.away()
        tell_outage(error)
        if self.asker is not None and error is None:
            self.asker.back()


@asynccontextmanager
async def _asking(
    server: AsyncLegation, session: Session[AsyncCaller], view: View, outages: Outages
) -> AsyncIterator[Asker]:
    tty = open_tty()
    try:
        async with Asker(server, session, tty, view.pause) as asker:
            outages.asker = asker
            yield asker
    finally:
        view.end()
        if tty is not None:
            tty.close()


@contextmanager
def _interrupts(asker: Asker) -> Iterator[None]:
    """Ctrl-C once cancels the turn; twice leaves it alone and ends the command."""
    loop, following = asyncio.get_running_loop(), asyncio.current_task()
    assert following
    interrupted = False

    def interrupt() -> None:
        nonlocal interrupted
        if interrupted:
            following.cancel()
        else:
            print("\nlegation: cancelling the turn; Ctrl-C again to stop waiting for it", file=sys.stderr)
            interrupted = True
            asker.cancel_turn()

    before = signal.getsignal(signal.SIGINT)
    loop.add_signal_handler(signal.SIGINT, interrupt)
    try:
        yield
    except asyncio.CancelledError:
        if interrupted:
            raise KeyboardInterrupt from None
        raise
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, before)
