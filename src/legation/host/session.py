"""A session's place: which agent has it, what state it is in, what is recorded of it.

INV-N1  A session's state changes by `TABLE` alone, in `Session._move`: what the table does not know is refused and logged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from legation.agents.driver import AskingModes, Driver
from legation.agents.modes import (
    OFFER_TYPES,
    Offers,
    Put,
    must_stay_asking,
    put_into_asking,
    setup_facts,
    unasking_mode,
)
from legation.agents.rpc import UNWRITABLE
from legation.errors import (
    AgentExited,
    CapabilityUnsupported,
    Conflict,
    InvalidParams,
    LegationError,
    SessionClosed,
)
from legation.host.conversation import Conversation
from legation.host.options import SessionMeta, read_meta
from legation.host.turn import TOOL_CALL_TYPES
from legation.states import ActWord, StateWord
from legation.store.stream import Receipt, ReservedEvent, Stream
from legation.wire import event_types, jsontext
from legation.wire.acp.methods import McpServer, SessionSetup
from legation.wire.acp.updates import ConfigOption, SessionInfoUpdate
from legation.wire.event_types import AgentExited as AgentExitedEvent
from legation.wire.event_types import (
    ExtensionMessage,
    PermissionAnswered,
    PermissionAsked,
    PermissionUpdated,
    PromptFinished,
    PromptStarted,
    QuestionAnswered,
    QuestionAsked,
    SessionReset,
    SessionStatus,
    SessionUpdated,
    Status,
    UnaskingMode,
)
from legation.wire.events import Draft, Payload

if TYPE_CHECKING:
    from legation.host.agent import Agent
    from legation.host.host import AcpHost

PUT_BACK = 3  # times that an agent which leaves its asking mode is put back: one that insists is told of
LOST_LIMIT = 10.0  # seconds from the end of an agent to that of its sessions with it: the host's time
SAVE_LIMIT = 5.0  # seconds that a host which is disposed of waits for metadata: the store's time

MOST_AT_WORK = 64  # judgements and notes of one session, before more of its agent is read

Settle: TypeAlias = Callable[[], Awaitable[None]]
"""Ends what must not outlive a session's record."""

_log = logging.getLogger(__name__)


class State(StateWord):
    """State of a session."""

    status: Status

    MAKING = "making", "starting", "nobody sees it yet: there will be all of it, or nothing"
    DISCONNECTED = "disconnected", "disconnected", "its history is there, and no agent has it"
    RESUMING = (
        "resuming",
        "resuming",
        "an agent is asked to take it up; if it does not, it is what it was before",
    )
    ACTIVE = "active", "active", "an agent has it"
    CLOSED = "closed", "closed", "a load opens it again, also in a later host"
    TERMINATED = "terminated", "closed", "closed for good: no later host knows it"
    DELETED = "deleted", "deleted", "its history is gone, and its name is not used again"


class Act(ActWord):
    ATTACH_BEGINS = (
        "attach begins",
        "for a message, a prompt, a resume or a load; of a closed one only for a load",
    )
    ATTACHED = "attached", "the agent has agreed, and the store has it"
    ATTACH_FAILS = "attach fails", "the agent or the store has refused, or whoever asked has gone"
    AGENT_ENDS = "agent ends", "it crashed, was stopped since it was idle, or is disposed of"
    CLOSE = "close", "by a client of ACP, who may load it again"
    TERMINATE = "terminate", "for good; its history stays"
    DELETE = "delete", "with its history; where a turn runs, the server says 409 before it comes to that"


_OBSERVED: Final = (PromptStarted, PromptFinished, QuestionAsked, QuestionAnswered)
_END: Final = {Act.CLOSE: State.CLOSED, Act.TERMINATE: State.TERMINATED, Act.DELETE: State.DELETED}
# From where, by what, to where (None: back to the one before); docs/reference/session-states.md is drawn from it.
TABLE: Final[Mapping[State, Mapping[Act, State | None]]] = {
    State.MAKING: {Act.ATTACHED: State.ACTIVE},
    State.DISCONNECTED: {Act.ATTACH_BEGINS: State.RESUMING, Act.AGENT_ENDS: State.DISCONNECTED, **_END},
    State.RESUMING: {
        Act.ATTACHED: State.ACTIVE,
        Act.ATTACH_FAILS: None,
        Act.AGENT_ENDS: State.RESUMING,  # that of before: what it goes back to is without one
        **_END,  # the attach loses
    },
    State.ACTIVE: {Act.ATTACH_BEGINS: State.RESUMING, Act.AGENT_ENDS: State.DISCONNECTED, **_END},
    State.CLOSED: {Act.ATTACH_BEGINS: State.RESUMING, Act.AGENT_ENDS: State.CLOSED, **_END},
    State.TERMINATED: {
        Act.ATTACH_BEGINS: State.RESUMING,  # in the host that has ended it: a server refuses before
        Act.AGENT_ENDS: State.TERMINATED,
        **_END,
        Act.CLOSE: State.TERMINATED,
    },
    State.DELETED: dict.fromkeys((Act.AGENT_ENDS, *_END), State.DELETED),
}


class Session:
    """`id` is Legation's and names the stream; what the agent calls it is in `meta`."""

    def __init__(self, stream: Stream, meta: SessionMeta, core: AcpHost, state: State = State.MAKING) -> None:
        self.id = stream.name
        self.stream = stream
        self._meta = stream.meta, meta  # as it is written, and as it is read
        self.folders = meta.folders()
        self.state = self._before = state  # before: the one that an attach which fails goes back to
        self._losing = False  # its agent has ended, and the host is about to say so
        self._decided = asyncio.Event()  # whether it was taken up, or lost
        self._ends = asyncio.Lock()  # held by whoever ends it
        self.reason: str | None = None  # why it is in its status, where there is more to say
        self.agent_id: str | None = None
        self.home: str | None = None  # of its agent
        self.mcp: tuple[McpServer, ...] = ()  # with their secrets, so in memory only
        self.has_config = False  # whether the agent ever said that it has options
        self.offers = Offers()
        self.modes = AskingModes()  # what is known of its agent's
        self._put_back = 0
        # A mode in which it does not ask, and which it could not be brought out of.
        self._stuck_in: str | None = None
        self.exit: AgentExitedEvent | None = None  # of its last agent, where that has ended
        self.owner: Agent | None = None  # whose process is, or was, the one below
        self.process: Driver | None = None  # of its agent, to be told from the next
        self.holder: object = None  # what is to be in memory for as long as the host has the session
        self._core = core
        self.heard_at = core.clock.monotonic()
        self._limit = core.options.limits.start  # the agent's time for an answer
        self.talk = Conversation(self, core)
        self.prompt, self.steer, self.cancel = self.talk.prompt, self.talk.steer, self.talk.cancel
        self._saving: set[asyncio.Task[None]] = set()
        self._putting: asyncio.Task[None] | None = None

    # Its place in the host.

    @property
    def meta(self) -> SessionMeta:
        """The stream's: whoever else writes a part of it (the details are a server's) is read here at once."""
        raw, meta = self._meta
        if raw is not self.stream.meta:
            raw = self.stream.meta
            meta = read_meta(raw) or meta
            self._meta = raw, meta
        return meta

    def _set_meta(self, meta: SessionMeta) -> Awaitable[None]:
        """`meta` was made of what there is now: between the two nothing is awaited."""
        raw = meta.encode()
        writing = self.stream.set_meta(raw, replaces=self.stream.meta)
        self._meta = raw, meta
        return writing

    def _set_meta_soon(self, meta: SessionMeta) -> None:
        """Best effort: it is not what counts."""
        with suppress(LegationError):
            saving = asyncio.create_task(_saved(self._set_meta(meta)))
            self._saving.add(saving)
            saving.add_done_callback(self._saving.discard)

    async def room(self) -> None:
        """Wait until what the agent has said and done is stored, judged and noted, but for a little of it."""
        await self._core.log.room(self.stream)
        while len(at_work := self._saving | self.talk.judging) > MOST_AT_WORK:
            await asyncio.wait(at_work, return_when=asyncio.FIRST_COMPLETED)

    @property
    def status(self) -> Status:
        return self.state.status

    @property
    def agent(self) -> Driver:
        if self.process is None or self.status != "active":
            why = f" ({self.reason})" if self.reason else ""
            raise AgentExited(
                f"cannot reach the agent of session {self.id}: it is {self.status}{why}; resume it"
            )
        return self.process

    @property
    def busy(self) -> bool:
        return self.talk.turn is not None

    def must_be_usable(self, what: str) -> None:
        if self.status in ("closed", "deleted"):
            raise SessionClosed(f"cannot {what} session {self.id}: it is {self.status}")
        if self.ending:  # a turn that began now would have no end in the log
            raise SessionClosed(f"cannot {what} session {self.id}: it is being ended; start another")
        _ = self.agent

    def snapshot(self) -> SessionUpdated:
        return self.meta.snapshot(self.id, self.status, self.agent_id)

    def attach(
        self, agent: Agent, live: Driver, setup: SessionSetup, mcp: tuple[McpServer, ...]
    ) -> Receipt | None:
        """An agent has taken the session: new, loaded or resumed."""
        self._losing = False
        self._move(Act.ATTACHED)
        self.agent_id, self.owner, self.process, self.mcp = agent.id, agent, live, mcp
        self.home = str(agent.definition.home or self._core.homes.home(agent.definition.name))
        self.modes, self._put_back, self._stuck_in = agent.definition.modes, 0, None
        self.has_config |= setup.config_options is not None
        said = Offers.of(setup)
        self.offers = Offers(said.modes or self.offers.modes, said.options or self.offers.options)
        if self.meta.reopens:  # that was said of the end which it had
            self._set_meta_soon(msgspec.structs.replace(self.meta, reopens=False))
        self.exit = None
        with suppress(Conflict):
            self.stream.append(setup_facts(setup))
        return self._tell("active")

    def _move(self, act: Act) -> None:
        """Change the state by the table, and by nothing else."""
        moves = TABLE[self.state]
        if act not in moves:
            what = f"cannot move session {self.id} by `{act}`: it is {self.state}"
            _log.error("%s, which is a defect", what)
            raise Conflict(f"{what}; wait until it is settled")
        after = moves[act] or self._before
        if after is not State.RESUMING:
            self.state = self._before = after
        elif self.state is State.RESUMING:
            self._before = TABLE[self._before][act] or self._before
        else:
            self.state = after
        self._note_decided()

    def _note_decided(self) -> None:
        if self._losing or self.state is State.RESUMING:
            self._decided.clear()
        else:
            self._decided.set()

    def _tell(self, status: Status, reason: str | None = None) -> Receipt | None:
        """The session's readers and the host's."""
        self.reason = reason
        receipt = self.note(SessionStatus(status=status, reason=reason))
        self.publish()
        return receipt

    def publish(self) -> None:
        """Project it onto the host's stream."""
        self._core.stream.publish(self.snapshot())

    def begin_attach(self) -> None:
        """An agent is asked to take it up: that is shown, while nothing is decided."""
        self._move(Act.ATTACH_BEGINS)
        self.publish()

    def give_up_attach(self) -> None:
        """Go back to what it was before, unless somebody has ended it meanwhile."""
        if self.state is State.RESUMING:
            self._move(Act.ATTACH_FAILS)
            self.publish()

    def losing_agent(self) -> None:
        """Note that its agent has ended and has it still for a moment, in which nothing can be asked of either."""
        if self._before is State.ACTIVE:
            self._losing = True
            self._note_decided()

    async def decided(self) -> None:
        """Returns when nobody is taking it up, and no agent that has ended still has it."""
        while self.state is State.RESUMING:
            await self._decided.wait()
        with suppress(TimeoutError):
            async with asyncio.timeout(LOST_LIMIT):
                while self._losing:
                    await self._decided.wait()

    def disconnect(self, reason: str) -> None:
        """Take its agent away; its history stays."""
        had_it, self.process, self._losing = self._before is State.ACTIVE, None, False
        self._move(Act.AGENT_ENDS)
        if had_it:
            self._tell("disconnected", reason)

    async def lose_agent(self, reason: str) -> None:
        """First the turn says how it ended, then the session that it is disconnected."""
        await self.talk.settle()
        self.disconnect(reason)

    def chosen(self, offers: Offers) -> None:
        """Record what its client chose and the agent agreed to, unless the agent said so itself."""
        if (news := offers.news_for(self.offers)) is not None:
            self.heard()
            self.stream.append(setup_facts(news))
            self.offers = offers
            self._look_at_mode()

    async def set_mode(self, mode: str) -> None:
        self.must_be_usable("set the mode of")
        if self.offers.modes is None:
            raise CapabilityUnsupported(
                f"cannot set the mode of session {self.id}: its agent named no modes; leave it"
            )
        must_stay_asking(self.offers, self.modes, mode)
        await self.agent.set_mode(self.meta.agent_session_id, mode, self._limit)
        self.chosen(self.offers.in_mode(mode))

    async def set_option(self, option: str, value: str | bool) -> tuple[ConfigOption, ...]:
        self.must_be_usable("configure")
        if not self.has_config:
            raise CapabilityUnsupported(
                f"cannot configure session {self.id}: its agent named no options; leave it"
            )
        must_stay_asking(self.offers, self.modes, value, option)
        answer = await self.agent.set_config_option(self.meta.agent_session_id, option, value, self._limit)
        self.chosen(self.offers.with_options(answer.config_options))
        return answer.config_options

    def tell_modes(self, puts: Sequence[Put], found: Literal["opened", "left"]) -> None:
        """Record that it did not ask in the mode that it was in, and what became of that."""
        for put in puts:
            self.note(UnaskingMode(mode=put.mode, found=found, put_into=put.into, reason=put.why))
            if put.into is None:
                self._stuck_in = put.mode
            if put.into is None or found == "left":
                self.talk.unasking(put.mode)

    def _look_at_mode(self) -> None:
        """An agent that went to a mode in which it does not ask is put back, unless it insists."""
        mode = unasking_mode(self.offers, self.modes)
        if mode is None:
            self._stuck_in = None
        elif mode == self._stuck_in or self.process is None or self._put_back > PUT_BACK:
            return
        elif self._putting is None or self._putting.done():
            self._put_back += 1
            if self._put_back > PUT_BACK:  # told once: an agent that goes to and fro would fill the trace
                self.tell_modes([Put(mode, None, f"it left its mode more than {PUT_BACK} times")], "left")
            else:
                self._putting = asyncio.create_task(self._go_back(mode), name=f"legation-mode-{self.id}")

    async def _go_back(self, mode: str) -> None:
        try:
            puts = await put_into_asking(self, self.modes)
        except LegationError as error:
            puts = [Put(mode, None, error.message)]
        self.tell_modes(puts, "left")

    async def keep(self, meta: SessionMeta) -> None:
        """Write where it works, and with what; strict. One that was closed is open again. What was noted meanwhile
        stays."""
        if self.stream.closed:
            await self._in_commit(self.stream.reopen, meta)
        else:
            await self._set_meta(meta.noted_as(self.meta))
            self.folders = meta.folders()

    async def begin_generation(self, meta: SessionMeta, replay: Sequence[Draft]) -> None:
        """Strict, and one commit: what the agent tells takes the place of what is shown, and `meta` holds."""
        drafts = [event_types.draft(SessionReset(reason="loaded")), *replay]
        numbered = await self.stream.number(drafts)
        await self._in_commit(partial(self.stream.replace, numbered), meta)

    async def _in_commit(self, change: Callable[..., Awaitable[object]], meta: SessionMeta) -> None:
        """Write the metadata with the change. That it `reopens` was said of the end which it had."""
        noted = msgspec.structs.replace(meta.noted_as(self.meta), reopens=False)
        await change(meta=noted.encode(), replaces=self.stream.meta)
        self.folders = meta.folders()

    async def keep_details(
        self, details: Mapping[str, object], title: str | UnsetType | None = UNSET
    ) -> None:
        """Strict; at once for whoever looks, and on the disk when this returns."""
        kept = self.meta.title if title is UNSET else title
        writing = self._set_meta(msgspec.structs.replace(self.meta, details=details, title=kept))
        if title is not UNSET:
            self.publish()
        await writing

    @property
    def ending(self) -> bool:
        """An end is under way: nobody takes it up any more."""
        return self._ends.locked()

    async def until_not_ending(self) -> None:
        async with self._ends:
            pass

    async def end(
        self, status: Literal["closed", "deleted"], *, reopens: bool = False, last: Settle | None = None
    ) -> None:
        """End it, one end at a time; strict: where the tombstone cannot be written nothing is published and this raises.
        `last` is done before its record goes, or before one that is closed can be opened again."""
        async with self._ends:
            if self.status not in (status, "deleted"):  # also one that was closed and is being opened again
                await self._end(status, reopens, last)
            elif self.state is State.CLOSED and not reopens:
                await self._set_meta(msgspec.structs.replace(self.meta, reopens=False))
                self._move(Act.TERMINATE)

    async def _end(self, status: Literal["closed", "deleted"], reopens: bool, last: Settle | None) -> None:
        await self.talk.cancel()
        await self.talk.settle()
        if status == "closed":
            await self._close(reopens)
        else:
            if last is not None:
                await last()
            await self.stream.delete()
        self.process, self._losing = None, False
        self._move(Act.DELETE if status == "deleted" else Act.CLOSE if reopens else Act.TERMINATE)
        self.publish()
        if status == "closed" and last is not None:
            await last()

    async def _close(self, reopens: bool) -> None:
        """Write the tombstone. Its event comes before it, so first the store is tried, and a word too soon is taken
        back."""
        await self._set_meta(msgspec.structs.replace(self.meta, reopens=reopens))
        self.note(SessionStatus(status="closed"))
        try:
            await self.stream.close()
        except LegationError:
            self.note(SessionStatus(status=self._before.status, reason="it could not be closed"))
            raise

    async def saved(self) -> None:
        """Wait until its last metadata are stored, if they can be."""
        if self._saving:
            await asyncio.wait(self._saving, timeout=SAVE_LIMIT)

    # What is recorded.

    def note(self, *payloads: Payload) -> Receipt | None:
        """Append events of our own; None where the session takes no more, or not these."""
        for payload in payloads:
            if isinstance(payload, AgentExitedEvent):
                self.exit = payload
                self.losing_agent()
        with suppress(Conflict, InvalidParams):
            return self.record(*payloads)
        return None

    def note_extension(self, method: str, params: bytes, *, request: bool) -> None:
        """A message of the agent's own, with its bytes."""
        members = b'"method":%b,"params":%b' % (jsontext.write(method), params or b"null")
        raw = b"{%b%b}" % (members, b',"request":true' if request else b"")
        with suppress(Conflict, InvalidParams):
            self.stream.append([Draft(ExtensionMessage.event_type(), raw)])

    def note_permission(self, payload: Payload, place: ReservedEvent | None = None) -> Receipt | None:
        """Append it to the session's stream, or fill the place that it has there; and its projection to the host's."""
        receipt = None
        if place is None:
            receipt = self.note(payload)
        else:
            place.fill(event_types.draft(payload))
        match payload:
            case PermissionAsked():
                told = PermissionUpdated(id=payload.id, session_id=self.id, state="pending", ask=payload)
                self._core.stream.publish(told)
            case PermissionAnswered(id=name, outcome=outcome, by=by):
                state: Literal["superseded", "answered"] = (
                    "superseded" if outcome == "superseded" else "answered"
                )
                told = PermissionUpdated(id=name, session_id=self.id, state=state, outcome=outcome, by=by)
                self._core.stream.publish(told)
        return receipt

    def reserve_permission(self, asked: PermissionAsked) -> ReservedEvent | None:
        """Reserve its place among the updates; None where the session takes no more. It is told to nobody before that is
        filled."""
        with suppress(Conflict, InvalidParams):
            return self.stream.reserve(self._draft(asked))
        return None

    def record(self, *payloads: Payload) -> Receipt:
        receipt = self.stream.append([self._draft(payload) for payload in payloads])
        if (observe := self._core.options.observe) is not None:
            for payload in payloads:
                if isinstance(payload, _OBSERVED):
                    observe(self.id, payload)
        return receipt

    def _draft(self, payload: Payload) -> Draft:
        try:
            return event_types.draft(payload)
        except UNWRITABLE as error:
            self._core.stream.reject(payload, error, session_id=self.id)
            what = f"cannot record {payload.event_type()} in session {self.id}: no JSON can be made of it"
            raise InvalidParams(f"{what}; give plain data") from None

    # The agent speaks.

    def heard(self) -> None:
        """Note a sign of life of its agent."""
        self.heard_at = self._core.clock.monotonic()

    def updates(self, drafts: list[Draft]) -> None:
        self.heard()
        self.stream.append(drafts)
        looks = False
        for draft in drafts:
            if draft.type in TOOL_CALL_TYPES:
                self.talk.take_call(draft)
            elif draft.type in OFFER_TYPES:
                self.offers = self.offers.after(draft)
                self.has_config |= bool(self.offers.options)  # some name them late
                looks = True
            elif draft.type == "session-info-update":
                self._retitle(event_types.decode(draft))
        if looks:  # at the last word of them: what it said before may be of before it was put right
            self._look_at_mode()

    def _retitle(self, info: object) -> None:
        if not isinstance(info, SessionInfoUpdate):
            return
        title = self.meta.title if info.title is UNSET else info.title
        updated_at = self.meta.updated_at if info.updated_at is UNSET else info.updated_at
        self._set_meta_soon(msgspec.structs.replace(self.meta, title=title, updated_at=updated_at))
        self.publish()


async def _saved(writing: Awaitable[None]) -> None:
    with suppress(LegationError):
        await writing
