"""Sessions and agents through the client: every operation, every event as its type, turns over cut connections."""

import asyncio
import inspect
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, get_args

import msgspec
import pytest
from tests.client.both_clients import TOKEN, Driver, both
from tests.client.faulty_server import (
    BYE,
    END,
    HELLO,
    STREAM_HEAD,
    Asked,
    Cut,
    answer,
    html,
    in_turn,
    notice,
    ok,
    problem,
    serving,
)

from legation.client import AsyncLegation, Legation, Timeouts
from legation.client.request import INSTALL_READ
from legation.client.session_event import SessionEvent, Unknown, read_event_page, read_session_event
from legation.client.sessions import ClientSession, create_session
from legation.errors import (
    AgentError,
    Conflict,
    InternalError,
    InvalidParams,
    LegationError,
    NotFound,
    PromptInFlight,
    Unavailable,
)
from legation.wire.acp.rpc import RpcError
from legation.wire.acp.updates import AgentMessageChunk, Text, ToolCall
from legation.wire.action import Action
from legation.wire.api.sessions import Attachment, LocalMcp, SessionInfo, Skills, SkillSource
from legation.wire.event_types import (
    Diagnostic,
    DiagnosticCode,
    Known,
    PermissionAnswered,
    PermissionAsked,
    PromptFinished,
    PromptStarted,
    QuestionAnswered,
    QuestionAsked,
    SessionStatus,
    draft,
)
from legation.wire.events import Event
from legation.wire.universal.projector import Projector
from legation.wire.universal.shapes import (
    EventType,
    ItemDelta,
    Metadata,
    Permission,
    Question,
    SessionEnded,
    SessionFacts,
    Turn,
)

pytestmark = pytest.mark.heavy  # a server each

START = STREAM_HEAD + HELLO
DONE = answer(204, b"")
INFO = {
    "sessionId": "s 1",
    "agent": "rehearsal",
    "agentMode": "build",
    "permissionMode": "default",
    "model": None,
    "variant": None,
    "nativeSessionId": "n",
    "ended": False,
    "eventCount": 3,
    "createdAt": 1,
    "updatedAt": 2,
    "directory": "/w",
    "title": None,
    "status": "active",
    "later": "what a newer server says",
}
PERMISSION = Permission("apr_1", "Bash", "requested")
QUESTION = Question("q/1", "Which?", ("a", "b"), None, "requested")
Use = Callable[[Any], Any]


def line(sequence: int, type_: str = "item.delta", data: object = None) -> dict[str, Any]:
    return {
        "event_id": f"evt_{sequence}",
        "sequence": sequence,
        "time": "2026-01-02T03:04:05.678Z",
        "session_id": "s",
        "native_session_id": None,
        "synthetic": False,
        "source": "agent",
        "type": type_,
        "data": data or {"item_id": "itm_1", "native_item_id": None, "delta": str(sequence)},
        "raw": None,
    }


def frame(sequence: int, type_: str = "item.delta", data: object = None) -> bytes:
    return f"id: {sequence}\ndata: {json.dumps(line(sequence, type_, data))}\n\n".encode()


def begun(sequence: int, turn: str = "t1", text: str = "hi") -> bytes:
    """The turn's start, and behind it what the user said."""
    item = {
        "item_id": "itm_0",
        "native_item_id": turn,
        "parent_id": None,
        "kind": "message",
        "role": "user",
        "content": [{"type": "text", "text": text}],
        "status": "in_progress",
    }
    start = frame(sequence, "turn.started", {"phase": "started", "turn_id": turn})
    return start + frame(sequence + 1, "item.started", {"item": item})


def ended(sequence: int, turn: str = "t1") -> bytes:
    how = {"turn": turn, "stopReason": "end_turn"}
    return frame(sequence, "turn.ended", {"phase": "ended", "turn_id": turn, "metadata": how})


def asks(sequence: int) -> bytes:
    data = {"permission_id": "apr_1", "action": "Bash", "status": "requested", "metadata": None}
    return frame(sequence, "permission.requested", data)


def on(use: Use) -> Use:
    """The session in hand, which is not asked for at the server."""
    return lambda one: use(ClientSession(one.caller, "s"))


def sequences(events: Iterable[SessionEvent]) -> list[int]:
    return [each.sequence for each in events]


# Operations.

CALLS: dict[str, tuple[Use, tuple[str, str, object], bytes]] = {
    "info": (lambda s: s.info(), ("GET", "", None), ok(INFO)),
    "send": (
        lambda s: s.send("hi", ["a.py", Attachment(path="b", mime="text/x")]),
        (
            "POST",
            "/messages",
            {
                "message": "hi",
                "attachments": [
                    {"path": "a.py", "mime": None, "filename": None},
                    {"path": "b", "mime": "text/x", "filename": None},
                ],
                "messageId": None,
            },
        ),
        DONE,
    ),
    "answer": (lambda s: s.answer(PERMISSION, "always"), ("POST", "/permissions/apr_1/reply", {"reply": "always"}), DONE),
    "answer by id": (lambda s: s.answer("apr_2", "reject"), ("POST", "/permissions/apr_2/reply", {"reply": "reject"}), DONE),
    "reply": (lambda s: s.reply(QUESTION, ["a", ["x", "y"]]), ("POST", "/questions/q%2F1/reply", {"answers": [["a"], ["x", "y"]]}), DONE),
    "reply with a word": (lambda s: s.reply("q", "yes"), ("POST", "/questions/q/reply", {"answers": [["yes"]]}), DONE),
    "reject": (lambda s: s.reject(QUESTION), ("POST", "/questions/q%2F1/reject", None), DONE),
    "cancel": (lambda s: s.cancel(), ("POST", "/cancel", None), DONE),
    "terminate": (lambda s: s.terminate(), ("POST", "/terminate", None), DONE),
    "delete": (lambda s: s.delete(), ("DELETE", "", None), DONE),
    "change": (
        lambda s: s.change(model="m", agent_mode="plan"),
        ("PATCH", "", {"agentMode": "plan", "permissionMode": None, "model": "m", "variant": None, "title": None}),
        ok(INFO),
    ),
}  # fmt: skip


@both
@pytest.mark.parametrize("name", CALLS)
def test_an_operation_on_a_session_asks_for_this(driver: Driver, name: str) -> None:
    use, (method, path, body), reply = CALLS[name]
    with serving(in_turn(reply)) as server:
        driver.call(server.url, on(use))
    asked = server.asked[0]
    assert (asked.method, asked.path) == (method, f"/v1/sessions/s{path}")
    assert (json.loads(asked.body) if asked.body else None) == body


@both
def test_a_session_is_created_found_and_listed(driver: Driver) -> None:
    mcp = {"docs": LocalMcp(command="mcp", args=("--x",))}
    skills = Skills(sources=[SkillSource(type="local", source="/s")])

    def script(asked: Asked) -> Iterable[bytes]:
        if asked.method == "POST":
            return [ok({"healthy": True, "nativeSessionId": "n"})]
        return [ok({"sessions": [INFO]} if asked.path == "/v1/sessions" else INFO)]

    with serving(script) as server:
        made = driver.call(
            server.url,
            lambda one: one.sessions.create(
                "rehearsal", session_id="s 1", directory="/w", permission_mode="plan", mcp=mcp, skills=skills
            ),
        )
        other = driver.call(server.url, lambda one: one.sessions.create("rehearsal"))
        found = driver.call(server.url, lambda one: one.sessions.get("s 1"))
        listed = driver.call(server.url, lambda one: one.sessions.list())
    assert (made.id, found.id) == ("s 1", "s 1")
    assert other.id.startswith("ses_")
    assert server.asked[0].path == "/v1/sessions/s%201"
    sent = json.loads(server.asked[0].body)
    assert (sent["agent"], sent["directory"], sent["permissionMode"]) == ("rehearsal", "/w", "plan")
    assert sent["mcp"]["docs"]["type"] == "local"
    assert sent["skills"]["sources"][0]["source"] == "/s"
    assert listed == [msgspec.convert(INFO, SessionInfo)]


def test_an_agent_may_take_its_time_to_be_installed() -> None:
    assert create_session("rehearsal").wait == INSTALL_READ


@both
def test_an_agent_that_does_not_start_is_an_error(driver: Driver) -> None:
    failed = {"healthy": False, "error": {"type": "x", "message": "no key is set"}}
    with serving(in_turn(ok(failed))) as server, pytest.raises(AgentError, match="no key is set"):
        driver.call(server.url, lambda one: one.sessions.create("claude", session_id="s"))


@both
def test_agents_are_listed_installed_and_asked(driver: Driver) -> None:
    def script(asked: Asked) -> Iterable[bytes]:
        if asked.path.endswith("/install"):
            return [ok({"already_installed": True, "artifacts": []})]
        if asked.path.endswith("/modes"):
            return [ok({"modes": [{"id": "build", "name": "Build", "description": ""}]})]
        if asked.path.endswith("/models"):
            return [ok({"models": [{"id": "big", "variants": ["slow"]}], "defaultModel": "big"})]
        info = {
            "id": "codex",
            "installed": True,
            "credentialsAvailable": False,
            "capabilities": {},
        }
        return [ok({"agents": [info | {"serverStatus": {"status": "running", "restartCount": 2}}]})]

    with serving(script) as server:
        driver.call(server.url, lambda one: one.agents.install("codex", reinstall=True))
        modes = driver.call(server.url, lambda one: one.agents.modes("codex"))
        models = driver.call(server.url, lambda one: one.agents.models("codex"))
        agents = driver.call(server.url, lambda one: one.agents.list())
    assert json.loads(server.asked[0].body)["reinstall"] is True
    assert [each.id for each in modes] == ["build"]
    assert (models.default_model, models.models[0].variants) == ("big", ["slow"])
    assert (agents[0].id, agents[0].server_status.restart_count) == ("codex", 2)


@both
def test_what_is_recorded_comes_page_by_page(driver: Driver) -> None:
    def script(asked: Asked) -> Iterable[bytes]:
        offset = int(asked.query["offset"])
        numbers = [each for each in (3, 4, 9, 20, 21) if each > offset]
        return [ok({"events": [line(each) for each in numbers[:2]], "hasMore": len(numbers) > 2})]

    with serving(script) as server:
        found = driver.items(server.url, on(lambda s: s.recorded(2, limit=2, raw=True)))
    assert sequences(found) == [3, 4, 9, 20, 21]
    assert [each.query["offset"] for each in server.asked] == ["2", "4", "20"]
    assert {each.query["includeRaw"] for each in server.asked} == {"true"}


@both
def test_a_page_that_says_more_and_gives_nothing_is_an_error(driver: Driver) -> None:
    with serving(in_turn(ok({"events": [], "hasMore": True}))) as server, pytest.raises(InternalError):
        driver.items(server.url, on(lambda s: s.recorded()))


# Events.


def test_an_event_is_of_its_type_and_what_is_unknown_is_kept() -> None:
    known = read_session_event(json.dumps(line(1)).encode())
    assert known.data == ItemDelta("itm_1", None, "1")
    assert known.time.year == 2026
    assert known.raw is None
    new = read_session_event(json.dumps(line(2, "weather.changed", {"sun": 1.0})).encode())
    assert (new.type, new.data) == ("weather.changed", Unknown(msgspec.Raw(b'{"sun": 1.0}')))
    odd = read_session_event(json.dumps(line(3, "turn.ended", {"phase": "paused"})).encode())
    assert odd.data == Unknown(msgspec.Raw(b'{"phase": "paused"}'))


def projected() -> list[bytes]:
    """One of each type, as the server writes them."""
    log: list[Known] = [
        PromptStarted(turn="t1", prompt=(Text(text="hi"),)),
        AgentMessageChunk(content=Text(text="half a character: \ud83d")),
        ToolCall(tool_call_id="c1", title="Read", kind="read", status="pending", raw_input={"path": "a"}),
        PermissionAsked(
            id="apr_1",
            title="t",
            action=Action(agent="a", tool="Read"),
            options=(),
            asked_at=1,
            tool_call_id="c1",
        ),
        PermissionAnswered(id="apr_1", outcome="approved", by="me"),
        QuestionAsked(id="q1", message="Which?", mode="form"),
        QuestionAnswered(id="q1", outcome="declined", by="me"),
        Diagnostic(code=DiagnosticCode.AGENT_STRAY_LINE, message="stray"),
        PromptFinished(turn="t1", stop_reason="end_turn", error=RpcError(code=1, message="no luck")),
        SessionStatus(status="closed"),
    ]
    projector = Projector(SessionFacts("s", "rehearsal", None, Metadata("rehearsal")))
    drafts = [draft(each) for each in log]
    events = [Event(seq, seq, each.type, each.raw, b"") for seq, each in enumerate(drafts, 1)]
    return [each.encode(include_raw=True) for event in events for each in projector.feed(event)]


def test_every_event_that_the_server_writes_is_read_as_its_type() -> None:
    found = [read_session_event(each) for each in projected()]
    assert not [each for each in found if isinstance(each.data, Unknown)]
    assert {each.type for each in found} == set(get_args(EventType))
    (done,) = [each.data for each in found if each.type == "turn.ended"]
    assert isinstance(done, Turn)
    assert done.metadata is not None
    assert json.loads(bytes(done.metadata))["stopReason"] == "end_turn"
    assert next(each.raw for each in found if each.type == "turn.ended") is not None


def test_half_a_character_hides_no_event() -> None:
    found = [read_session_event(each) for each in projected()]
    words = [each.data.delta for each in found if isinstance(each.data, ItemDelta)]
    assert "half a character: \ufffd" in words
    kept = r'"\ud83d\ude00 \ud83d \\ud83d \uDE00"'
    body = rb'{"events":[%b],"hasMore":false}' % json.dumps(line(1)).encode().replace(b'"1"', kept.encode())
    (event,) = read_event_page(body).items
    assert event.data == ItemDelta("itm_1", None, "\U0001f600 \ufffd \\ud83d \ufffd")


@both
def test_events_are_followed_without_gap_or_double_over_lost_connections(driver: Driver) -> None:
    def reset() -> Iterator[bytes]:
        yield START + frame(7) + frame(12)[:-9]
        raise Cut

    replies: list[bytes | Iterable[bytes]] = [
        START + frame(3) + frame(5),
        reset(),
        html(502),
        START + frame(5) + frame(7) + frame(12) + BYE,  # what was given before is dropped
        START + notice("weather") + frame(13) + END,
    ]
    with serving(in_turn(*replies)) as server:
        found = driver.items(server.url, on(lambda s: s.events(after=2)))
    assert sequences(found) == [3, 5, 7, 12, 13]
    assert [each.query["offset"] for each in server.asked] == ["2", "5", "7", "7", "12"]
    assert [each.headers.get("last-event-id") for each in server.asked] == [None, "5", "7", "7", "12"]
    assert {each.path for each in server.asked} == {"/v1/sessions/s/events/sse"}


@both
@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (problem(404, "legation/not-found", "cannot find session s; check its id"), NotFound),
        (problem(409, "legation/conflict", "cannot begin after 99: there are 5"), Conflict),
        ([START, b"data: nonsense\n\n"], InternalError),
    ],
)
def test_what_another_try_cannot_mend_ends_it(driver: Driver, reply: Any, kind: type[Exception]) -> None:
    with serving(in_turn(reply)) as server, pytest.raises(kind):
        driver.items(server.url, on(lambda s: s.events()))


def test_a_negative_number_is_refused() -> None:
    with Legation.connect("http://127.0.0.1:1", TOKEN) as legation, pytest.raises(InvalidParams):
        ClientSession(legation.caller, "s").events(-1)


# Turns.


def turn_of(*replies: bytes | Iterable[bytes]) -> Any:
    return serving(in_turn(*replies))


@both
def test_a_turn_gives_its_events_and_ends_with_it(driver: Driver) -> None:
    with turn_of(START + begun(4) + frame(7) + ended(8) + frame(9)) as server:
        found = driver.items(server.url, on(lambda s: s.turn("hi", ("a.py",))))
    assert sequences(found) == [4, 5, 7, 8]
    asked = server.asked[0]
    assert (asked.method, asked.path) == ("POST", "/v1/sessions/s/messages/stream")
    assert json.loads(asked.body)["message"] == "hi"
    assert len(server.asked) == 1


@both
def test_a_turn_goes_on_where_its_connection_was_cut_and_sends_the_message_once(driver: Driver) -> None:
    def reset() -> Iterator[bytes]:
        yield START + begun(4) + frame(6)
        raise Cut

    after = (html(503), START + frame(7) + BYE, START + frame(8) + ended(9) + frame(10))
    with turn_of(reset(), *after) as server:
        found = driver.items(server.url, on(lambda s: s.turn("hi")))
    assert sequences(found) == [4, 5, 6, 7, 8, 9]
    assert [each.method for each in server.asked] == ["POST", "GET", "GET", "GET"]
    assert [each.query.get("offset") for each in server.asked] == [None, "6", "6", "7"]


@both
def test_a_turn_that_waits_goes_on_waiting_over_a_cut_connection(driver: Driver) -> None:
    def reset() -> Iterator[bytes]:
        yield START + b"event: accepted\nid: 41\n\n"
        raise Cut

    with turn_of(reset(), START + frame(42) + begun(43) + ended(45)) as server:
        found = driver.items(server.url, on(lambda s: s.turn("hi")))
    assert sequences(found) == [43, 44, 45]
    assert [each.query.get("offset") for each in server.asked] == [None, "41"]


@both
def test_a_turn_goes_on_behind_what_the_agent_asks(driver: Driver) -> None:
    with turn_of(START + begun(4) + asks(6), START + frame(7) + ended(8)) as server:
        found = driver.items(server.url, on(lambda s: s.turn("hi")))
    assert sequences(found) == [4, 5, 6, 7, 8]
    assert isinstance(found[2].data, Permission)


@both
def test_a_turn_ends_with_its_session(driver: Driver) -> None:
    gone = frame(6, "session.ended", {"reason": "error", "terminated_by": "agent", "exit_code": 3})
    with turn_of(START + begun(4) + gone + frame(7)) as server:
        found = driver.items(server.url, on(lambda s: s.turn("hi")))
    assert isinstance(found[-1].data, SessionEnded)
    assert found[-1].data.exit_code == 3


@both
def test_turns_of_others_that_come_before_are_not_given(driver: Driver) -> None:
    crashed = frame(20, "session.ended", {"reason": "error", "terminated_by": "agent"})
    replies = (
        START + frame(2) + ended(3, "t0"),
        START + begun(4, "t1", "somebody else's") + asks(6) + ended(7, "t1") + begun(8, "t2", "hi there"),
        START + ended(19, "t2") + crashed + begun(21, "t3") + ended(23, "t2") + ended(24, "t3"),
    )
    with turn_of(*replies) as server:
        found = driver.items(server.url, on(lambda s: s.turn("hi")))
    assert sequences(found) == [21, 22, 23, 24]
    assert [each.method for each in server.asked] == ["POST", "GET", "GET"]


@both
def test_a_turn_that_never_begins_ends_with_its_session(driver: Driver) -> None:
    gone = frame(6, "session.ended", {"reason": "terminated", "terminated_by": "daemon"})
    with turn_of(START + frame(5) + gone) as server:
        assert sequences(driver.items(server.url, on(lambda s: s.turn("hi")))) == [6]


@both
@pytest.mark.parametrize("lost", ["before an answer", "before an event", "closed before an event"])
def test_a_message_that_may_have_got_there_is_not_sent_again(driver: Driver, lost: str) -> None:
    def reset() -> Iterator[bytes]:
        if lost != "before an answer":
            yield START
        if lost != "closed before an event":
            raise Cut

    with turn_of(reset()) as server, pytest.raises(Unavailable, match="before you send it again"):
        driver.items(server.url, on(lambda s: s.turn("hi")))
    assert len(server.asked) == 1


@both
@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (problem(503, "legation/unavailable", "cannot take it: stopping; try later"), Unavailable),
        (problem(409, "legation/prompt-in-flight", "cannot take it: a turn runs"), PromptInFlight),
        (
            START
            + b'event: error\ndata: {"status":409,"code":"legation/prompt-in-flight","detail":"cannot take it"}\n\n',
            PromptInFlight,
        ),
        (START + b"event: error\ndata: no problem\n\n", InternalError),
    ],
)
def test_a_message_that_is_refused_is_an_error(
    driver: Driver, reply: bytes, kind: type[LegationError]
) -> None:
    with turn_of(reply) as server, pytest.raises(kind):
        driver.items(server.url, on(lambda s: s.turn("hi")))
    assert len(server.asked) == 1


@both
def test_a_server_that_is_not_there_did_not_get_the_message(driver: Driver) -> None:
    with pytest.raises(Unavailable) as caught:
        driver.items("http://127.0.0.1:1", on(lambda s: s.turn("hi")))
    assert "not known" not in caught.value.message


def test_a_permission_is_answered_while_its_turn_is_read() -> None:
    def script(asked: Asked) -> Iterable[bytes]:
        if asked.path.endswith("/reply"):
            return [DONE]
        return [START + begun(1) + asks(3)] if asked.method == "POST" else [START + ended(4)]

    with serving(script) as server:
        with Legation.connect(server.url, TOKEN) as legation:
            session = ClientSession(legation.caller, "s")
            for event in session.turn("hi"):
                if isinstance(event.data, Permission):
                    session.answer(event.data, "once")
        replies = [each for each in server.asked if each.path.endswith("/reply")]
        assert len(replies) == 1


def test_leaving_a_turn_early_leaves_nothing_open_and_sends_nothing_unasked() -> None:
    def script(_: Asked) -> Iterator[bytes]:
        yield START + begun(1)
        server.over.wait(20)

    async def main() -> None:
        async with AsyncLegation.connect(server.url, TOKEN, timeouts=Timeouts(stream=20)) as legation:
            session = ClientSession(legation.caller, "s")
            session.turn("never begun")
            async with session.turn("hi") as events:
                assert isinstance((await anext(events)).data, Turn)

    with serving(script) as server:
        asyncio.run(main())
        server.over.set()
    assert len(server.asked) == 1


def test_a_method_of_a_session_does_without_its_id() -> None:
    with Legation.connect("http://127.0.0.1:1", TOKEN) as legation:
        session = ClientSession(legation.caller, "s")
    assert list(inspect.signature(session.answer).parameters) == ["permission", "reply"]
    assert list(inspect.signature(legation.sessions.create).parameters)[:2] == ["agent", "session_id"]
    assert repr(session) == "<Session s>"


def typed_as_written(legation: Legation) -> None:
    """Never called: mypy reads it, and fails where a signature is lost on the way through the descriptors."""
    session = legation.sessions.create("rehearsal", model="m")
    session.answer("apr_1", "perhaps")  # type: ignore[arg-type]
    session.send()  # type: ignore[call-arg]
    for event in session.turn("hi"):
        event.data.nonsense  # type: ignore[union-attr]  # noqa: B018
    title: str | None = session.info().title
    legation.sessions.create("rehearsal", permission_mode=title)  # type: ignore[arg-type]


async def typed_as_written_async(legation: AsyncLegation) -> None:
    session = await legation.sessions.get("s")
    await session.answer("apr_1", "once")
    async for event in session.events():
        event.nonsense  # type: ignore[attr-defined]  # noqa: B018
