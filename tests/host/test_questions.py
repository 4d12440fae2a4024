"""Questions of real agents, with an inbox that knows one session and nothing else."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import msgspec
import pytest
from tests.agents.bytes_agent import scripted

from legation.agents.acp import AcpAgent
from legation.agents.driver import OpenRequest
from legation.agents.rpc import RpcFault
from legation.clock import Clock, SystemClock
from legation.errors import AgentExited
from legation.host.requests.asks import Questions, answer_without_session
from legation.proc import Command, Pipes, ProcessLauncher, child_environment
from legation.store.codec import MemoryBackend
from legation.store.log import EventLog
from legation.store.stream import Receipt, Stream
from legation.testing.clock import FakeClock
from legation.wire import event_types
from legation.wire.acp.methods import (
    ClientCapabilities,
    CreateElicitationRequest,
    CreateElicitationResponse,
    ElicitationCapabilities,
    Supported,
)
from legation.wire.acp.updates import Text
from legation.wire.event_types import DiagnosticCode
from legation.wire.events import Draft, Payload

LIMIT = 30.0  # seconds of real time that one test may take
ANSWER_LIMIT = 60.0  # seconds of the test's clock
OFFER = ClientCapabilities(elicitation=ElicitationCapabilities(form=Supported(), url=Supported()))
ACCEPT = CreateElicitationResponse(action="accept", content={"name": "Ada", "age": 36})
FORM = CreateElicitationRequest(mode="form", message="who?", session_id="s", requested_schema={})


@dataclass
class Hand:
    """A handler moved by the test."""

    modes: frozenset[str] = frozenset(("form", "url"))
    asked: list[CreateElicitationRequest] = field(default_factory=list)
    withdrawn: int = 0
    asking: asyncio.Event = field(default_factory=asyncio.Event)
    answer: "asyncio.Future[CreateElicitationResponse]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    async def ask(self, request: CreateElicitationRequest) -> CreateElicitationResponse:
        self.asked.append(request)
        self.asking.set()
        try:
            return await asyncio.shield(self.answer)
        except asyncio.CancelledError:
            self.withdrawn += 1
            raise


@dataclass
class Says:
    """A handler with one answer, which may be none at all."""

    response: object
    modes: frozenset[str] = frozenset(("form", "url"))

    async def ask(self, _: CreateElicitationRequest) -> CreateElicitationResponse:
        if isinstance(self.response, Exception):
            raise self.response
        return cast(CreateElicitationResponse, self.response)


@dataclass
class Desk:
    """The inbox: everything goes to one stream."""

    stream: Stream
    questions: Questions
    troubles: list[DiagnosticCode] = field(default_factory=list)
    agent: AcpAgent | None = None
    session: str = "s1"

    def updates(self, _: str, drafts: list[Draft]) -> None:
        self.stream.append(drafts)

    def trouble(self, code: DiagnosticCode, _: str) -> None:
        self.troubles.append(code)

    def notification(self, _: str, __: bytes) -> None:
        return

    def request(self, method: str, params: bytes) -> Awaitable[object]:
        assert method == "elicitation/create"
        request = msgspec.json.decode(params, type=CreateElicitationRequest)
        if request.session_id is None:
            return _ready(answer_without_session(self.trouble))
        return self.questions.ask(request, turn="trn_1")

    async def keep(self, _session_id: str, draft: Draft) -> Draft:
        return draft

    async def room(self) -> None:
        return

    async def play(self, *steps: str) -> str:
        assert self.agent
        prompt = "\n".join(("#!rehearse", *steps))
        return (await self.agent.prompt(self.session, (Text(text=prompt),))).stop_reason

    async def events(self, *types: str) -> list[dict[str, Any]]:
        found = [event async for event in self.stream.subscribe(follow=False)]
        return [json.loads(event.payload) for event in found if event.type in types]

    async def answered(self) -> dict[str, Any]:
        (event,) = await self.events("question-answered")
        return event

    async def said(self) -> list[str]:
        return [event["content"]["text"] for event in await self.events("agent-message-chunk")]


async def _ready(value: object) -> object:
    return value


@asynccontextmanager
async def a_desk(handler: object, clock: Clock | None = None) -> AsyncIterator[Desk]:
    async with asyncio.timeout(LIMIT), EventLog(MemoryBackend()) as log:
        stream = await log.stream("ses_1")

        def record(payload: Payload) -> Receipt:
            return stream.append([event_types.draft(payload)])

        questions = Questions(
            handler=cast(Hand, handler),
            record=record,
            clock=clock or SystemClock(),
            limit=ANSWER_LIMIT,
            changed=lambda: None,
        )
        yield Desk(stream, questions)


@asynccontextmanager
async def working(desk: Desk, command: Command) -> AsyncIterator[Desk]:
    desk.agent = await AcpAgent.start(
        ProcessLauncher(), command, desk, pipes=Pipes(), capabilities=OFFER, timeout=LIMIT
    )
    try:
        desk.session = (await desk.agent.new_session(OpenRequest(str(command.cwd)), LIMIT)).session_id
        yield desk
    finally:
        await desk.agent.stop(0)


@asynccontextmanager
async def rehearsal(folder: Path, handler: object, clock: Clock | None = None) -> AsyncIterator[Desk]:
    argv = (sys.executable, "-m", "legation.agents.rehearsal", "--execute")
    command = Command(argv, folder, child_environment({}, home=folder, tmp=folder), "rehearsal")
    async with a_desk(handler, clock) as desk, working(desk, command):
        yield desk


async def test_a_form_is_recorded_in_its_place_answered_and_told(tmp_path: Path) -> None:
    async with rehearsal(tmp_path, Says(ACCEPT)) as desk:
        await desk.play("say before", "elicit Who are you? name:string age:integer")
        order = [event.type async for event in desk.stream.subscribe(follow=False)]
        assert order == [
            *("agent-message-chunk", "question-asked", "question-answered", "agent-message-chunk")
        ]
        (asked,) = await desk.events("question-asked")
        assert (asked["message"], asked["mode"], asked["turn"]) == ("Who are you?", "form", "trn_1")
        assert list(asked["requestedSchema"]["properties"]) == ["name", "age"]
        answered = await desk.answered()
        assert answered == {
            "id": asked["id"],
            "outcome": "accepted",
            "by": "handler",
            "content": {"name": "Ada", "age": 36},
        }
        assert (await desk.said())[-1] == 'answer: accept {"age": 36, "name": "Ada"}'


async def test_an_accepted_page_has_no_content(tmp_path: Path) -> None:
    async with rehearsal(tmp_path, Says(ACCEPT)) as desk:
        await desk.play("elicit-url https://example.org/login Sign in")
        (asked,) = await desk.events("question-asked")
        assert (asked["mode"], asked["url"]) == ("url", "https://example.org/login")
        answered = await desk.answered()
        assert (answered["outcome"], "content" in answered) == ("accepted", False)
        assert await desk.said() == ["answer: accept"]


DECLINE = CreateElicitationResponse(action="decline", content={"name": "left over"})


@pytest.mark.parametrize(
    ("response", "outcome", "by", "told"),
    [
        (DECLINE, "declined", "handler", "answer: decline"),
        (CreateElicitationResponse(action="cancel"), "cancelled", "handler", "answer: cancel"),
        (CreateElicitationResponse(action="accept"), "accepted", "handler", "answer: accept"),
        (CreateElicitationResponse(action="_maybe"), "cancelled", "legation", "answer: cancel"),
        (RuntimeError("private"), "cancelled", "legation", "answer: cancel"),
        (None, "cancelled", "legation", "answer: cancel"),
    ],
)
async def test_only_a_persons_no_is_a_decline(
    tmp_path: Path, response: object, outcome: str, by: str, told: str
) -> None:
    async with rehearsal(tmp_path, Says(response)) as desk:
        await desk.play("elicit Who?")
        answered = await desk.answered()
        assert (answered["outcome"], answered["by"], "content" in answered) == (outcome, by, False)
        assert "private" not in str(answered)
        assert await desk.said() == [told]


@pytest.mark.parametrize("content", [["Ada"], "Ada", {"name": object()}, {object(): "Ada"}])
async def test_a_form_filled_in_with_no_json_object_is_cancelled(content: object) -> None:
    response = CreateElicitationResponse(action="accept", content=cast(Mapping[str, str], content))
    async with a_desk(Says(response)) as desk:
        assert await desk.questions.ask(FORM) == CreateElicitationResponse(action="cancel")
        assert (await desk.answered())["outcome"] == "cancelled"


async def test_the_content_of_a_form_is_not_looked_into() -> None:
    content = MappingProxyType({"nobody": None, "asked": {"for": ["this"]}})
    response = CreateElicitationResponse(action="accept", content=cast(Mapping[str, str], content))
    async with a_desk(Says(response)) as desk:
        told = await desk.questions.ask(FORM)
        assert told.action == "accept"
        assert json.dumps(told.content) == json.dumps(dict(content))


async def test_silence_is_told_as_cancel_and_recorded_as_expired(tmp_path: Path) -> None:
    clock, hand = FakeClock(), Hand()
    async with rehearsal(tmp_path, hand, clock) as desk:
        playing = asyncio.create_task(desk.play("elicit Who?"))
        await hand.asking.wait()
        await clock.until_sleeping()
        assert desk.questions.waiting
        clock.advance(ANSWER_LIMIT)
        await playing
        answered = await desk.answered()
        assert (answered["outcome"], answered["by"]) == ("expired", "timeout")
        (asked,) = await desk.events("question-asked")
        assert asked["expiresAt"] == clock.now_ms()
        assert await desk.said() == ["answer: cancel"]
        assert (hand.withdrawn, desk.questions.waiting) == (1, {})


async def test_the_end_of_the_turn_cancels_its_question(tmp_path: Path) -> None:
    hand = Hand()
    async with rehearsal(tmp_path, hand) as desk:
        playing = asyncio.create_task(desk.play("elicit Who?"))
        await hand.asking.wait()
        assert desk.agent
        desk.questions.cancel_all()
        await desk.agent.cancel(desk.session)
        assert await playing == "cancelled"
        answered = await desk.answered()
        assert (answered["outcome"], answered["by"]) == ("cancelled", "client")
        assert hand.withdrawn == 1


async def test_whoever_cancels_instead_of_answering_is_named() -> None:
    async with a_desk(hand := Hand()) as desk:
        answer = desk.questions.ask(FORM)
        await hand.asking.wait()
        hand.answer.set_result(CreateElicitationResponse(action="cancel"))
        for _ in range(2):
            await asyncio.sleep(0)  # the handler is done, and nobody has looked
        desk.questions.cancel_all()
        assert (await answer).action == "cancel"
        assert (await desk.answered())["by"] == "handler"


async def test_a_late_answer_changes_nothing() -> None:
    async with a_desk(hand := Hand()) as desk:
        answer = desk.questions.ask(FORM)
        await hand.asking.wait()
        desk.questions.cancel_all()
        hand.answer.set_result(ACCEPT)
        assert (await answer).action == "cancel"
        assert (await desk.answered())["outcome"] == "cancelled"


@pytest.mark.parametrize("number", ["5", "'five'"])
async def test_a_question_that_the_agent_takes_back_is_superseded(tmp_path: Path, number: str) -> None:
    source = f"""
hello(); session(); prompt = prompted()
send(id={number}, method="elicitation/create", params={{"mode": "form", "message": "who?", "sessionId": "s1"}})
update("asked")
send(method="$/cancel_request", params={{"requestId": {number}}})
update(str(answer({number})["error"]["code"])); done(prompt); stay()
"""
    hand = Hand()
    async with a_desk(hand) as desk, working(desk, scripted(source, tmp_path)):
        await desk.play()
        answered = await desk.answered()
        assert (answered["outcome"], answered["by"]) == ("superseded", "agent")
        assert await desk.said() == ["asked", "-32800"]


async def test_the_end_of_the_agent_supersedes_its_question(tmp_path: Path) -> None:
    source = """
hello(); session(); prompt = prompted()
send(id=1, method="elicitation/create", params={"mode": "form", "message": "who?", "sessionId": "s1"})
os._exit(3)
"""
    async with a_desk(Hand()) as desk, working(desk, scripted(source, tmp_path)):
        with pytest.raises(AgentExited):
            await desk.play()
        assert (await desk.answered())["outcome"] == "superseded"


async def test_a_question_outside_of_any_session_is_cancelled_with_a_diagnostic(tmp_path: Path) -> None:
    source = """
hello(); session(); prompt = prompted()
send(id=1, method="elicitation/create", params={"mode": "form", "message": "who?", "requestId": prompt})
update(answer(1)["result"]["action"]); done(prompt); stay()
"""
    hand = Hand()
    async with a_desk(hand) as desk, working(desk, scripted(source, tmp_path)):
        await desk.play()
        assert await desk.said() == ["cancel"]
        assert desk.troubles == [DiagnosticCode.AGENT_UNKNOWN_SESSION]
        assert (hand.asked, await desk.events("question-asked")) == ([], [])


@pytest.mark.parametrize("mode", ["url", "_telepathy"])
async def test_a_mode_that_was_not_offered_is_refused_and_nobody_is_asked(mode: str) -> None:
    hand = Hand(modes=frozenset(("form",)))
    async with a_desk(hand) as desk:
        with pytest.raises(RpcFault) as caught:
            desk.questions.ask(msgspec.structs.replace(FORM, mode=mode))
        assert caught.value.error.code == -32602
        assert (hand.asked, desk.questions.waiting) == ([], {})


async def test_two_questions_at_once_are_answered_each_by_its_own_answer() -> None:
    class Echo(Says):
        async def ask(self, request: CreateElicitationRequest) -> CreateElicitationResponse:
            return CreateElicitationResponse(action="accept", content={"said": request.message})

    async with a_desk(Echo(None)) as desk:
        answers = [desk.questions.ask(msgspec.structs.replace(FORM, message=text)) for text in "ab"]
        assert [(await answer).content for answer in answers] == [{"said": "a"}, {"said": "b"}]
        asked = [each["id"] for each in await desk.events("question-asked")]
        assert asked == [each["id"] for each in await desk.events("question-answered")]


async def test_the_answer_is_durable_before_it_is_told() -> None:
    durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    recorded: list[Payload] = []

    def record(payload: Payload) -> Receipt:
        recorded.append(payload)
        return cast(Receipt, durable)

    changed: list[bool] = []
    questions = Questions(
        handler=Says(ACCEPT),
        record=record,
        clock=SystemClock(),
        limit=ANSWER_LIMIT,
        changed=lambda: changed.append(True),
    )
    answer = questions.ask(FORM)
    await _rounds(lambda: len(recorded) == 2)
    assert (changed, answer.done()) == ([True], False)
    durable.set_result(None)
    assert (await answer).content == ACCEPT.content


@pytest.mark.parametrize("broken", [True, False])
async def test_an_answer_that_could_not_be_recorded_is_not_told(broken: bool) -> None:
    durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    if broken:
        durable.set_exception(OSError("disk"))

    def record(_: Payload) -> Receipt | None:
        return cast(Receipt, durable) if broken else None

    questions = Questions(
        handler=Says(ACCEPT), record=record, clock=SystemClock(), limit=ANSWER_LIMIT, changed=lambda: None
    )
    with pytest.raises(asyncio.CancelledError):
        await questions.ask(FORM)


async def _rounds(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT):
        while not true():
            await asyncio.sleep(0)
