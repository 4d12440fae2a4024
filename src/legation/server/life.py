"""The stream `server`: the server's own life and the troubles of its log, for whoever follows it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, Literal

import legation
from legation.errors import LegationError, StorageFailed
from legation.store.audit import record
from legation.store.backend import Trouble
from legation.wire.codec import draft
from legation.wire.diagnostic import Diagnostic, DiagnosticCode
from legation.wire.serverstream import ServerStarted, ServerStopped

if TYPE_CHECKING:
    from legation.server.services import Services
    from legation.store.stream import Stream

NAME: Final = "server"
WORKSPACE: Final = "local"
MOST_EARLY: Final = 100  # troubles from before the stream is open that it is told of
FIRST_WRITE_LIMIT: Final = 10.0  # seconds: the disk's time

logger = logging.getLogger("legation.store")


class Troubles:
    """Where the log tells its troubles: to our log at once, and to the stream once that is open."""

    def __init__(self) -> None:
        self._stream: Stream | None = None
        self._early: list[Trouble] = []  # told before there was a stream

    def __call__(self, trouble: Trouble) -> None:
        logger.warning("%s: %s", trouble.code, trouble.message, extra={"stream": trouble.stream or ""})
        if self._stream is None:
            self._early = [*self._early[-MOST_EARLY:], trouble]
        else:
            self._append(self._stream, trouble)

    def clock_jumped(self, words: str) -> None:
        self(Trouble("clock/jumped", words))

    def go_to(self, stream: Stream | None) -> None:
        self._stream = stream
        if stream is not None:
            early, self._early = self._early, []
            for trouble in early:
                self._append(stream, trouble)

    def _append(self, stream: Stream, trouble: Trouble) -> None:
        if trouble.stream != NAME:  # the name may be another's
            stream.append([draft(Diagnostic(code=DiagnosticCode(trouble.code), message=trouble.message))])


async def _note(services: Services, change: Literal["server.started", "server.stopped"]) -> None:
    actor, now = services.process_tokens.principal, services.clock.now_ms()
    details = {"version": legation.__version__}
    try:
        async with asyncio.timeout(FIRST_WRITE_LIMIT):
            await services.database.transact(record, actor, change, "server", details, now)
    except TimeoutError:
        raise StorageFailed(
            "cannot write to the audit log: the database does not take it; check its disk"
        ) from None


@asynccontextmanager
async def living(services: Services, troubles: Troubles) -> AsyncIterator[None]:
    stream = await services.log.stream(NAME, WORKSPACE)
    started = ServerStarted(version=legation.__version__, mode=services.mode, url=services.public_url)
    receipt = stream.append([draft(started)])
    try:
        async with asyncio.timeout(FIRST_WRITE_LIMIT):
            await receipt
    except TimeoutError:
        raise StorageFailed(
            "cannot write to the event log: the disk does not take it; free some space"
        ) from None
    troubles.go_to(stream)
    await _note(services, "server.started")
    try:
        yield
    finally:
        troubles.go_to(None)
        try:
            await _note(services, "server.stopped")
        except LegationError as error:  # it ends all the same
            logger.warning("cannot note the end in the audit log: %s", error)
        stream.append([draft(ServerStopped())])  # the log saves it when it closes
