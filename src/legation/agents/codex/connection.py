"""An agent's part in the shared app server: how it comes and goes, and what of the server's words is its.

INV-1  An agent that is stopped leaves nothing running: its turns are interrupted, and a server that does not obey is
       stopped for everybody.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import Final

import msgspec

from legation.agents.codex.declined import declined
from legation.agents.codex.home import refuse_orders
from legation.agents.codex.launch import overrides
from legation.agents.codex.messages import ThreadNews
from legation.agents.codex.peer import Asked, Heard
from legation.agents.codex.server import CodexServer
from legation.agents.codex.session import CodexThread
from legation.agents.native import Equipment, NativeAgent
from legation.agents.pool import Lease, pool_key
from legation.errors import AgentExited, InvalidParams, LegationError
from legation.proc import Exit
from legation.wire.acp.capabilities import ElicitationCapabilities
from legation.wire.diagnostic import DiagnosticCode

LEAVE_LIMIT: Final = 3.0  # seconds to interrupt a thread and let it go: the server's time


class CodexConnection(NativeAgent):
    def __init__(self, equipment: Equipment) -> None:
        super().__init__(equipment)
        self._lease: Lease[CodexServer] | None = None
        self._threads: dict[str, CodexThread] = {}
        self._roots: dict[str, str] = {}  # a sub-agent's thread -> the session that it is of
        self._left = asyncio.Event()
        self._exit = Exit(None, None)
        self._stopping: asyncio.Task[Exit] | None = None

    async def begin(self, timeout: float) -> None:
        command = self._equipment.command
        await asyncio.to_thread(refuse_orders, command.env)
        key = pool_key(command, *overrides(command.env))
        start = partial(CodexServer.start, self._equipment, timeout)
        self._lease = await self._equipment.pool.lease(key, command, start)
        self._server.join(self)

    @property
    def _server(self) -> CodexServer:
        if self._lease is None:
            raise AgentExited(f"cannot use {self.name!r}: it was not started")
        return self._lease.server

    @property
    def processes(self) -> tuple[int, ...]:
        return (self._server.pid,) if self._lease else ()

    @property
    def can_steer(self) -> bool:
        return True

    def stderr_tail(self) -> str:
        return self._server.stderr_tail() if self._lease else ""

    async def wait(self) -> Exit:
        ended = asyncio.ensure_future(self._server.wait())
        left = asyncio.ensure_future(self._left.wait())
        try:
            await asyncio.wait({ended, left}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()
            left.cancel()
        if self._left.is_set() or self._lease is None:
            return self._exit
        await self._lease.leave(grace=0)  # what it had in its temporary folder is of no use any more
        return ended.result()

    async def stop(self, grace: float) -> Exit:
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop(grace), name=f"legation-codex-stop-{self.name}")
        return await asyncio.shield(self._stopping)

    async def _stop(self, grace: float) -> Exit:
        if self._lease is None:
            return self._exit
        server = self._server
        obeyed = server.ended or self._lease.alone or await self._leave_all()
        self._close_all(AgentExited(f"cannot go on: {self.name!r} was stopped; start it again"))
        server.leave(self)
        if not obeyed:
            await server.stop(grace)
        await self._lease.leave(grace, retire=not obeyed)
        self._exit = await server.wait() if server.ended else Exit(0, None)
        self._left.set()
        return self._exit

    async def _leave_all(self) -> bool:
        """The threads of other agents go on."""
        return all(await asyncio.gather(*(each.leave(LEAVE_LIMIT) for each in self._threads.values())))

    def _close_all(self, error: LegationError) -> None:
        for thread in self._threads.values():
            thread.close(error)
        self._threads.clear()
        self._roots.clear()

    # What the server says: this is an `Owner` of it.

    @property
    def elicitation(self) -> ElicitationCapabilities:
        return self._client.elicitation or ElicitationCapabilities()

    def heard(self, thread_id: str, heard: Heard) -> None:
        thread = self._threads.get(self._roots.get(thread_id, thread_id))
        if thread is not None:
            thread.heard(thread_id, heard)
            for sub_agent in thread.translation.sub_agents():
                self.adopt(sub_agent, thread.id)

    def asked(self, thread_id: str, asked: Asked) -> None:
        thread = self._threads.get(self._roots.get(thread_id, thread_id))
        if thread is None:
            asked.answer(declined(asked))
        else:
            thread.asked(thread_id, asked)

    def adopt(self, thread_id: str, parent: str) -> None:
        root = self._roots.get(parent, parent)
        if root in self._threads and thread_id not in self._roots:
            self._roots[thread_id] = root
            self._server.own(thread_id, self)

    def heard_of_all(self, heard: Heard) -> None:
        if heard.method == "thread/started":
            self._adopt_started(heard)
        for thread in self._threads.values():
            thread.heard(thread.id, heard)

    def trouble(self, code: DiagnosticCode, message: str) -> None:
        self._inbox.trouble(code, message)

    def lost(self, error: LegationError) -> None:
        self._close_all(error)

    async def room(self) -> None:
        await self._inbox.room()

    # Threads.

    def _thread(self, session_id: str) -> CodexThread:
        thread = self._threads.get(session_id)
        if thread is None:
            raise InvalidParams(f"cannot use session {session_id}: the agent has it not; resume it first")
        return thread

    def _adopt_started(self, heard: Heard) -> None:
        with suppress(ValueError, RecursionError):
            started = msgspec.json.decode(heard.params, type=ThreadNews).thread
            self.adopt(started.id, started.parent_thread_id or "")

    def _forget(self, session_id: str) -> None:
        self._server.disown(session_id)
        for thread_id in [each for each, root in self._roots.items() if root == session_id]:
            del self._roots[thread_id]
            self._server.disown(thread_id)
