"""When each token was last used: noted in memory by the request, written by a task of its own once a minute."""

from __future__ import annotations

import asyncio
import logging
from types import TracebackType
from typing import Final, Self

from legation.clock import Clock
from legation.errors import LegationError
from legation.store.database.transaction import Database
from legation.store.identity import tokens

INTERVAL: Final = 60.0  # seconds between two writes: how old `lastUsedAt` may be
LAST_WRITE_LIMIT: Final = 2.0  # seconds for the last write of a server that stops: the database's time

logger = logging.getLogger("legation.server")


class TokenUses:
    """`async with TokenUses(database, clock) as uses`: owns its task, and writes what is left when it ends."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database, self._clock = database, clock
        self._uses: dict[str, int] = {}
        self._noted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def note(self, token: str) -> None:
        self._uses[token] = self._clock.now_ms()
        self._noted.set()

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run(), name="legation-token-uses")
        return self

    async def __aexit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        try:
            async with asyncio.timeout(LAST_WRITE_LIMIT):
                await self._write()
        except TimeoutError:
            logger.warning("cannot note the last uses of tokens: the database is slow")

    async def _run(self) -> None:
        while True:
            await self._noted.wait()
            await self._write()
            await self._clock.sleep(INTERVAL)

    async def _write(self) -> None:
        uses, self._uses = self._uses, {}
        self._noted.clear()
        if not uses:
            return
        try:
            await self._database.transact(tokens.note_uses, uses)
        except LegationError as error:  # it is only a courtesy: no request fails for it
            logger.warning("cannot note the last uses of tokens: %s", error)
