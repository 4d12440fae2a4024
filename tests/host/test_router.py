"""What an agent asks of its client, through a real connection."""

import asyncio
import io
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.host.rig import Hand, events, go, of_type, play, rig, until

from legation.agents import rpc
from legation.agents.acp import AcpAgent
from legation.agents.rpc import REQUESTS_AT_ONCE
from legation.cli.command import Console
from legation.cli.view import Renderer
from legation.errors import AgentError
from legation.host.router import ONE_BY_ONE
from legation.redact import Redactor
from legation.secret import Secret
from legation.wire.events import Event

KEY = "sk-very-secret-0123456789"


async def test_an_agent_reads_and_writes_through_its_client(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        session = await made.rehearse()
        await play(session, "fs-write new/file.txt hello", "fs-read new/file.txt")
        assert (made.work / "new" / "file.txt").read_text() == "hello"
        updates = [json.loads(event.payload) for event in await of_type(session, "tool-call-update")]
        assert [each["status"] for each in updates].count("completed") == 2
        assert "hello" in json.dumps(updates[-1])


async def test_a_hostile_agent_gets_nothing_from_outside(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("top secret")
    async with rig(tmp_path) as made:
        session = await made.rehearse()
        (made.work / "link").symlink_to(tmp_path / "secret")
        await play(
            session, "fs-read! ../secret", "fs-read! link", "fs-write! ../secret x", "fs-write! link x"
        )
        said = [event.raw for event in await of_type(session, "tool-call-update")]
        assert sum(b"outside the session's folders" in raw for raw in said) == 4
        assert not any(b"top secret" in raw for raw in said)
        assert (tmp_path / "secret").read_text() == "top secret"


async def test_requests_of_no_known_method_are_answered(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        session = await made.rehearse()
        await play(session, "unknown-request", "terminal! ls", "elicit! who")
        said = b"".join(event.raw for event in await of_type(session, "agent-message-chunk"))
        assert b"error -32601" in said


async def test_files_of_a_strange_session_are_refused(tmp_path: Path) -> None:
    source = """
hello(); session(); prompt = prompted()
send(id=1, method="fs/read_text_file", params={"sessionId": "stranger", "path": "/etc/passwd"})
update(json.dumps(answer(1))); done(prompt); stay()
"""
    async with rig(tmp_path) as made:
        session = await made.script(source)
        await go(session)
        (said,) = await of_type(session, "agent-message-chunk")
        assert "-32602" in json.loads(said.payload)["content"]["text"]


ASK = "send(id=1, method='session/request_permission', params={params})"
CALL = {"toolCallId": "c", "title": "t"}
OFFERED = [{"optionId": "o", "name": "Yes", "kind": "allow_once"}]
UNREADABLE = {
    "no tool call": ({"sessionId": "s1", "options": OFFERED}, "toolCall"),
    "an option without a kind": (
        {"sessionId": "s1", "toolCall": CALL, "options": [{"optionId": "o", "name": "Yes"}]},
        "kind",
    ),
    "a kind that is no word": (
        {"sessionId": "s1", "toolCall": CALL, "options": [{**OFFERED[0], "kind": 7}]},
        "kind",
    ),
    "no session": ({"toolCall": CALL, "options": OFFERED}, "sessionId"),
    "a session that nobody opened": (
        {"sessionId": "str\x1b[2Janger", "toolCall": CALL, "options": OFFERED},
        "no such session: str\ufffd[2Janger",
    ),
    "a session by a number": ({"sessionId": 1, "toolCall": CALL, "options": OFFERED}, "sessionId"),
    "nothing": ([], "object"),
}


def shown(events: list[Event]) -> str:
    """As a user sees them, in `legation exec` and `legation sessions`."""
    seen = io.StringIO()
    renderer = Renderer(Console(seen))
    for event in events:
        renderer.show(event)
    renderer.end()
    return seen.getvalue()


@pytest.mark.parametrize("what", UNREADABLE)
async def test_a_permission_that_cannot_be_read_is_told_in_the_session(tmp_path: Path, what: str) -> None:
    params, said = UNREADABLE[what]
    ask = ASK.format(params=repr(params))
    source = (
        f"hello(); session(); prompt = prompted(); {ask}; update(json.dumps(answer(1))); done(prompt); stay()"
    )
    async with rig(tmp_path, approver=(hand := Hand())) as made:
        session = await made.script(source)
        await go(session)
        (heard,) = await of_type(session, "agent-message-chunk")
        answered = json.loads(json.loads(heard.payload)["content"]["text"])
        assert answered["result"]["outcome"] == {"outcome": "cancelled"}
        seen = shown(await events(session))
        assert "agent/unreadable-permission: the agent asked for a permission" in seen
        assert said in seen
        assert hand.asked == []
        assert [each.code for each in made.reported] == ["agent/unreadable-permission"]


async def test_options_of_kinds_that_nobody_knows_are_told_where_the_permission_is_asked(
    tmp_path: Path,
) -> None:
    options = [{"optionId": "o", "name": "Yes", "kind": "allow_forever"}]
    source = f"hello(); session(); prompt = prompted(); permission(1, options={options}); answer(1); done(prompt); stay()"
    async with rig(tmp_path) as made:
        session = await made.script(source)
        await go(session)
        seen = shown(await events(session))
        assert "agent/unreadable-permission" in seen
        assert "allow_forever" in seen
        assert [
            json.loads(each.payload)["outcome"] for each in await of_type(session, "permission-answered")
        ] == ["denied"]


async def test_updates_and_questions_of_a_strange_session_are_told_in_those_of_the_agent(
    tmp_path: Path,
) -> None:
    source = """
hello(); session(); prompt = prompted(); update("lost", "stranger")
send(id=1, method="elicitation/create", params={"mode": "form", "message": "who?", "sessionId": "other"})
answer(1); done(prompt); stay()
"""

    class Asks:
        modes = frozenset(("form",))

        async def ask(self, _request: object) -> object:
            raise AssertionError("nobody is asked")

    async with rig(tmp_path, questions=Asks()) as made:
        session = await made.script(source)
        await go(session)
        seen = shown(await events(session))
        assert "agent/unknown-session: 1 update(s) came for session stranger, which nobody opened" in seen
        assert "a question that nobody was shown: there is no such session: other" in seen


async def test_a_flood_for_a_strange_session_is_no_flood_of_events(tmp_path: Path) -> None:
    """Each in a block of its own: the agent waits for an answer in between."""
    source = f"""
hello(); session(); prompt = prompted()
for number in range(400):
    update("lost", f"stranger{{number}}")
    {ASK.format(params="{'sessionId': f'other{number}', 'toolCall': {'toolCallId': 'c'}, 'options': []}")}
    answer(1)
done(prompt); stay()
"""
    async with rig(tmp_path) as made:
        session = await made.script(source)
        await go(session)
        told = [json.loads(each.payload) for each in await of_type(session, "diagnostic")]
        assert {each["code"] for each in told} == {"agent/unknown-session", "agent/unreadable-permission"}
        assert (
            len(told) == 2 * (ONE_BY_ONE + 1) + 1
        )  # each, the hundredth, and at the end the asks that are left
        assert "(100 so far)" in told[-2]["message"]
        assert len(made.reported) == len(told)


async def test_what_nobody_could_be_told_before_there_was_a_session_is_told_in_the_first(
    tmp_path: Path,
) -> None:
    params = {"sessionId": "s0", "toolCall": CALL, "options": OFFERED}
    source = f"hello(); {ASK.format(params=repr(params))}; session(); stay()"
    async with rig(tmp_path) as made:
        session = await made.script(source)
        assert "no such session: s0" in shown(await events(session))


async def test_what_an_agent_still_says_of_a_closed_session_is_no_news(tmp_path: Path) -> None:
    source = """
hello(); session("s1"); session("s2"); prompt = prompted()
update("late", "s1"); update("here", "s2"); done(prompt); stay()
"""
    async with rig(tmp_path) as made:
        first = await made.script(source)
        second = await made.open_another(first)
        await made.host.close_session(first.id)
        await go(second)
        assert await of_type(second, "diagnostic") == []
        assert made.reported == []


async def test_a_runaway_is_refused_beyond_the_bound_and_every_request_is_answered(tmp_path: Path) -> None:
    count = REQUESTS_AT_ONCE + 50
    source = f"""
hello(); session(); prompt = prompted()
for number in range({count}):
    send(id=f"p{{number}}", method="session/request_permission", params={{"sessionId": "s1",
         "toolCall": {{"toolCallId": str(number), "title": "t"}}, "options": OPTIONS}})
refused = sum("error" in answer(f"p{{number}}") for number in range({REQUESTS_AT_ONCE}, {count}))
update(str(refused)); done(prompt)
for number in range({REQUESTS_AT_ONCE}): answer(f"p{{number}}")
update("all"); stay()
"""
    async with rig(tmp_path, approver=Hand()) as made:
        session = await made.script(source)
        await go(session)
        said = (await of_type(session, "agent-message-chunk"))[0]
        assert json.loads(said.payload)["content"]["text"] == "50"
        await until(session, lambda event: b'"all"' in event.raw)
        assert len(await of_type(session, "permission-answered")) == REQUESTS_AT_ONCE
        told = [json.loads(event.payload)["message"] for event in await of_type(session, "diagnostic")]
        assert len(told) == 21  # then at every tenfold, and at the end of the turn, with how many
        assert all("nobody was asked: 64 of its requests wait" in each for each in told[:20])
        assert [f"for call '{number}'" in each for number, each in enumerate(told[:20], 64)] == [True] * 20
        assert told[-1].startswith("30 more asks of the agent were refused so")
        assert told[-1].endswith("(50 so far)")


async def test_a_secret_in_what_the_agent_says_reaches_nobody(tmp_path: Path) -> None:
    redactor = Redactor([Secret(KEY, "api-key")])
    source = f"""
hello(); session(); prompt = prompted(); update("my key is {KEY}"); raw(b"garbage {KEY}\\n")
permission(1, title="use {KEY}"); answer(1)
os.write(2, b"leaking {KEY}"); os._exit(1)
"""
    async with rig(tmp_path, redact=redactor.bytes) as made:
        session = await made.script(source)
        try:
            await go(session)
        except Exception as error:  # noqa: BLE001 - all of it is searched
            told = f"{error!r} {error.__cause__!r} {error.__context__!r}"
        await made.host.dispose()
        seen = [event.raw + event.native async for event in session.stream.subscribe(follow=False)]
        seen += [told.encode(), repr(made.reported).encode()]
        assert not any(KEY.encode() in each for each in seen)
        assert sum(b"[redacted:api-key]" in each for each in seen) >= 6


async def test_an_error_that_quotes_a_secret_is_redacted(tmp_path: Path) -> None:
    redactor = Redactor([Secret(KEY, "api-key")])
    async with rig(tmp_path, redact=redactor.bytes) as made:
        session = await made.rehearse(env={"MODEL_KEY": KEY})
        result = await play(session, f"error -32603 bad key {KEY}")
        assert result.error is not None
        assert result.error.message == "bad key [redacted:api-key]"
        await play(session, "env! MODEL_KEY")
        (said,) = await of_type(session, "agent-message-chunk")
        assert b"MODEL_KEY=[redacted:api-key]" in said.raw


@pytest.mark.heavy
async def test_an_agent_that_asks_and_never_reads_is_held_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits for it stays near the bound, however much it asks for."""
    monkeypatch.setattr(rpc, "OUTBOX_LIMIT", 1_000_000)
    monkeypatch.setattr(rpc, "WRITE_TIMEOUT", 1.0)
    asks = """
import time
hello(); session(); prompted()
path = PATH
for number in range(500):
    send(id=f"r{number}", method="fs/read_text_file", params={"sessionId": "s1", "path": path})
    time.sleep(0.01)  # so that the answers are made, one by one
stay()
"""
    async with rig(tmp_path) as made:
        big = made.work / "big.txt"
        big.write_text("x" * 100_000)
        session = await made.script(asks.replace("PATH", repr(str(big))))
        assert isinstance(session.agent, AcpAgent)
        child = session.agent.child
        with pytest.raises(AgentError):
            await go(session)
        assert any(each.code == "agent/process-error" for each in made.reported)
        assert child.unsent < 1_000_000 + rpc.REQUESTS_AT_ONCE * 110_000


async def test_messages_of_an_agents_own_are_recorded_and_refused_where_nobody_is(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        session = await made.rehearse()
        await play(session, "vendor-note hello", "vendor-ask which")
        sent = [json.loads(each.payload) for each in await of_type(session, "extension-message")]
        name = session.meta.agent_session_id
        assert sent == [{"method": "_rehearsal/note", "params": {"sessionId": name, "text": "hello"}}]
        (said,) = await of_type(session, "agent-message-chunk")
        assert "-32601" in json.loads(said.payload)["content"]["text"]


class Later:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.asked: asyncio.Future[tuple[list[str], str, bytes]] = asyncio.get_running_loop().create_future()
        self.ended = asyncio.Event()

    async def request(self, session_ids: Sequence[str], method: str, params: bytes) -> object:
        self.asked.set_result((list(session_ids), method, params))
        try:
            return await asyncio.Event().wait()
        finally:
            self.ended.set()


async def test_a_request_of_an_agents_own_ends_with_its_session(tmp_path: Path) -> None:
    later = Later()
    async with asyncio.timeout(60), rig(tmp_path, extensions=later) as made:
        session = await made.rehearse()
        turn = asyncio.create_task(play(session, "vendor-ask which"))
        asked = await later.asked
        assert asked[:2] == ([session.id], "_rehearsal/ask")
        assert json.loads(asked[2]) == {"sessionId": session.meta.agent_session_id, "text": "which"}
        await made.host.close_session(session.id)
        await later.ended.wait()
        await asyncio.wait({turn})
        ends = [json.loads(each.payload) for each in await of_type(session, "extension-answered")]
        assert [each["error"]["code"] for each in ends] == [-32800]


async def test_a_request_of_an_agents_own_ends_with_its_turn(tmp_path: Path) -> None:
    source = """
hello(); session(); prompt = prompted()
send(id=77, method="_v/ask", params={"sessionId": "s1"})
done(prompt)  # and nothing is taken back
update(str(answer(77)["error"]["code"])); stay()
"""
    async with asyncio.timeout(60), rig(tmp_path, extensions=Later()) as made:
        session = await made.script(source)
        await go(session)
        said = await until(session, lambda event: event.type == "agent-message-chunk")
        assert json.loads(said.payload)["content"]["text"] == "-32800"
        (end,) = await of_type(session, "extension-answered")
        assert json.loads(end.payload)["error"]["code"] == -32800


async def test_a_request_of_an_agents_own_ends_where_its_turn_is_cancelled(tmp_path: Path) -> None:
    source = """
hello(); session(); prompt = prompted()
send(id=77, method="_v/ask", params={"sessionId": "s1"})
code = answer(77)["error"]["code"]  # an agent that does nothing before it has its answer
update(str(code)); done(prompt, "cancelled"); stay()
"""
    later = Later()
    async with asyncio.timeout(60), rig(tmp_path, extensions=later) as made:
        session = await made.script(source)
        turn = asyncio.create_task(go(session))
        await later.asked
        await session.cancel()
        await later.ended.wait()
        await turn
        (said,) = await of_type(session, "agent-message-chunk")
        assert json.loads(said.payload)["content"]["text"] == "-32800"


@pytest.mark.parametrize("method", ["_adapter/agent_exited", "_legation/note"])
async def test_no_agent_speaks_in_our_name(tmp_path: Path, method: str) -> None:
    source = f"""
hello(); session(); prompt = prompted()
send(method={method!r}, params={{"sessionId": "s1"}})
send(id=77, method={method!r}, params={{"sessionId": "s1"}})
update(str(answer(77)["error"]["code"])); done(prompt); stay()
"""
    async with asyncio.timeout(60), rig(tmp_path, extensions=Later()) as made:
        session = await made.script(source)
        await go(session)
        (said,) = await of_type(session, "agent-message-chunk")
        assert json.loads(said.payload)["content"]["text"] == "-32601"
        assert await of_type(session, "extension-message") == []
