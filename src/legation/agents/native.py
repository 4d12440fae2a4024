"""The common part of drivers whose agents do not speak ACP: how they tell and ask the host.

A driver is a `NativeAgent` with the methods of `driver.Driver`; what its agent cannot do it leaves as it is here.

INV-N1  A line that is too much for the loop is decoded by nobody here (INV-L1): drivers decode its digest. The line itself
        stands beside what they make of it, whole.
INV-N2  Nothing is allowed that somebody saw a part of: a request that is such a line is refused, and so is one about a call
        that such a line told.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

import msgspec

from legation.agents import outlines
from legation.agents.driver import Driver, OnAnswer, OpenRequest, SessionStart
from legation.agents.pool import Pool
from legation.agents.rpc import SHOWN_BYTES, SLICE_LINES, AgentListener, AgentRefused, RpcFault
from legation.errors import AgentError, InvalidParams, LegationError
from legation.proc import Child, Command, Launcher, Pipes
from legation.proc.lines import MAX_LINE
from legation.wire import event_types, jsontext
from legation.wire.acp.methods import (
    ClientCapabilities,
    CreateElicitationRequest,
    CreateElicitationResponse,
    ElicitationCapabilities,
    InitializeResponse,
    ListSessionsResponse,
    NameValue,
    PermissionOption,
    RequestPermissionRequest,
    RequestPermissionResponse,
    SelectedOutcome,
    SessionSetup,
)
from legation.wire.acp.rpc import AgentMethod, ClientMethod, ErrorCode, RpcError, Shape
from legation.wire.acp.updates import (
    ContentBlock,
    EmbeddedResource,
    ResourceLink,
    SessionUpdate,
    Text,
    ToolCall,
    ToolCallPatch,
    ToolCallUpdate,
)
from legation.wire.event_types import DiagnosticCode
from legation.wire.events import UNRECOGNIZED, Draft

ALLOW: Final = "allow"
REJECT: Final = "reject"
ONCE: Final = (
    PermissionOption(option_id=ALLOW, name="Allow once", kind="allow_once"),
    PermissionOption(option_id=REJECT, name="Reject", kind="reject_once"),
)
META: Final = "legation"  # whose member of `_meta` it is
TOO_LONG: Final = f"it is longer than {outlines.MOST_BYTES} bytes, or of more than {outlines.MOST_MARKS} values, which nobody could be shown"

_T = TypeVar("_T")
_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DriverContext:
    """Everything that a driver is given.

    `command` is the agent's program with its environment; its folder is for an agent that no session gives another.
    `trusts` says of a folder whether the agent's configuration in it counts: hooks, allow rules, MCP servers.
    """

    command: Command
    launcher: Launcher
    pipes: Pipes
    listener: AgentListener
    pool: Pool
    trusts: Callable[[str], bool]
    beginning: SessionStart = field(default_factory=SessionStart)  # of sessions by ACP


@dataclass(frozen=True, slots=True)
class PermissionDecision:
    """A decision of the host. `cancelled`: nobody decided, for the turn is over. `params` are other arguments to act on."""

    allowed: bool
    cancelled: bool = False
    message: str | None = None
    params: Mapping[str, object] | None = None


class PendingReply(Generic[_T]):
    """An answer that is still to come. It is given once; what comes after it counts for nothing."""

    def __init__(self, on_answer: OnAnswer[_T] = None) -> None:
        self._on_answer = on_answer
        self._answer: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        self._answer.add_done_callback(_look_at)

    @property
    def given(self) -> bool:
        return self._answer.done()

    def give(self, answer: _T | AgentError) -> None:
        """Give the answer, in its place among the updates (INV-D1)."""
        if self._answer.done():
            return
        if self._on_answer is not None:
            self._on_answer(answer)
        if isinstance(answer, AgentError):
            self._answer.set_exception(answer)
        else:
            self._answer.set_result(answer)

    def fail(self, error: LegationError) -> None:
        """There will be none: the agent has ended."""
        if not self._answer.done():
            self._answer.set_exception(error)

    async def value(self) -> _T:
        return await asyncio.shield(self._answer)


def _look_at(answer: asyncio.Future[Any]) -> None:
    """Fetch an error that nobody may wait for: it is no news."""
    if not answer.cancelled():
        answer.exception()


Trouble = Callable[[DiagnosticCode, str], None]


async def read_lines(
    child: Child, take: Callable[[bytes, bytes], None], room: Callable[[], Awaitable[None]], trouble: Trouble
) -> None:
    """All that an agent writes. `take` gets each line, and what is to be decoded in its place: mostly the line itself.
    After so many lines everybody else has a turn."""
    handled = 0
    with outlines.reader.in_use():
        async for lines in child.lines():
            for line in lines:
                is_heavy = outlines.is_heavy(line) or outlines.is_unread(line)
                take(*(await brief_of(line, trouble) if is_heavy else (line, line)))
                handled += 1
                if handled % SLICE_LINES == 0:
                    await asyncio.sleep(0)
            await room()


async def brief_of(line: bytes, trouble: Trouble) -> tuple[bytes, bytes]:
    """A line that is too much for the loop, and its digest (INV-N1): empty where no parser takes it. The line is as it was,
    unless that is no UTF-8."""
    found = await outlines.reader.read(line, native=True)
    if found is None:
        return line, b""
    if not outlines.is_heavy(line):  # it can be kept and shown as it is
        return line, found.digest.encode()
    if not found.whole and found.part[1] > MAX_LINE:  # U+FFFD is longer than what it stands for
        trouble(DiagnosticCode.AGENT_LINE_TOO_LONG, f"skipped a line of {len(line)} bytes, which is no UTF-8")
        return b"", b""
    if not found.whole:
        what = f"a line of {len(line)} bytes is no UTF-8: it is kept with U+FFFD where it is none"
        trouble(DiagnosticCode.AGENT_STRAY_LINE, what)
        line = await outlines.as_text(line)
    long = outlines.LongLine(line)
    long.digest, long.texts = found.digest.encode(), found.texts
    long.base64 = await outlines.as_base64(line)
    return long, long.digest


class _Option(Protocol):
    @property
    def label(self) -> str: ...
    @property
    def description(self) -> str: ...


def question_field(
    title: str, question: str, options: Iterable[_Option], *, many: bool = False
) -> dict[str, object]:
    """The field of a form that asks it. Where there are options an answer is one of them, or with `many` some."""
    choices = [
        {"const": each.label, "title": each.label, "description": each.description} for each in options
    ]
    about = {"title": title, "description": question}
    if many:
        return {"type": "array", **about, "items": {"anyOf": choices}}
    return {"type": "string", **about, **({"oneOf": choices} if choices else {})}


def pairs(values: tuple[NameValue, ...] | None) -> dict[str, str]:
    """Variables or headers of an MCP server, as most agents want them."""
    return {each.name: each.value for each in values or ()}


def unknown_session(method: AgentMethod) -> AgentRefused:
    return AgentRefused(method, RpcError(ErrorCode.RESOURCE_NOT_FOUND, "there is no such session"))


def find_session(sessions: Mapping[str, _T], method: AgentMethod, session_id: str) -> _T:
    if session_id not in sessions:
        raise unknown_session(method)
    return sessions[session_id]


def block_text(block: ContentBlock) -> str | None:
    """The block of a prompt as text; None for one that is none."""
    match block:
        case Text(text=text):
            return text
        case ResourceLink(uri=uri, name=name):
            return f"[{name}]({uri})"
        case EmbeddedResource(resource=resource) if resource.text is not None:
            return f'<context ref="{resource.uri}">\n{resource.text}\n</context>'
    return None


class NativeAgent(Driver):
    HELLO: ClassVar[InitializeResponse]

    def __init__(self, context: DriverContext) -> None:
        super().__init__(context.command.name, self.HELLO)
        self._context = context
        self._listener = context.listener
        self._client = ClientCapabilities()
        self._cut: set[tuple[str, str]] = set()  # calls of which a digest is known (INV-N2)

    # The connection.

    async def initialize(self, capabilities: ClientCapabilities, timeout: float) -> None:
        """Raises what `begin` raises: whoever made it stops it then."""
        self._client = capabilities
        await self.begin(timeout)
        self.announced = msgspec.to_builtins(self.hello)

    async def begin(self, timeout: float) -> None:
        """Start what all sessions need."""

    async def authenticate(self, method_id: str, timeout: float) -> None:  # noqa: ARG002
        known = ", ".join(way.id for way in self.auth_methods) or "none at all"
        raise InvalidParams(
            f"cannot sign in to {self.name!r} with {method_id!r}: it offers {known}; run `legation agents login`"
        )

    async def logout(self, timeout: float) -> None:  # noqa: ARG002
        self._abilities.require(AgentMethod.LOGOUT)

    async def pass_on(self, method: str, params: object, timeout: float | None) -> bytes:  # noqa: ARG002
        error = RpcError(ErrorCode.METHOD_NOT_FOUND, f"{self.name} does not speak ACP and knows no {method}")
        raise AgentRefused(method, error)

    async def tell(self, method: str, params: object) -> None:
        """A notification that is none of ours says nothing to an agent that speaks another protocol."""

    # Sessions. What an agent cannot do is refused by its capabilities.

    async def load_session(
        self,
        request: OpenRequest,  # noqa: ARG002
        timeout: float,  # noqa: ARG002
        *,
        on_answer: OnAnswer[SessionSetup] = None,  # noqa: ARG002
    ) -> SessionSetup:
        raise self._cannot(AgentMethod.SESSION_LOAD)

    async def list_sessions(
        self,
        cwd: str | None,  # noqa: ARG002
        cursor: str | None,  # noqa: ARG002
        timeout: float,  # noqa: ARG002
    ) -> ListSessionsResponse:
        raise self._cannot(AgentMethod.SESSION_LIST)

    async def close_session(self, session_id: str, timeout: float) -> None:  # noqa: ARG002
        raise self._cannot(AgentMethod.SESSION_CLOSE)

    async def delete_session(self, session_id: str, timeout: float) -> None:  # noqa: ARG002
        raise self._cannot(AgentMethod.SESSION_DELETE)

    def _cannot(self, method: AgentMethod) -> LegationError:
        try:
            self._abilities.require(method)
        except LegationError as error:
            return error
        return AgentError(
            f"cannot call {method}: the driver of {self.name!r} has no such call"
        )  # a mistake of ours

    # What it says.

    def say(self, session_id: str, *updates: SessionUpdate, native: bytes = b"") -> None:
        """Updates that one line of the agent's makes; the line stands beside the first of them. A line that makes none
        is a sign of life."""
        drafts = []
        long = native if isinstance(native, outlines.LongLine) else None
        for update in updates:
            drafts.append(
                event_types.update_draft(session_id, update, native, whole=long.put_back if long else None)
            )
            native = b""
            if long and (
                isinstance(update, ToolCall)
                or (isinstance(update, ToolCallUpdate) and update.raw_input is not None)
            ):
                self.mark_cut(session_id, update.tool_call_id)
        self._listener.updates(session_id, drafts)

    def say_unknown(self, session_id: str, line: bytes) -> None:
        """A line that this driver does not understand is kept as it came, never dropped."""
        digest = line.digest if isinstance(line, outlines.LongLine) else b""
        self._listener.updates(session_id, [Draft(UNRECOGNIZED, line, digest=digest)])

    def hear(self, session_id: str, hear: Callable[[bytes, bytes], None], line: bytes, brief: bytes) -> None:
        """Hand a line on; what cannot be understood for a fault of ours is kept as one that is unknown."""
        try:
            hear(line, brief)
        except Exception:  # noqa: BLE001 - nothing that an agent says may end the reading
            _log.exception("cannot understand a line of %r", self.name)
            self.say_unknown(session_id, line)

    # What it asks.

    @property
    def elicitation(self) -> ElicitationCapabilities:
        """The ways in which the host's client can be asked."""
        return self._client.elicitation or ElicitationCapabilities()

    @property
    def can_ask_questions(self) -> bool:
        return self.elicitation.form is not None

    def trouble(self, code: DiagnosticCode, message: str) -> None:
        self._listener.trouble(code, message)

    def ask_permission(self, session_id: str, call: ToolCallPatch) -> asyncio.Task[PermissionDecision]:
        """Ask the host. The question is recorded in its place before this returns; cancelling the task takes it back."""
        if (session_id, call.tool_call_id) in self._cut:
            return asyncio.create_task(_now(self.refused_permission()))
        request = RequestPermissionRequest(session_id=session_id, tool_call=call, options=ONCE)
        return self._ask(ClientMethod.REQUEST_PERMISSION, request, _permission, _refused)

    def mark_cut(self, session_id: str, call_id: str) -> None:
        """All that is known of the call is a digest: it will not be permitted (INV-N2)."""
        self._cut.add((session_id, call_id))

    def tell_refused(self, why: str, call_id: object = None) -> None:
        """A word to those who read: nobody was asked, about that call."""
        about = f" for call {call_id[:SHOWN_BYTES]!r}" if isinstance(call_id, str) else ""
        what = f"the agent asked for a permission{about}, was refused, and nobody was asked: {why}"
        self._listener.trouble(DiagnosticCode.AGENT_UNREADABLE_PERMISSION, what)

    def refused_permission(self) -> PermissionDecision:
        """The answer to a question that nobody could be shown, with a word to those who read (INV-N2)."""
        self.tell_refused(TOO_LONG)
        return PermissionDecision(
            allowed=False, message=f"This cannot be permitted: {TOO_LONG}. Do it in smaller parts."
        )

    def ask_question(self, request: CreateElicitationRequest) -> asyncio.Task[CreateElicitationResponse]:
        """Ask the user, as for a permission. Where nobody can be asked the answer is `cancel`."""
        return self._ask(ClientMethod.ELICITATION_CREATE, request, _answer, _unanswered)

    def _ask(
        self,
        method: ClientMethod,
        request: Shape,
        read: Callable[[object], _T],
        fault: Callable[[RpcFault], _T],
    ) -> asyncio.Task[_T]:
        try:
            coming = asyncio.ensure_future(self._listener.request(method, jsontext.write(request)))
        except RpcFault as refused:
            return asyncio.create_task(_now(fault(refused)))

        async def answer() -> _T:
            try:
                return read(await coming)
            except RpcFault as refused:
                return fault(refused)

        def take_back(task: asyncio.Task[_T]) -> None:
            """A task that is cancelled before its first step has cancelled nothing that it would wait for."""
            if task.cancelled():
                coming.cancel()

        asked = asyncio.create_task(answer(), name=f"legation-asked-{self.name}")
        asked.add_done_callback(take_back)
        return asked


async def _now(answer: _T) -> _T:
    return answer


def _permission(answer: object) -> PermissionDecision:
    assert isinstance(answer, RequestPermissionResponse)
    said = (answer.meta or {}).get(META)
    words: Mapping[str, object] = said if isinstance(said, Mapping) else {}
    message, params = words.get("message"), words.get("params")
    selected = isinstance(answer.outcome, SelectedOutcome)
    return PermissionDecision(
        allowed=isinstance(answer.outcome, SelectedOutcome) and answer.outcome.option_id == ALLOW,
        cancelled=not selected,
        message=message if isinstance(message, str) else None,
        params=params if isinstance(params, Mapping) else None,
    )


def _refused(fault: RpcFault) -> PermissionDecision:
    return PermissionDecision(allowed=False, message=fault.error.message)


def _answer(answer: object) -> CreateElicitationResponse:
    assert isinstance(answer, CreateElicitationResponse)
    return answer


def _unanswered(_: RpcFault) -> CreateElicitationResponse:
    return CreateElicitationResponse(action="cancel")
