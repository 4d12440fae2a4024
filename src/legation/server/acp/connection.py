"""One client connection, by its server id: messages in, each request answered once, everything told in one order.

INV-C1  Every request is answered, whatever becomes of agent, client and server: by its result, or by an error. What
        a killed server leaves without an answer is answered when its client comes back.
INV-U1  A request that was taken is answered once: by the server that took it, or by the one after it.
INV-C2  A request goes on when the one who sent it hangs up; the answer stands in the stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Coroutine, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

import msgspec

from legation.agents.messages import RpcMessage, id_key, read_cancelled_id, read_message
from legation.agents.rpc import RpcFault
from legation.errors import LegationError, Unavailable
from legation.server.acp.asks import Asking, ClientCalls
from legation.server.acp.log import MESSAGE, ConnectionLog, KeptConnection, Taken
from legation.server.acp.messages import (
    error_line,
    exit_of,
    key_of,
    kind_of,
    logger,
    notification_line,
    result_line,
    rpc_error,
)
from legation.server.acp.methods import AcpMethods
from legation.server.sessions.agents import AgentSlot
from legation.server.sessions.clients import SessionClients, offers, what_counts
from legation.server.sessions.service import SessionService
from legation.store.stream import Stream
from legation.tasks import TaskSet
from legation.wire.acp.rpc import CANCEL_REQUEST, AgentMethod, ErrorCode, RpcError
from legation.wire.event_types import (
    AgentExited,
    PermissionAnswered,
    PermissionAsked,
    QuestionAnswered,
    QuestionAsked,
)
from legation.wire.principal import Principal

# Of one client; more are refused, so that a runaway cannot fill our memory.
REQUESTS_AT_ONCE: Final = 256
REQUEST_BYTES: Final = 256 * 1024 * 1024
NOTIFICATIONS_AT_ONCE: Final = 256
LONGEST_ID: Final = 1024  # characters of a request's id that is kept; any client's are a fraction of that
# How the many begin among the messages that neither ask nor answer: notifications, as we write them.
_TELLS: Final = b'{"jsonrpc":"2.0","method":'
_WHY: Final = "cannot answer: the server ended before it could; see what the session says, then ask again"
AGENT_EXITED: Final = "_adapter/agent_exited"  # as sandbox-agent tells its clients


class _Running(NamedTuple):
    message: RpcMessage
    answer: asyncio.Future[bytes]
    after: int  # what had been said when it came


class AcpConnection:
    """Connection of one client: `kept` is what the log has of it, `waiting` what a person must answer."""

    def __init__(
        self,
        kept: KeptConnection,
        outlet: ConnectionLog,
        slot: AgentSlot,
        sessions: SessionService,
        clients: SessionClients,
        waiting: Container[str],
    ) -> None:
        self.kept = kept
        self.outlet = outlet
        self.slot = slot
        self.workspace = slot.workspace
        self.clients = clients
        self.calls = ClientCalls(outlet)
        slot.terminals = offers(self.client, "terminal")
        self._principal: Principal | None = None  # whose credential came with the last message
        self._asking = Asking(self, sessions, waiting)
        self.wanted = self._asking.wanted  # a permission, by its id: somebody must answer it
        self._methods = AcpMethods(self, sessions)
        self._running: dict[asyncio.Task[None], _Running] = {}
        self._noting = asyncio.Lock()
        self._telling = TaskSet("legation-acp-tells")
        self._closed: str | None = None

    @property
    def client(self) -> Mapping[str, object]:
        """Capabilities that the client named."""
        return self.kept.client_capabilities

    @property
    def followed(self) -> list[str]:
        return list(self._methods.followers)

    @property
    def decides(self) -> bool:
        """Its credential decides something at all."""
        return self._principal is not None and "approve" in self._principal.scopes

    # The client speaks.

    def receive(self, message: RpcMessage, by: Principal) -> asyncio.Future[bytes] | None:
        """The line that answers a request, later; None for what wants no answer."""
        self.slot.used()
        self._principal = by
        match kind_of(message):
            case "request":
                return self._request(message, by)
            case "response":
                self.calls.answered(message, by)
            case "notification" if message.method == CANCEL_REQUEST:
                self._cancel(read_cancelled_id(bytes(message.params)))
            case "notification":
                self._own(self._notification(message))
        return None

    def _request(self, message: RpcMessage, by: Principal) -> asyncio.Future[bytes]:
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        if self._closed is not None:
            answer.set_result(self._refusal(message, Unavailable(self._closed)))
        elif self._is_full(message):
            refused = RpcFault(ErrorCode.INVALID_REQUEST, "too many requests at once; wait for their answers")
            answer.set_result(self._refusal(message, refused))
        else:
            task = asyncio.create_task(
                self._answer(message, by, answer), name=f"legation-acp-{message.method}"
            )
            self._running[task] = _Running(message, answer, self.outlet.stream.head)
            task.add_done_callback(partial(self._done, answer))
        return answer

    async def note_taken(self) -> None:
        """Returns when the disk knows of every request that has come: the next server answers what this one does not."""
        async with self._noting:
            running = [each for each in self._running.values() if not each.answer.done()]
            ids = [(bytes(each.message.id).decode(), each.after) for each in running]
            taken = tuple(Taken(id=name, after=after) for name, after in ids if len(name) <= LONGEST_ID)
            if not set(taken) <= set(self.kept.taken):
                self.kept = msgspec.structs.replace(self.kept, taken=taken)
                await self._keep()

    def note_asks(self) -> None:
        """Note that the client is asked something: the next server withdraws what this one cannot. A request of its own
        that runs says as much."""
        if not self._running and not self.calls.waiting:
            self.kept = msgspec.structs.replace(self.kept, asks=self.outlet.stream.head)
            self._own(self._keep())

    async def _keep(self) -> None:
        try:
            await self.outlet.keep(self.kept)
        except LegationError as error:  # a failing disk keeps neither requests nor questions from anybody
            logger.warning("what a client asks, or is asked, is not on the disk: %s", error.code)

    def _is_full(self, message: RpcMessage) -> bool:
        held = [message, *[each.message for each in self._running.values()]]
        size = sum([memoryview(each.params).nbytes for each in held])
        return len(held) > REQUESTS_AT_ONCE or size > REQUEST_BYTES

    def _done(self, answer: asyncio.Future[bytes], task: asyncio.Task[None]) -> None:
        running = self._running.pop(task)
        if not answer.done():  # it was cancelled before its first step, or when it had failed and asked why
            line = self._refusal(running.message, _cancelled())
            self.outlet.say(line)
            answer.set_result(line)

    async def _answer(self, message: RpcMessage, by: Principal, answer: asyncio.Future[bytes]) -> None:
        params = bytes(message.params)
        try:
            await self.note_taken()
            with self.slot.using():
                result = await self._methods.request(message.method, params, by)
            line = result_line(bytes(message.id), {} if result is None else result)
        except asyncio.CancelledError:
            line = self._refusal(message, _cancelled())
        except Exception as error:  # noqa: BLE001 - the boundary: every request gets its answer
            line = error_line(bytes(message.id), await self._explained(error, params))
        if answer.done():
            return  # the connection was closed meanwhile, and has said so
        # Twice is once too often for a client that has it as the answer to its POST, with the name of the connection.
        alone = self.kept.streamable and message.method == AgentMethod.INITIALIZE
        receipt = None if alone else self.outlet.say(line)
        try:
            if receipt is not None:
                await receipt
        except LegationError as error:  # a failing disk keeps no answer from its client
            logger.warning("an answer is not on the disk: %s", error.code)
        finally:
            if not answer.done():
                answer.set_result(line)

    async def _explained(self, error: Exception, params: bytes) -> RpcError:
        """Add how the agent's process went, where that is why; a client that has no session hears of it here."""
        ended = await self._methods.how_it_ended(error, params) or exit_of(error)
        if ended is not None and not self.followed:
            self._tell_exit(ended)
        return rpc_error(error, ended, await self.slot.stderr())

    def _refusal(self, message: RpcMessage, error: Exception) -> bytes:
        return error_line(bytes(message.id), rpc_error(error))

    def _cancel(self, raw_id: bytes) -> None:
        """A prompt is ended by its agent, and answers; anything else is given up."""
        wanted = id_key(raw_id)
        for task, (message, _, _) in self._running.items():
            if key_of(message) == wanted:
                if message.method == AgentMethod.SESSION_PROMPT:
                    self._own(
                        self._notification(RpcMessage(AgentMethod.SESSION_CANCEL, params=message.params))
                    )
                else:
                    task.cancel()

    async def _notification(self, message: RpcMessage) -> None:
        try:
            await self._methods.notification(message.method, bytes(message.params))
        except LegationError as error:  # nobody waits for an answer
            logger.info("a notification %s came to nothing: %s", message.method[:40], error.code)

    def _own(self, telling: Coroutine[object, object, None]) -> None:
        if len(self._telling) >= NOTIFICATIONS_AT_ONCE:
            telling.close()
            logger.info("a notification was dropped: too many at once")
        else:
            self._telling.start(telling)

    # Things happen.

    async def greet(self, client: Mapping[str, object]) -> None:
        """A client has come: what was said before is not for it."""
        since = self.outlet.stream.head
        self.kept = msgspec.structs.replace(self.kept, client_capabilities=what_counts(client), since=since)
        self.slot.terminals = offers(self.client, "terminal")
        await self.outlet.keep(self.kept)

    def note(self, session_id: str, payload: object) -> None:
        match payload:
            case PermissionAsked():
                self._asking.asked(session_id, payload)
            case QuestionAsked() if offers(self.client, "elicitation", payload.mode):
                self._asking.question(session_id, payload)
            case PermissionAnswered() | QuestionAnswered():
                self._asking.ended(payload.id)
            case AgentExited():
                self._tell_exit(payload)

    def _tell_exit(self, exited: AgentExited) -> None:
        told = {"success": exited.code == 0, "code": exited.code, "signal": exited.signal}
        self.outlet.say(notification_line(AGENT_EXITED, told))

    # The end.

    def shut(self, why: str) -> None:
        """Tell whoever waits at once; begin nothing more."""
        if self._closed is not None:
            return
        self._closed = why
        self.calls.give_up()
        for message, answer, _ in list(self._running.values()):
            if not answer.done():
                line = self._refusal(message, Unavailable(why))
                self.outlet.say(line)
                answer.set_result(line)
        self.outlet.shut()

    async def close(self) -> None:
        """End all of it: its agent, and whoever waits."""
        self.shut("cannot go on: the connection was closed; connect again")
        running = list(self._running)
        for task in running:
            task.cancel()
        await self._asking.stop()
        await self._telling.close()
        await self.slot.close()
        if running:
            await asyncio.wait(running)
        await self._methods.stop()


def _cancelled() -> RpcFault:
    return RpcFault(ErrorCode.REQUEST_CANCELLED, "the request was cancelled")


async def last_words(stream: Stream, taken: Sequence[Taken], asks: int | None = None) -> list[bytes]:
    """Say what a killed server owes its client: answers to what it had taken, an end to what it had asked. Nobody reads
    or writes the stream meanwhile."""
    owed = {id_key(each.id.encode()): each for each in taken}
    # What the client was asked, answered or not: its answers are not in the log, and nobody waits for one any more.
    asked: list[msgspec.Raw] = []
    after = min([each.after for each in taken] + ([] if asks is None else [asks]), default=stream.head)
    async for batch in stream.subscribe(after, follow=False).batches():
        for event in batch:
            if event.type != MESSAGE or event.raw.startswith(_TELLS):
                continue
            message = read_message(event.raw)
            if message is None:
                continue
            if kind_of(message) == "request":
                asked.append(message.id)
                continue
            key = key_of(message) or b"null"  # which reads as none
            if (found := owed.get(key)) and event.seq > found.after:  # else of an older one of that id
                del owed[key]
    if not owed and asks is None:
        return []
    withdrawn = [notification_line(CANCEL_REQUEST, {"requestId": each}) for each in asked]
    error = rpc_error(Unavailable(_WHY))
    return [*withdrawn, *(error_line(each.id.encode(), error) for each in owed.values())]
