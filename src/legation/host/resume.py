"""Taking up a session that an agent already has: by loading its history, or by going on where it was.

Staged: until the agent has agreed and the store has it, nobody sees a change but `resuming`, and of a session
that was not known here nobody sees anything.

An agent tells a history in other pieces than it once came in: chunks joined, a call with its updates in one, prompts as
messages of the user, thoughts left out. So what it tells and the record are compared by what they say: `Account`.

INV-U1  What an agent tells never takes anything away: it becomes a new generation, or nothing where it says what is
        recorded already.
INV-R1  An account takes no more memory than the calls that it names: of what is said there are digests.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import UNSET

from legation.agents.driver import Driver, OpenRequest
from legation.agents.modes import OFFER_TYPES, Offers, OpenedSession, Put, put_into_asking
from legation.agents.rpc import AgentRefused, printable
from legation.errors import (
    AgentError,
    AgentExited,
    CapabilityUnsupported,
    LegationError,
    SessionClosed,
    TimedOut,
    TransportClosed,
)
from legation.host.agent import Agent
from legation.host.options import SessionMeta
from legation.host.router import Held
from legation.host.session import Session
from legation.host.turn import CutWords
from legation.store.digest import Opened, digest
from legation.store.stream import Stream
from legation.wire import jsontext
from legation.wire.acp.methods import McpServer, SessionSetup
from legation.wire.acp.rpc import ErrorCode, RpcError
from legation.wire.event_types import (
    CUT,
    Diagnostic,
    DiagnosticCode,
    PermissionAnswered,
    PromptFinished,
    PromptStarted,
    QuestionAnswered,
    SessionUpdated,
    TurnState,
)
from legation.wire.events import UNRECOGNIZED, Draft, Event, Payload

if TYPE_CHECKING:
    from legation.host.host import AcpHost

LONGEST: Final = 1024 * 1024  # bytes of an event that is looked into
STEP: Final = 500  # events that are folded before others have their turn,
STEP_BYTES: Final = 256 * 1024  # or so many bytes of them: a few milliseconds
MOST_ESCAPED: Final = 8  # bytes of JSON for one of a text, and what stands around that
FIRST_LOOK: Final = 4000  # events before the end in which a transcript may find enough
LEFT_OUT: Final = "[what came before is left out]"

_PROMPT: Final = PromptStarted.event_type()
_USER, _AGENT = "user-message-chunk", "agent-message-chunk"
_PLANS: Final = frozenset(("plan", "plan-update", "plan-removed"))
_CALLS: Final = frozenset(("tool-call", "tool-call-update"))
_OTHERS: Final = frozenset(("compaction-summary-chunk", UNRECOGNIZED))
# All else is our own, or says how the agent is set up, what it thinks or what it costs: that is no history.
_COUNTED: Final = _CALLS | _OTHERS | _PLANS | {_PROMPT, _USER, _AGENT}
_OF_ITS_OWN: Final = frozenset((_PROMPT, "tool-call"))  # never a piece of what was said before
_MARKS: Final = re.compile(r"\[(?=(?:user|agent|tool)\])|<(?=/?transcript>)", re.IGNORECASE)
_HEADED: Final = len("[agent]\n\n\n")  # characters around what somebody said
_NOT_OF_A_CALL: Final = frozenset(("sessionUpdate", "toolCallId", "_meta"))

Row = Event | Draft


def _read_row(row: Row) -> dict[str, object]:
    """Return nothing of what cannot be read, or would hold up others while it is."""
    return jsontext.read_object(row.payload) if len(row.raw) <= LONGEST else {}


def _prompt_of(row: Row) -> Sequence[object]:
    blocks = _read_row(row).get("prompt")
    return blocks if isinstance(blocks, list) else [row.raw.decode(errors="replace")]


class Account:
    """Fed with rows in order; `end` it before it is looked at. `updates` is how many of them it is about."""

    def __init__(self) -> None:
        self.updates = 0
        self._prompts = 0  # messages of the user, one after the other
        self._agent_size = 0  # at least: of what is not looked into it is not known
        self._others = 0
        self._user, self._agent, self._other = blake2b(), blake2b(), blake2b()
        self._calls: dict[str, dict[str, bytes]] = {}
        self._plan: bytes | None = None
        self._unheard: Sequence[object] | None = None  # a prompt that the agent may still repeat as a message
        self._in_user = False

    def add(self, row: Row) -> None:
        if row.type not in _COUNTED:
            return
        self.updates += 1
        update = _read_row(row) or None
        if row.type == _PROMPT:
            self.end()
            self._unheard = _prompt_of(row)
        elif row.type == _USER and update is not None:
            self._unheard = None
            self._add_user([update.get("content")])
        else:
            self.end()
            self._in_user = False
            self._add_said(row, update)

    def _add_user(self, blocks: Iterable[object]) -> None:
        self._prompts += not self._in_user
        self._in_user = True
        for block in blocks:
            self._user.update(_text_of(block))

    def _add_said(self, row: Row, update: Mapping[str, object] | None) -> None:
        if update is None or row.type in _OTHERS:
            self._other.update(_digest(update if update is not None else row.payload))
            if row.type == _AGENT:
                self._agent_size += len(row.raw) // MOST_ESCAPED
            else:
                self._others += 1
        elif row.type == _AGENT:
            text = _text_of(update.get("content"))
            self._agent_size += len(text)
            self._agent.update(text)
        elif row.type in _PLANS:
            self._plan = _digest({name: value for name, value in update.items() if name != "_meta"})
        else:
            told = {name: _digest(value) for name, value in update.items() if name not in _NOT_OF_A_CALL}
            self._calls.setdefault(str(update.get("toolCallId")), {}).update(told)

    def end(self) -> None:
        unheard, self._unheard = self._unheard, None
        if unheard is not None:
            self._add_user(unheard)

    def has_all_of(self, told: Account) -> bool:
        """`told` says the same, or leaves out what agents leave out: the user's messages, the plan, parts of a call."""
        return (
            self._agent.digest() == told._agent.digest()
            and (not told._prompts or self._user.digest() == told._user.digest())
            and self._other.digest() == told._other.digest()
            and (told._plan is None or self._plan == told._plan)
            and [*self._calls] == [*told._calls]
            and all(parts.items() <= self._calls[name].items() for name, parts in told._calls.items())
        )

    def is_longer_than(self, told: Account) -> bool:
        return (
            self._agent_size > told._agent_size
            or len(self._calls) > len(told._calls)
            or self._prompts > told._prompts > 0
            or (
                told._agent_size == self._agent_size
                and len(told._calls) == len(self._calls)
                and self._others > told._others
            )
        )


async def account_of(rows: AsyncIterator[Sequence[Row]]) -> Account:
    account = Account()
    async for row in _in_turn(rows):
        account.add(row)
    account.end()
    return account


async def _in_turn(batches: AsyncIterator[Sequence[Row]]) -> AsyncIterator[Row]:
    """Yield one row after the other; a long history is no reason for others to wait."""
    count = size = 0
    async for batch in batches:
        for row in batch:
            yield row
            count, size = count + 1, size + len(row.raw)
            if count >= STEP or size >= STEP_BYTES:
                count = size = 0
                await asyncio.sleep(0)


async def in_one_batch(replay: Sequence[Draft]) -> AsyncIterator[Sequence[Row]]:
    yield replay


async def transcript_of(stream: Stream, limit: int) -> str:
    """The last of it as text, about so many characters at most: who said what, and which tools were used."""
    events = FIRST_LOOK
    while True:
        after = stream.visible - events
        found = await _transcript_of(stream, max(after, 0), limit)
        if found.startswith(LEFT_OUT) or after < stream.floor:
            return found
        events *= 4


async def _transcript_of(stream: Stream, after: int, limit: int) -> str:
    told: deque[tuple[str, deque[str]]] = deque()
    size, cut = 0, False
    async for row in _in_turn(stream.subscribe(after, follow=False).batches()):
        who, text = _words_of(row)
        if not text:
            continue
        if row.type in _OF_ITS_OWN or not told or told[-1][0] != who:
            told.append((who, deque()))
            size += _HEADED
        told[-1][1].append(text)
        size += len(text)
        while size > limit and (len(told) > 1 or len(told[0][1]) > 1):
            size -= len(told[0][1].popleft())
            cut = True
            if not told[0][1]:
                told.popleft()
                size -= _HEADED
    if size > limit:
        [(who, [text])] = told
        told, cut = deque([(who, deque((text[len(text) - limit + _HEADED :],)))]), True
    # No word of anybody's can be taken for another's, or for the end of what is told.
    quoted = [(who, _MARKS.sub(r"\\\g<0>", "".join(pieces))) for who, pieces in told]
    said = "\n\n".join(f"[{who}]\n{text}" for who, text in quoted)
    return f"{LEFT_OUT}\n\n{said}" if cut else said


def _words_of(row: Row) -> tuple[str, str]:
    """Return who speaks, and what; nothing where a row has no words."""
    if row.type == _PROMPT:
        return "user", "\n".join(map(_shown_block, _prompt_of(row)))
    if row.type not in (_USER, _AGENT, "tool-call"):
        return "", ""
    update = _read_row(row)
    if row.type == "tool-call":
        return "tool", str(update.get("title") or "")
    return "user" if row.type == _USER else "agent", _shown_block(update.get("content"))


def _shown_block(block: object) -> str:
    if not isinstance(block, dict):
        return ""
    return str(block.get("text") or block.get("uri") or "")


def _text_of(block: object) -> bytes:
    """Return the bytes of a text, however it was cut; of anything else a digest."""
    if isinstance(block, dict) and block.get("type") == "text" and isinstance(block.get("text"), str):
        text: str = block["text"]
        return text.encode(errors="surrogatepass")
    return _digest(block)


def _digest(value: object) -> bytes:
    try:
        raw = value if isinstance(value, bytes) else msgspec.json.encode(value, order="sorted")
    except (UnicodeEncodeError, OverflowError):
        raw = json.dumps(value, sort_keys=True).encode()
    return blake2b(raw, digest_size=16).digest()


_HOST_ENDED = CutWords("the host ended before", "the host ended before")


async def unfinished_events(stream: Stream, after: int = 0, why: CutWords = _HOST_ENDED) -> list[Payload]:
    """Return the events that close what was begun above `after` and has no end, the last first."""
    still_open = (await digest(stream)).open.items()
    ends = [_ends(name, each.kind, why) for name, each in still_open if each.seq > after]
    return [end for each in reversed(ends) for end in each]


def _ends(name: str, kind: Opened, why: CutWords) -> list[Payload]:
    match kind:
        case "permission":
            return [PermissionAnswered(id=name, outcome="superseded", by="legation", reason=why.waited)]
        case "question":
            return [QuestionAnswered(id=name, outcome="superseded", by="legation", reason=why.waited)]
        case "turn":
            error = RpcError(ErrorCode.INTERNAL_ERROR, why.ran, CUT)
            finished = PromptFinished(turn=name, stop_reason="cancelled", error=error)
            return [finished, TurnState(turn=name, state="idle", reason="cancelled")]


# What a resumed agent may say of its state before it answers; anything else would be history.
_STATE: Final = OFFER_TYPES | {"available-commands-update", "session-info-update", "usage-update"}

IN_A_NEW_ONE: Final = "go on in a new session that continues this one"
WAYS_OUT: Final = f"try again, or {IN_A_NEW_ONE}"
SHOWN_DATA: Final = 500  # characters of what an agent adds to an error


@dataclass(frozen=True, slots=True)
class ResumeOrLoad:
    """One session, to be taken up by one agent. One that is not `known` is made once there is something to show. `resumes`:
    else only a load does it, of one that was closed or that only the agent knows."""

    core: AcpHost
    agent: Agent
    session_id: str
    known: Session | None
    meta: SessionMeta
    mcp: tuple[McpServer, ...]
    resumes: bool

    @property
    def _request(self) -> OpenRequest:
        meta = self.meta
        return OpenRequest(meta.cwd, self.mcp, meta.additional_directories, meta.agent_session_id)

    async def resume_or_load(self) -> SessionUpdated:
        """Resume where it may and the agent can, load where it refuses. An end meanwhile is no refusal."""
        live = self.agent.running()
        if self.resumes and live.can_resume:
            try:
                return await self.resume()
            except SessionClosed:
                raise
            except AgentExited as exited:
                raise self._not_taken_up(exited) from None
            except LegationError as refused:
                # A load would open again what was closed while the agent refused to resume it.
                if self.known is not None and (
                    self.known.ending or self.known.status in ("closed", "deleted")
                ):
                    raise _closed_meanwhile(self.known) from refused
                if not live.can_load:
                    raise self._not_taken_up(refused) from None
        if live.can_load:
            try:
                return await self.load(keeps_longer=True)
            except (AgentError, TimedOut) as refused:
                raise self._not_taken_up(refused) from None
        name = self.agent.definition.name or "its agent"
        why = "can neither resume nor load one" if self.resumes else "cannot load one"
        how = "" if self.resumes or self.known is None else "it was closed, and "
        another = "start another" if self.known is None else IN_A_NEW_ONE
        raise CapabilityUnsupported(f"cannot take up session {self.session_id}: {how}{name} {why}; {another}")

    def _not_taken_up(self, refused: LegationError) -> LegationError:
        """Say all that the agent said, and what can be done."""
        if not isinstance(refused, AgentRefused):
            if isinstance(refused, AgentError | TimedOut):  # it may do the same each time
                refused.message += f", or {IN_A_NEW_ONE}" if ";" in refused.message else f"; {WAYS_OUT}"
            return refused
        said = refused.error
        message = f"{said.message}{_details(said.data)}; {WAYS_OUT}"
        data = {} if said.data is UNSET else {"data": said.data}
        return AgentRefused(refused.method, RpcError(said.code, message, said.data), data=data)

    async def load(self, *, keeps_longer: bool = False) -> SessionUpdated:
        """`keeps_longer`: what is shown stays where the agent tells less; who loads by hand wants what it tells."""
        live = self.agent.running()
        async with self._staged() as held:
            try:
                setup = await live.load_session(self._request, self.core.limits.start, on_answer=held.mark)
                setup, puts = await self._put_right(live, setup)
                session = await self._session()
                told = await account_of(in_one_batch(held.replay))
                shown = await account_of(session.stream.subscribe(follow=False).batches())
                await self._session()  # that took a while
                shorter = keeps_longer and shown.is_longer_than(told)
                if shorter or (shown.has_all_of(told) and session.stream.head):
                    await self._keep(session)
                else:
                    await session.begin_generation(self.meta, held.replay)
            except LegationError as error:
                self._diagnose(DiagnosticCode.SESSION_LOAD_FAILED, error.message)
                raise
            await self._commit(session, live, setup, puts)
            if shorter:
                what = (
                    f"the agent told {told.updates} updates of session {session.id} and {shown.updates} are recorded: "
                    "what is recorded stays, and the agent may have forgotten the rest"
                )
                self._diagnose(DiagnosticCode.SESSION_REPLAY_SHORTER, what, session)
        return session.snapshot()

    async def _keep(self, session: Session) -> None:
        """Keep what is recorded as it is; a load opens one that was closed."""
        await session.keep(self.meta)
        if session.agent_id is None:  # the record is of an earlier host
            for end in await unfinished_events(session.stream):
                session.note_permission(end)

    async def resume(self) -> SessionUpdated:
        live = self.agent.running()
        async with self._staged() as held:
            setup = await live.resume_session(self._request, self.core.limits.start, on_answer=held.mark)
            setup, puts = await self._put_right(live, setup)
            session = await self._session()
            if session.stream.info().state != "open":
                raise SessionClosed(f"cannot resume session {session.id}: it is closed; load it to reopen it")
            await self._keep(session)
            kept = [draft for draft in held.replay if draft.type in _STATE]
            await self._commit(session, live, setup, puts, kept)
        return session.snapshot()

    async def _put_right(self, live: Driver, setup: SessionSetup) -> tuple[SessionSetup, list[Put]]:
        """Put an agent that comes back into a mode in which it asks, before anybody speaks to it. One that does not say
        which it is in is told."""
        modes, said = self.agent.definition.modes, Offers.of(setup)
        unsaid = self.known.offers.modes if self.known is not None and said.modes is None else None
        offers = said if unsaid is None else Offers(unsaid, said.options)
        opening = OpenedSession(live, self.meta.agent_session_id, offers, self.core.limits.start, modes)
        puts = await put_into_asking(opening, modes)
        if unsaid is not None and opening.offers.modes == unsaid and not puts:
            try:
                await opening.set_mode(unsaid.current_mode_id)
            except (AgentExited, TransportClosed):
                raise
            except LegationError as error:
                why = f"it is not known whether it is still in it: {error.message}"
                puts = [Put(unsaid.current_mode_id, None, why)]
        return opening.offers.told_in(setup) if puts else setup, puts

    @asynccontextmanager
    async def _staged(self) -> AsyncIterator[Held]:
        name, router = self.meta.agent_session_id, self.agent.router
        router.must_not_be_shared(name, self.known)
        with ExitStack() as undo:
            if self.known is not None:
                self.known.begin_attach()
                undo.callback(self.known.give_up_attach)
            held = router.hold(name)
            undo.callback(router.release, name)
            yield held
            undo.pop_all()

    async def _session(self) -> Session:
        if self.known is None:
            return Session(await self.core.session_stream(self.session_id), self.meta, self.core)
        self._must_be_wanted(self.known)
        return self.known

    def _must_be_wanted(self, session: Session) -> None:
        """Give way to whoever has ended it meanwhile, or does so now."""
        if session.status != "resuming" or session.ending:
            raise _closed_meanwhile(session)

    async def _commit(
        self,
        session: Session,
        live: Driver,
        setup: SessionSetup,
        puts: Sequence[Put],
        kept: Sequence[Draft] = (),
    ) -> None:
        if self.known is None:
            self.core.sessions[session.id] = session
        else:
            self._must_be_wanted(session)
        active = session.attach(self.agent, live, setup, self.mcp)
        session.tell_modes(puts, "opened")
        if puts:  # what it said of its mode before is no longer so
            kept = [draft for draft in kept if draft.type not in OFFER_TYPES]
        if kept:
            session.updates([*kept])
        self.agent.serve(session, live)
        self.agent.router.release(self.meta.agent_session_id)
        if active:
            await active

    def _diagnose(self, code: DiagnosticCode, what: str, session: Session | None = None) -> None:
        told = Diagnostic(code=code, message=what, agent_id=self.agent.id)
        self.core.stream.publish(msgspec.structs.replace(told, session_id=self.session_id))
        if session is not None:
            session.note(told)


def _closed_meanwhile(session: Session) -> SessionClosed:
    return SessionClosed(f"cannot take up session {session.id}: it was closed meanwhile; start another")


def _details(data: object) -> str:
    """Show what an agent says beside "Internal error": mostly all there is to know."""
    if data is UNSET or data is None or data in ("", {}, []):
        return ""
    if isinstance(data, dict):
        data = next((data[name] for name in ("details", "message") if isinstance(data.get(name), str)), data)
    raw = data.encode(errors="replace") if isinstance(data, str) else jsontext.write(data)
    return f" ({printable(raw)[:SHOWN_DATA]})"
