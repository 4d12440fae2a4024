"""Tools behind the door: for which agent one is called, what carries out a call after it was decided, which trace id the call
gets, and how one that came to no result is told to whoever made it.

INV-T1  A trace id names one call: the steps and the sealed arguments of two calls are never joined.

A W3C trace spans many calls, so an id that is taken is no mistake of whoever sends `Traceparent`: its next call gets
a new one. `X-Trace-Id` names this very call: a second one with it is refused, which is how a caller that does not
know whether its request arrived can send it again.
INV-G1  An agent's own credential asks for that agent and for no other. Any other credential says for whom it asks.
INV-R1  What a tool said is told to its caller and stands in no log: `str()` of these errors, which is what a log
        takes, is without it.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Literal, Protocol, Self, TypeAlias, get_args

import msgspec

from legation.approvals.policy.facts import Facts
from legation.approvals.request import DoorResult, EffectToken, ToolReturn
from legation.approvals.trace.entries import steps_of
from legation.approvals.trace.step import new_trace_id
from legation.errors import (
    AgentError,
    Conflict,
    Forbidden,
    InvalidParams,
    LegationError,
    NotFound,
    RateLimited,
    Status,
    TimedOut,
    Unavailable,
)
from legation.redact import Redactor
from legation.secret import Secret
from legation.store.database.transaction import Database
from legation.wire.acp.updates import ToolCall, ToolKind
from legation.wire.action import Action, Sort
from legation.wire.principal import AGENT_NAME_RULE, Principal, is_agent_name

if TYPE_CHECKING:
    import httpx2


class Tool(Protocol):
    @property
    def name(self) -> str:
        """Exact; of a server with several tools it is `server.tool`."""

    @property
    def kind(self) -> ToolKind:
        """ACP's, for policies."""

    @property
    def folder(self) -> str | None:
        """The folder in which its relative paths begin."""

    @property
    def arguments(self) -> Mapping[str, Sort]:
        """The sorts of its arguments, as its owner tells them, by name."""

    async def call(self, action: Action, token: EffectToken) -> ToolReturn:
        """The effect, once. A failure is a `Returned` too; words of the tool are in it without our secrets."""


def action_for(agent: str, tool: str, kind: ToolKind, params: Mapping[str, object], facts: Facts) -> Action:
    """The same reading of paths, commands and addresses as of any agent's tool call. Without a folder they begin at `/`."""
    call = ToolCall(tool_call_id="", title="", name=tool, kind=kind, raw_input=params)
    return Action.from_tool_call(agent, call, cwd=facts.cwd or "/", home=facts.home, declared=facts.declared)


def facts_of(tool: Tool | None, folder: str | None = None) -> Facts:
    """Facts of a call of the tool; `folder` in place of its own. None: nobody knows it here."""
    place = folder or (tool.folder if tool else None)
    return Facts(workspace=place, cwd=place, declared=tool.arguments if tool else {})


Method: TypeAlias = Literal["POST", "GET", "PUT", "PATCH", "DELETE"]
METHODS: Final[tuple[str, ...]] = get_args(Method)
BODYLESS: Final = frozenset({"GET", "DELETE"})

TIMEOUT: Final = 30.0  # seconds: the tool's time, from the first byte sent to the last one read
MOST_TIMEOUT: Final = 86400.0
MAX_ANSWER: Final = 1 << 20  # bytes
MOST_ANSWER: Final = 64 << 20


class HttpSpec(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    url: str
    method: Method = "POST"
    kind: str = "other"
    timeout: float = TIMEOUT
    headers: Mapping[str, str | Secret] = msgspec.field(default_factory=dict)
    max_answer: int = MAX_ANSWER
    folder: str | None = None
    arguments: Mapping[str, Sort] = msgspec.field(default_factory=dict)

    @property
    def secrets(self) -> tuple[Secret, ...]:
        return tuple(value for value in self.headers.values() if isinstance(value, Secret))


# W3C Trace Context: the distributed trace that a request belongs to, told from one program to the next.

TRACE_ID: Final = re.compile(r"(?!0{32})[0-9a-f]{32}", re.ASCII)

_HEADER: Final = re.compile(
    r"(?P<version>(?!ff)[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<parent>[0-9a-f]{16})-[0-9a-f]{2}(?P<more>-.*)?",
    re.ASCII,
)
_SAMPLED: Final = "01"  # the call is on record here, so that a record of it further on can be found from it


def trace_id_of(header: str | None) -> str | None:
    """Read the trace id; None without one, and of a malformed one: the standard says to go on as if there were none."""
    found = _HEADER.fullmatch(header or "")
    if found is None or (found["version"] == "00" and found["more"]):
        return None
    if found["parent"] == "0" * 16 or not TRACE_ID.fullmatch(found["trace"]):
        return None
    return found["trace"]


def traceparent(trace_id: str) -> str:
    """The header for whom we call: a span of its own in the trace."""
    return f"00-{trace_id}-{secrets.token_hex(8)}-{_SAMPLED}"


REMEMBERED: Final = 10_000  # more than begin in the time that it takes to put a call on record


class TraceIds:
    """Trace ids of one server. The newest are remembered: a call that begins is not on record yet, nor is it if its caller left."""

    def __init__(self) -> None:
        self._newest: dict[tuple[str, str], None] = {}

    async def take(self, database: Database, workspace: str, own: str | None, parent: str | None) -> str:
        """`own` and `parent` are the headers `X-Trace-Id` and `Traceparent`."""
        if own is not None and not TRACE_ID.fullmatch(own):
            raise InvalidParams(
                "cannot use X-Trace-Id: it is not 32 hexadecimal digits in lower case, or all zero; correct it, or "
                "leave it out",
                {"path": "header.X-Trace-Id"},
            )
        wanted = own or (trace_id_of(parent) if parent else None)
        if wanted is None:
            return new_trace_id()
        is_new = self._remember(
            (workspace, wanted)
        )  # before anything is awaited: two of the same may come at once
        if is_new and not await database.read(steps_of, workspace, wanted):
            return wanted
        if own is None:
            return new_trace_id()
        raise Conflict(
            "cannot call the tool: a call with this X-Trace-Id was made; look at /traces for what became of it, or give "
            "a new id to ask again",
            {"trace_id": own},
        )

    def _remember(self, key: tuple[str, str]) -> bool:
        """Remember an id, and tell whether it is new."""
        if key in self._newest:
            return False
        self._newest[key] = None
        if len(self._newest) > REMEMBERED:
            del self._newest[next(iter(self._newest))]
        return True


class Toolbox:
    """`async with` it, for as long as tools are called; at its end the connections to them are closed."""

    def __init__(self, specs: list[HttpSpec], redactor: Redactor) -> None:
        self._specs = specs
        self._redactor = redactor
        self._tools: dict[str, Tool] = {}
        self._transport: httpx2.AsyncBaseTransport | None = None
        self.trace_ids = TraceIds()

    @classmethod
    def load(cls, path: Path | None, environ: Mapping[str, str]) -> Toolbox:
        """Raises ConfigInvalid with every problem. Without a file there are no tools, and every call is 404."""
        redactor = Redactor()
        if path is None:
            return cls([], redactor)
        from legation.gateway.toolfile import read_tools  # only who has tools reads YAML

        return cls(read_tools(path, environ, redactor), redactor)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(spec.name for spec in self._specs)

    @property
    def secrets(self) -> tuple[Secret, ...]:
        """Secrets of all headers: what no log may show."""
        return tuple({secret for spec in self._specs for secret in spec.secrets})

    async def __aenter__(self) -> Self:
        if self._specs:
            from legation.gateway.http_tool import HttpTool, new_transport  # importing httpx2 is slow

            self._transport = transport = new_transport()
            self._tools = {spec.name: HttpTool(spec, transport, self._redactor) for spec in self._specs}
        return self

    async def __aexit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._tools = {}
        if self._transport is not None:
            await self._transport.aclose()

    def get(self, name: str) -> Tool | None:
        """Find a tool by its exact name."""
        return self._tools.get(name)

    def find(self, name: str) -> Tool:
        if (tool := self._tools.get(name)) is None:
            raise NotFound(
                "cannot find the tool; check its name, or add it to the file of the setting `tools`"
            )
        return tool


# Whom a call is for, and what its caller is told.


def agent_of(principal: Principal, named: str | None) -> str:
    """The agent that a call is asked for. `named`: what the body says."""
    if principal.agent is not None:
        if named not in (None, principal.agent):
            raise Forbidden(
                f"cannot ask for another agent with the token of {principal.agent}; leave `agent` out, or use a token "
                "of that agent"
            )
        return principal.agent
    if "operate" not in principal.scopes:
        raise Forbidden(
            'cannot ask for an agent without the scope "operate"; use a token of the agent itself',
            {"scope": "operate"},
        )
    if named is None:
        raise InvalidParams(
            "cannot tell for which agent this is asked: the credential is no agent's; name it with `agent`, or use a "
            "token of kind `agent`",
            {"path": "$.agent", "expected": "the name of an agent"},
        )
    if not is_agent_name(named):
        raise InvalidParams(
            f"cannot ask for an agent of this name; write {AGENT_NAME_RULE}",
            {"path": "$.agent", "expected": AGENT_NAME_RULE},
        )
    return named


# Errors (INV-R1).

STOPPING: Final = "stopping"  # why an approval was cancelled, in its trace


class Unanswered(TimedOut):
    """Nobody answered the approval in time: silence is no consent."""

    @property
    def status(self) -> Status:
        return Status(408, "Nobody answered in time", 8)


class _Quiet(LegationError):
    """`message` is for the caller; `told` is what anybody else may read."""

    def __init__(
        self, message: str, data: Mapping[str, object] | None = None, told: str | None = None
    ) -> None:
        super().__init__(message, data)
        self._told = message if told is None else told

    def __str__(self) -> str:
        return self._told


class ToolFailed(_Quiet, AgentError):
    """The tool could not be reached, refused, or answered with what cannot be used."""

    @property
    def status(self) -> Status:
        return Status(502, "Tool failed", 6)


class ToolTimedOut(_Quiet, TimedOut):
    """The tool did not answer in time; whether it has done its work is not known."""


class ToolCutOff(_Quiet, Unavailable):
    """The server stopped before the tool answered; whether it has done its work is not known."""


def refused(ruling: DoorResult, why: str | None) -> LegationError:
    """The error of a ruling that did not pass. `why`: for what an approval was cancelled, as its trace has it."""
    words = ruling.message or ruling.reason
    data = _about(ruling)
    if ruling.limit is not None:
        data["limit"] = ruling.limit
        if ruling.retry_after is not None:
            data["retryAfter"] = ruling.retry_after
        return RateLimited(words, data)
    match ruling.outcome:
        case "expired":
            return Unanswered(words, data)
        case "cancelled" if why == STOPPING:
            return Unavailable(
                "cannot decide this any more: the server stops; ask again when it is back", data
            )
        case "cancelled" | "superseded":
            return Conflict(f"cannot go on with this call: {words}; ask again", data)
    return Forbidden(words, data)


def failed(ruling: DoorResult, returned: ToolReturn) -> LegationError:
    """The error of a call that passed and came to no result."""
    data = _about(ruling)
    data["status"] = returned.tool_status
    kind = _KINDS.get(returned.status_code, ToolFailed)
    begin = f"cannot get a result of {ruling.action.tool}:"
    return kind(f"{begin} {returned.error}", data, told=f"{begin} see trace {ruling.trace_id}")


_KINDS: Final[Mapping[int, type[_Quiet]]] = {499: ToolCutOff, 504: ToolTimedOut}


def _about(ruling: DoorResult) -> dict[str, object]:
    return {
        "trace_id": ruling.trace_id,
        "approval_id": ruling.approval_id,
        "policy_rule": ruling.rule,
        "decided_by": ruling.by,
        "outcome": ruling.outcome,
    }
