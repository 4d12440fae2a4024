"""The scripted model: an endpoint on the loopback that real agents take for the real one.

INV-M1  Each request for a reply takes the next step of its script, in the order in which requests arrive.
INV-M2  What is not in the script is never made up: a script that has run dry is answered with an error that no
        agent retries, and fails the test.
INV-M3  What agents ask on their own (titles, token counts, model lists) takes no step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self, TypeAlias

from legation.testing.model.anthropic import AnthropicWire
from legation.testing.model.gemini import GeminiWire
from legation.testing.model.http import HOST, HttpAnswer, HttpConnection, HttpRequest, HttpServer, HungUp
from legation.testing.model.openai_chat import OpenAiChatWire
from legation.testing.model.openai_responses import OpenAiResponsesWire
from legation.testing.model.request import ModelRequest, Wire
from legation.testing.model.script import (
    WAIT,
    Cut,
    Failure,
    Pause,
    Reply,
    Script,
    Stall,
    Step,
    StreamError,
    Text,
)
from legation.testing.model.tool_calls import NoSuchTool, in_its_words, sample_text

# Which requests are no part of the conversation that a test scripts: agents ask a model for more than they show.

# How a request begins that is made with all tools on offer and yet is no turn.
_OPENINGS = ("[SUGGESTION MODE:",)  # Claude Code, after a turn: what the user might type next
_NO_TOOLS = frozenset({"_noop"})  # OpenCode, for endpoints that take no history with calls in it without any


def is_side_request(request: ModelRequest) -> bool:
    """A coding agent at work offers its tools. What it asks on the side (a title, a summary, who speaks next, whether
    the key works) it asks without any, save for the few that are known by their opening words."""
    return _NO_TOOLS.issuperset(request.tools) or request.prompt.lstrip().startswith(_OPENINGS)


# All the wires there are, on one address: each knows its own by their paths.


def every_wire(models: tuple[str, ...] = ("scripted-model",)) -> tuple[Wire, ...]:
    """`models` are the names that they list. The order matters for the lists alone: the pickiest comes first."""
    return AnthropicWire(models), GeminiWire(models), OpenAiChatWire(models), OpenAiResponsesWire(models)


# Nothing left to spend: the one status after which agents do not ask again. After 429 and 5xx they try for
# minutes, after 400 and 404 with other features, and 401 and 403 they tell as a question of signing in.
DRY_STATUS = 402

Predicate: TypeAlias = Callable[[ModelRequest], bool]


class ScriptMismatch(AssertionError):
    """The agent asked something else than the script foresaw."""


class ScriptedModel(Script):
    """`async with ScriptedModel() as model`: script it, point an agent at `model.url`, look at `model.requests`.

    The methods of `Script` fill the script of every conversation that has none of its own (see `when`).
    The end of the block fails with `ScriptMismatch` if the script ran dry, if steps are left over, if a tool that
    it wants was not declared, or if the agent tried to reach anything else through `proxy_variables`.
    """

    def __init__(
        self,
        *,
        wires: tuple[Wire, ...] = (),
        is_side: Predicate = is_side_request,
        may_knock: bool = False,
    ) -> None:
        """`may_knock`: to be refused at the proxy is no failure; for an agent that cannot be kept from trying."""
        super().__init__("the script")
        self._may_knock = may_knock
        self._wires = wires or every_wire()
        self._is_side = is_side
        self._server = HttpServer(self._answer)
        self._scripts: list[tuple[Predicate, Script]] = []
        self._arrived = asyncio.Event()
        self.url = ""
        self.requests: list[ModelRequest] = []
        self.side_requests: list[ModelRequest] = []
        self.strays: list[HttpRequest] = []  # to paths that no wire knows; answered 404
        self.knocks: list[str] = []  # where else the agent wanted to go, without the path
        self.problems: list[str] = []

    async def __aenter__(self) -> Self:
        self.url = f"http://{HOST}:{await self._server.start()}"
        return self

    async def __aexit__(
        self, _type: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self._server.stop()
        if error is not None:
            for problem in self.problems:
                error.add_note(f"scripted model: {problem}")
            return
        found = [*self.problems, *self._left_over()]
        if found:
            raise ScriptMismatch("cannot accept the conversation: " + "; ".join(found))

    def when(self, matches: Predicate | str) -> Script:
        """A script of its own for the conversations that match: a text that one of its messages has, or a
        predicate. The first that matches serves the request."""
        script = Script(f"script {len(self._scripts) + 1} of when()")
        predicate = (lambda request: request.mentions(matches)) if isinstance(matches, str) else matches
        self._scripts.append((predicate, script))
        return script

    def proxy_variables(self) -> dict[str, str]:
        """Environment that sends whatever is not for the loopback here, where it is refused and fails the test.
        It holds programs that heed it; it is no jail."""
        outside = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), self.url)
        return {**outside, "NO_PROXY": f"{HOST},localhost", "no_proxy": f"{HOST},localhost"}

    async def until_requests(self, count: int, within: float = WAIT) -> None:
        """Wait until at least so many requests have come that take a step."""
        await self._until(self.requests, count, within)

    async def until_side_requests(self, count: int, within: float = WAIT) -> None:
        await self._until(self.side_requests, count, within)

    async def _until(self, kept: list[ModelRequest], count: int, within: float) -> None:
        try:
            async with asyncio.timeout(within):
                while len(kept) < count:
                    self._arrived.clear()
                    await self._arrived.wait()
        except TimeoutError:
            what = f"{len(kept)} of {count} requests came within {within:g} s"
            raise ScriptMismatch(f"cannot go on: {what}") from None

    def _left_over(self) -> list[str]:
        scripts = [self, *(script for _, script in self._scripts)]
        return [
            f"{len(each)} steps of {each.name} were never asked for; call clear() if that is meant"
            for each in scripts
            if len(each)
        ]

    async def _answer(self, http: HttpRequest, connection: HttpConnection) -> None:
        if http.method == "CONNECT" or not http.target.startswith("/"):
            self._refuse(_place(http.target))
            await connection.send(_plain(403, "the scripted model lets nothing out"))
        elif http.method == "HEAD":
            await connection.send(HttpAnswer(200, {}), head_only=True)
        else:
            try:
                await self._answer_by_wire(http, connection)
            except (HungUp, ConnectionError):
                raise
            except Exception as error:  # noqa: BLE001 - a task boundary: a predicate or a wire of the test's own
                self.problems.append(f"cannot answer {http.path}: {error!r}")
                await connection.send(_plain(DRY_STATUS, "the scripted model failed"))

    def _refuse(self, place: str) -> None:
        self.knocks.append(place)
        if not self._may_knock:
            self.problems.append(f"the agent tried to reach {place}")

    async def _answer_by_wire(self, http: HttpRequest, connection: HttpConnection) -> None:
        for wire in self._wires:
            fixed = wire.fixed(http)
            if fixed is not None:
                return await connection.send(fixed)
            try:
                request = wire.read(http)
            except ValueError as error:
                self.problems.append(f"a request to {http.path} cannot be read: {error}")
                return await connection.send(wire.failure(Failure(400, str(error))))
            if request is not None:
                return await self._play(wire, request, self._next_step(request), connection)
        self.strays.append(http)
        return await connection.send(_plain(404, f"the scripted model knows no {http.method} {http.path}"))

    def _next_step(self, request: ModelRequest) -> Step:
        side = self._is_side(request)
        script = next((script for matches, script in self._scripts if matches(request)), self)
        self._arrived.set()
        if side:
            self.side_requests.append(request)
            return Reply((Text(sample_text(request.schema)),))
        self.requests.append(request)
        step = script.take() or self._run_dry(script, request)
        return self._fit(step, request) if isinstance(step, Reply) else step

    def _fit(self, reply: Reply, request: ModelRequest) -> Step:
        """Put a reply into the words of the agent that asks (INV-M4)."""
        try:
            return in_its_words(reply, request)
        except NoSuchTool as misfit:
            what = f"cannot play request {len(self.requests)}, to {request.path}: {misfit}"
            self.problems.append(what)
            return Failure(DRY_STATUS, f"scripted model: {what}")

    def _run_dry(self, script: Script, request: ModelRequest) -> Failure:
        what = f"{script.name} ran dry: request {len(self.requests)}, to {request.path}, found no step left"
        self.problems.append(what)
        return Failure(DRY_STATUS, f"scripted model: {what}")

    async def _play(self, wire: Wire, request: ModelRequest, step: Step, connection: HttpConnection) -> None:
        if not isinstance(step, Reply):
            await connection.send(wire.failure(step))
        elif request.stream:
            await connection.start_stream()
            for frame in wire.stream(request, step):
                if isinstance(frame, bytes):
                    await connection.send_piece(frame)
                else:
                    await _be_silent(frame, connection)
            await connection.end_stream()
        else:
            for part in step.parts:
                if isinstance(part, Pause | Stall | Cut):
                    await _be_silent(part, connection)
            broken = next((part for part in step.parts if isinstance(part, StreamError)), None)
            failure = Failure(broken.status, broken.message) if broken else None
            await connection.send(wire.failure(failure) if failure else wire.whole(request, step))


async def _be_silent(silence: Pause | Stall | Cut, connection: HttpConnection) -> None:
    match silence:
        case Pause(seconds):
            await asyncio.wait({connection.hung_up}, timeout=seconds)
        case Stall():
            await silence.hold(connection.hung_up)
        case Cut():
            connection.cut()
            raise HungUp
    if connection.hung_up.done():
        raise HungUp


def _plain(status: int, message: str) -> HttpAnswer:
    body: Mapping[str, object] = {"error": {"message": message}}
    return HttpAnswer(status, body)


def _place(target: str) -> str:
    """The place of a target, without the path, which may say more than a message should."""
    scheme, separator, rest = target.rpartition("://")
    return scheme + separator + rest.partition("/")[0]
