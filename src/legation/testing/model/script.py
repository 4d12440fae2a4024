"""The script of a model: replies made of parts, and failures, in the order in which they are asked for.

Nothing here knows a wire: how a part or a failure looks in bytes is the wire's business. Nor an agent: what a `Tool` is
called is told by the request that takes the step, before any wire sees it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypeVar
from uuid import uuid4

# Tool calls in no agent's words: what the model wants done, for a script that any agent can play.
#
# The request that takes the step says which tools there are; `tool_calls` puts these into the name and the arguments of one
# of them. A call by the agent's own name is `script.ToolCall`.

TodoStatus: TypeAlias = Literal["pending", "in_progress", "completed"]


def new_call_id() -> str:
    return f"toolu_{uuid4().hex[:20]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    id: str = field(default_factory=new_call_id)


@dataclass(frozen=True, slots=True)
class WriteFile(_Call):
    """A relative `path` is below the working directory that the request names."""

    path: str
    content: str


@dataclass(frozen=True, slots=True)
class ReadFile(_Call):
    path: str


@dataclass(frozen=True, slots=True)
class EditFile(_Call):
    """`old` becomes `new`. Give whole lines: an agent that edits by patches has nothing smaller."""

    path: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class RunShell(_Call):
    """`unconfined` asks for it outside the agent's own sandbox, where the agent has a way to ask for that."""

    command: str
    unconfined: bool = False


@dataclass(frozen=True, slots=True)
class AskUser(_Call):
    question: str
    options: tuple[str, ...]
    header: str = "Question"
    multiple: bool = False


@dataclass(frozen=True, slots=True)
class ExitPlan(_Call):
    """The plan is ready. An agent that takes plans as text in the answer gets it so."""

    plan: str


@dataclass(frozen=True, slots=True)
class Todo(_Call):
    """The whole list: what is to be done, and how far it is."""

    items: tuple[tuple[str, TodoStatus], ...]


@dataclass(frozen=True, slots=True)
class SubAgent(_Call):
    prompt: str


@dataclass(frozen=True, slots=True)
class Mcp(_Call):
    """A tool of an MCP server, however the agent names it."""

    server: str
    tool: str
    args: Mapping[str, object] = field(default_factory=dict)


Tool: TypeAlias = WriteFile | ReadFile | EditFile | RunShell | AskUser | ExitPlan | Todo | SubAgent | Mcp


WAIT = 30.0  # seconds a test waits for an agent to get somewhere: the agent's time

StopReason: TypeAlias = Literal["end-turn", "tool-use", "max-tokens", "refusal"]


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True)
class Thinking:
    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    name: str
    input: Mapping[str, object]
    id: str = field(default_factory=new_call_id)


@dataclass(frozen=True, slots=True)
class Pause:
    """Silence in the middle of a reply, for that long."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Cut:
    """The connection breaks here."""


@dataclass(frozen=True, slots=True)
class StreamError:
    """The endpoint says, in the middle of a stream, that it failed; without a stream it is answer `status`."""

    status: int = 529
    message: str | None = None


class Stall:
    """Silence until the test says `release`, or the agent hangs up."""

    def __init__(self) -> None:
        self._reached = asyncio.Event()
        self._released = asyncio.Event()
        self._abandoned = asyncio.Event()

    def release(self) -> None:
        self._released.set()

    async def reached(self) -> None:
        """Wait until all before it was sent."""
        await _within(self._reached, "reached")

    async def abandoned(self) -> None:
        """Wait until the agent hung up while it was kept waiting."""
        await _within(self._abandoned, "abandoned")

    async def hold(self, hung_up: asyncio.Future[bytes]) -> None:
        """The endpoint's side: ends with `release`, or with the connection."""
        self._reached.set()
        released = asyncio.ensure_future(self._released.wait())
        either: set[asyncio.Future[Any]] = {released, hung_up}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            released.cancel()
        if not self._released.is_set():
            self._abandoned.set()


async def _within(event: asyncio.Event, what: str) -> None:
    try:
        async with asyncio.timeout(WAIT):
            await event.wait()
    except TimeoutError:
        raise AssertionError(f"cannot go on: the stall was not {what} within {WAIT:g} s") from None


Said: TypeAlias = Text | Thinking | ToolCall
Part: TypeAlias = Said | Tool | Pause | Stall | Cut | StreamError
_ToolT = TypeVar("_ToolT", bound=Tool)


@dataclass(frozen=True, slots=True)
class Usage:
    input_tokens: int = 100
    output_tokens: int = 25
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Reply:
    """`stop` is told by the parts unless given. Text is streamed in pieces of `piece` characters, `pace` seconds apart."""

    parts: tuple[Part, ...]
    usage: Usage = Usage()
    stop: StopReason | None = None
    pace: float = 0.0
    piece: int = 16

    @property
    def stop_reason(self) -> StopReason:
        called = any(isinstance(part, ToolCall | Tool) for part in self.parts)
        return self.stop or ("tool-use" if called else "end-turn")


@dataclass(frozen=True, slots=True)
class Failure:
    """An HTTP error instead of a reply. The wire names its kind after the status."""

    status: int
    message: str | None = None
    retry_after: float | None = None

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.retry_after is None else {"retry-after": f"{self.retry_after:g}"}


@dataclass(frozen=True, slots=True)
class TooLong:
    """The conversation does not fit the model any more, said as the wire's real endpoint says it."""

    tokens: int = 250_000
    limit: int = 200_000


Step: TypeAlias = Reply | Failure | TooLong


class Script:
    """The steps of one conversation: each request that it serves takes the next."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._steps: deque[Step] = deque()

    def __len__(self) -> int:
        return len(self._steps)

    def say(self, text: str, *, pace: float = 0.0, usage: Usage | None = None) -> None:
        self.reply(Text(text), pace=pace, usage=usage)

    def call_tool(self, name: str, arguments: Mapping[str, object], *, say: str | None = None) -> ToolCall:
        """One call by the agent's own name, after some text if `say` is given. Several in one reply: `reply(ToolCall(...), ...)`."""
        call = ToolCall(name, arguments)
        self.reply(*([Text(say)] if say else []), call)
        return call

    def call(self, tool: _ToolT, *, say: str | None = None) -> _ToolT:
        """The same of a tool that the request declares under whatever name; the test fails where it declares none."""
        self.reply(*([Text(say)] if say else []), tool)
        return tool

    def reply(
        self, *parts: Part, usage: Usage | None = None, stop: StopReason | None = None, pace: float = 0.0
    ) -> None:
        self.then(Reply(parts, usage=usage or Usage(), stop=stop, pace=pace))

    def stall(self, *before: Part) -> Stall:
        """A reply that falls silent after `before`; when released, it ends there."""
        stall = Stall()
        self.reply(*before, stall)
        return stall

    def cut(self, *before: Part) -> None:
        self.reply(*before, Cut())

    def fail(
        self, status: int, message: str | None = None, *, retry_after: float | None = None, times: int = 1
    ) -> None:
        """`times`: agents ask again after most errors, and each time takes a step."""
        self.then(*[Failure(status, message, retry_after)] * times)

    def fail_too_long(self, *, tokens: int = 250_000, limit: int = 200_000) -> None:
        self.then(TooLong(tokens, limit))

    def then(self, *steps: Step) -> None:
        self._steps.extend(steps)

    def clear(self) -> None:
        """Drop what was not asked for: it is then no problem at the end."""
        self._steps.clear()

    def take(self) -> Step | None:
        return self._steps.popleft() if self._steps else None


def pieces(text: str, size: int) -> Iterator[str]:
    return (text[start : start + size] for start in range(0, len(text), size))
